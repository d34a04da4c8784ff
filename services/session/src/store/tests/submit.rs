use expect_test::expect;
use sqlx::PgPool;

use crate::{
    error::Error,
    ids::SessionId,
    pending::Owner,
    store::{
        replicas,
        sessions::{self, Filter},
    },
    testing::{World, completed, pending},
    turn::Ending,
};

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn creating_twice_creates_once(db: PgPool) {
    let world = World::new(db).await;
    let first = world.create("request", "digest").await.unwrap();
    assert_eq!(world.create("request", "digest").await.unwrap(), first);
    expect![[r#"
        1 session.created
        2 thread.started
    "#]]
    .assert_eq(&world.log(first).await);

    let error = world.create("request", "another").await.unwrap_err();
    expect!["request id request was used before for something else"].assert_eq(&error.to_string());
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn creating_at_the_same_time_creates_once(db: PgPool) {
    let world = World::new(db).await;
    let create = || async { world.create("request", "digest").await.unwrap() };
    let (a, b, c, d) = tokio::join!(create(), create(), create(), create());
    assert_eq!([b, c, d], [a; 3]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_of_an_idle_session_is_ready_at_once(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    let turn = world.submit(id, "hello").await;
    assert_eq!((turn.status.as_str(), turn.queue_position, turn.sequence), ("accepted", None, 3));

    let state = world.state(id).await;
    assert_eq!((state.status.as_str(), state.active_turn), ("ready", Some(turn.turn_id)));
    expect![[r#"
        1 session.created
        2 thread.started
        3 turn.submitted accepted
    "#]]
    .assert_eq(&world.log(id).await);
    expect![[r#"
        user at 3 rank - accepted
    "#]]
    .assert_eq(&world.messages(id).await);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn who_has_room_gets_the_turn_with_its_submission(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    let turn = world.submit_here(id, "hello").await;
    let (claim, context) = turn.claimed.unwrap();
    assert_eq!((claim.session_id, claim.turn_id, claim.epoch), (id, turn.turn_id, 1));
    assert_eq!((claim.attempts, context.subject.as_str()), (1, "alice"));
    let state = world.state(id).await;
    assert_eq!((state.status.as_str(), state.owner), ("busy", Some(world.replica)));

    assert!(world.submit_here(id, "hello").await.claimed.is_none(), "the same once more");
    let second = world.submit_here(id, "second").await;
    assert_eq!((second.status.as_str(), second.claimed.is_none()), ("queued", true));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn who_is_dead_may_submit_and_gets_nothing_to_do(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    replicas::leave(&world.db, world.replica).await.unwrap();
    assert!(world.submit_here(id, "hello").await.claimed.is_none());
    assert_eq!(world.state(id).await.status, "ready");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_of_a_busy_session_waits_in_line(db: PgPool) {
    let world = World::new(db).await;
    let id = world.claimed().await.session_id;
    let second = world.submit(id, "second").await;
    let third = world.submit(id, "third").await;
    assert_eq!((second.status.as_str(), second.queue_position), ("queued", Some(1)));
    assert_eq!((third.status.as_str(), third.queue_position), ("queued", Some(2)));
    assert_eq!(world.state(id).await.queued, 2);
    expect![[r#"
        1 session.created
        2 thread.started
        3 turn.submitted accepted
        4 turn.submitted queued
        5 queue.changed queued 1
        6 turn.submitted queued
        7 queue.changed queued 2
    "#]]
    .assert_eq(&world.log(id).await);
    expect![[r#"
        user at 3 rank - accepted
        user at - rank 4 queued queued_at
        user at - rank 6 queued queued_at
    "#]]
    .assert_eq(&world.messages(id).await);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn the_same_request_is_the_same_turn_also_after_it_ran(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let id = claim.session_id;
    let again = world.submit(id, "hello").await;
    assert_eq!(again.turn_id, claim.turn_id);
    assert!(again.events.is_empty());

    let end = pending(|pending, now| {
        pending.append(completed(), now);
        pending.end(Ending::Completed);
    });
    world.flush(&Owner::from(&claim), &end).await.unwrap();
    let before = world.state(id).await;
    let again = world.submit(id, "hello").await;
    assert_eq!((again.turn_id, again.sequence), (claim.turn_id, 4));
    assert_eq!(world.state(id).await, before);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn the_same_request_with_another_payload_is_refused(db: PgPool) {
    let world = World::new(db).await;
    let id = world.claimed().await.session_id;
    let before = world.state(id).await;
    let error = world.try_submit(id, "hello", "another", |_| ()).await.unwrap_err();
    assert!(matches!(error, Error::RequestIdReused(request) if request == "hello"));
    assert_eq!(world.state(id).await, before);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn who_will_not_wait_is_told_which_turn_runs(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let id = claim.session_id;
    let before = world.state(id).await;
    let error = world.try_submit(id, "b", "b", |new| new.reject = true).await.unwrap_err();
    assert!(matches!(error, Error::SessionBusy { turn_id, .. } if turn_id == Some(claim.turn_id)));
    assert_eq!(world.state(id).await, before);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_full_queue_takes_no_more(db: PgPool) {
    let world = World::new(db).await;
    let id = world.claimed().await.session_id;
    for text in ["a", "b", "c"] {
        world.submit(id, text).await;
    }
    let before = world.state(id).await;
    let error = world.try_submit(id, "d", "d", |_| ()).await.unwrap_err();
    assert!(matches!(error, Error::QueueFull { limit: 3, .. }));
    assert_eq!(world.state(id).await, before);
    // What is in the queue is still found by its request id.
    assert_eq!(world.submit(id, "c").await.queue_position, Some(3));
}

/// A session that failed hard with these turns in its queue.
async fn broken(world: &World, queued: &[&str]) -> SessionId {
    let claim = world.claimed().await;
    for text in queued {
        world.submit(claim.session_id, text).await;
    }
    let end = pending(|pending, _| pending.end(Ending::Broken { message: "broken".into() }));
    world.flush(&Owner::from(&claim), &end).await.unwrap();
    claim.session_id
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_submission_clears_an_error_and_goes_behind_what_waited(db: PgPool) {
    let world = World::new(db).await;
    let id = broken(&world, &["second", "third"]).await;
    let head = world.submit(id, "second").await.turn_id;
    let state = world.state(id).await;
    assert_eq!((state.status.as_str(), state.queued), ("error", 2));

    let fourth = world.submit(id, "fourth").await;
    assert_eq!((fourth.status.as_str(), fourth.queue_position), ("queued", Some(2)));
    let state = world.state(id).await;
    assert_eq!((state.status.as_str(), state.active_turn, state.queued), ("ready", Some(head), 2));
    assert_eq!(world.turn_status(id, head).await, "accepted");
    expect![[r#"
        user at 3 rank - accepted
        user at 10 rank - accepted
        user at - rank 6 queued queued_at
        user at - rank 8 queued queued_at
    "#]]
    .assert_eq(&world.messages(id).await);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn an_error_with_a_full_queue_can_be_cleared(db: PgPool) {
    let world = World::new(db).await;
    let id = broken(&world, &["a", "b", "c"]).await;
    world.submit(id, "d").await;
    let state = world.state(id).await;
    assert_eq!((state.status.as_str(), state.queued), ("ready", 3));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn another_tenant_finds_nothing_and_changes_nothing(db: PgPool) {
    let world = World::new(db.clone()).await;
    let id = world.session().await;
    let before = world.state(id).await;
    let stranger = World { tenant: "other".parse().unwrap(), ..World::new(db.clone()).await };
    let error = stranger.try_submit(id, "a", "a", |_| ()).await.unwrap_err();
    assert!(matches!(error, Error::SessionNotFound(missing) if missing == id));
    let error = sessions::get(&db, &stranger.tenant, id).await.unwrap_err();
    assert!(matches!(error, Error::SessionNotFound(missing) if missing == id));
    assert_eq!(
        sessions::list(&db, &stranger.tenant, Filter::default(), None, 10).await.unwrap().len(),
        0
    );
    assert_eq!(world.state(id).await, before);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn turns_that_race_for_an_idle_session_run_one_after_the_other(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    let submit = |text| world.submit(id, text);
    let (a, b, c) = tokio::join!(submit("a"), submit("b"), submit("c"));
    let mut positions = [a.queue_position, b.queue_position, c.queue_position];
    positions.sort_unstable();
    assert_eq!(positions, [None, Some(1), Some(2)]);

    // People see them in the order in which they will run.
    let mut db = world.db.acquire().await.unwrap();
    let shown = crate::store::snapshot::turns(&mut db, id, 10).await.unwrap();
    let queue = crate::store::snapshot::queue(&mut db, id).await.unwrap();
    let queued: Vec<_> = queue.iter().map(|turn| &turn.turn_id).collect();
    assert_eq!(shown[1..].iter().map(|turn| &turn.turn_id).collect::<Vec<_>>(), queued);
}
