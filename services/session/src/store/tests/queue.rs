use expect_test::expect;
use proto::{event::v1::Event, session::v1::TurnView};
use sqlx::PgPool;

use crate::{
    error::{Error, Result},
    ids::{SessionId, TurnId},
    message::Part,
    pending::Owner,
    store::{
        queue::{cancel, edit, promote, reorder, resume},
        snapshot, turns,
    },
    testing::{World, completed, pending, stamp, texts},
    turn::Ending,
    view,
};

impl World {
    async fn edit(&self, id: SessionId, turn_id: TurnId, text: &str) -> Result<()> {
        let (parts, stamp) = ([Part::text(text)], stamp(self.replica));
        edit(&self.db, &self.tenant, id, turn_id, &parts, &stamp).await.map(drop)
    }

    async fn cancel(&self, id: SessionId, turn_id: TurnId) -> Result<()> {
        let stamp = stamp(self.replica);
        cancel(&self.db, &self.tenant, id, turn_id, "bob", &stamp).await.map(drop)
    }

    async fn promote(&self, id: SessionId, turn_id: TurnId) -> Result<()> {
        promote(&self.db, &self.tenant, id, turn_id, &stamp(self.replica)).await.map(drop)
    }

    async fn reorder(&self, id: SessionId, turn_ids: &[TurnId]) -> Result<()> {
        reorder(&self.db, &self.tenant, id, turn_ids, &stamp(self.replica)).await.map(drop)
    }

    async fn resume(&self, id: SessionId) -> Result<Vec<Event>> {
        resume(&self.db, &self.tenant, id, &stamp(self.replica)).await
    }

    /// The log from this sequence on.
    async fn log_from(&self, id: SessionId, sequence: i64) -> String {
        let log = self.log(id).await;
        log.split_inclusive('\n').skip(sequence as usize - 1).collect()
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_waits_can_be_said_otherwise(db: PgPool) {
    let world = World::new(db).await;
    let (claim, [_, second]) = world.queued(["first", "second"]).await;
    let id = claim.session_id;
    let from = world.state(id).await.next_seq;
    world.edit(id, second, "better").await.unwrap();
    assert_eq!(world.queue(id).await, ["first", "better"]);
    expect![[r#"
        8 queue.changed edited 2
    "#]]
    .assert_eq(&world.log_from(id, from).await);
    // The request is still the same request.
    assert_eq!(world.submit(id, "second").await.turn_id, second);

    let error = edit(&world.db, &world.tenant, id, second, &[], &stamp(world.replica)).await;
    assert!(matches!(error.unwrap_err(), Error::Invalid { field: "parts", .. }));
    assert_eq!(world.queue(id).await, ["first", "better"]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_that_switches_the_agent_may_be_edited_to_say_nothing(db: PgPool) {
    let world = World::new(db).await;
    let id = world.claimed().await.session_id;
    let turn = world.submit(id, "go").await;
    sqlx::query("update session.chat_messages set metadata_json = metadata_json || '{\"agent\": \"build\"}' where id = $1")
        .bind(turn.message_id)
        .execute(&world.db)
        .await
        .unwrap();
    edit(&world.db, &world.tenant, id, turn.turn_id, &[], &stamp(world.replica)).await.unwrap();
    assert_eq!(world.queue(id).await, [""]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_cancelled_turn_is_over_and_seen_by_nobody(db: PgPool) {
    let world = World::new(db).await;
    let (claim, [first, second]) = world.queued(["first", "second"]).await;
    let id = claim.session_id;
    let from = world.state(id).await.next_seq;
    world.cancel(id, first).await.unwrap();

    expect![[r#"
        8 queue.changed cancelled 1
        9 turn.failed cancelled
    "#]]
    .assert_eq(&world.log_from(id, from).await);
    expect![[r#"
        user at 3 rank - accepted
        user at 8 rank - cancelled
        user at - rank 6 queued queued_at
    "#]]
    .assert_eq(&world.messages(id).await);
    assert_eq!(world.state(id).await.queued, 1);
    assert_eq!(texts(&world.db, id).await, ["hello"]);

    // Its view is what its events add up to.
    let mut db = world.db.acquire().await.unwrap();
    let shown = snapshot::turns(&mut db, id, 10).await.unwrap().remove(1);
    let events = crate::store::events::after(&world.db, id, from - 1, 10).await.unwrap();
    let mut view = TurnView { turn_id: first.to_string(), ..TurnView::default() };
    for event in &events {
        view::apply(&mut view, event);
    }
    assert_eq!(shown, view);
    assert_eq!((view.status.as_str(), view.completed_at.is_some()), ("cancelled", true));

    // Its request still finds it, and nothing changes it any more.
    let again = world.submit(id, "first").await;
    assert_eq!((again.turn_id, again.status.as_str()), (first, "cancelled"));
    for change in [world.cancel(id, first).await, world.edit(id, first, "no").await] {
        let error = change.unwrap_err();
        assert!(matches!(error, Error::TurnNotQueued { status, .. } if status == "cancelled"));
    }
    world.end(&claim, Ending::Completed).await;
    assert_eq!(world.claim(id).await.turn_id, second);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_promoted_turn_runs_next(db: PgPool) {
    let world = World::new(db).await;
    let (claim, [first, second, third]) = world.queued(["first", "second", "third"]).await;
    let id = claim.session_id;
    let from = world.state(id).await.next_seq;
    world.promote(id, third).await.unwrap();
    world.promote(id, second).await.unwrap();
    assert_eq!(world.queue(id).await, ["second", "third", "first"]);
    // One that is first already stays there without a word.
    world.promote(id, second).await.unwrap();
    expect![[r#"
        10 queue.changed promoted 3
        11 queue.changed promoted 3
    "#]]
    .assert_eq(&world.log_from(id, from).await);

    world.end(&claim, Ending::Completed).await;
    let claim = world.claim(id).await;
    assert_eq!(claim.turn_id, second);
    // What comes later goes behind all of them.
    world.submit(id, "fourth").await;
    assert_eq!(world.queue(id).await, ["third", "first", "fourth"]);
    let error = world.promote(id, second).await.unwrap_err();
    assert!(matches!(error, Error::TurnNotQueued { status, .. } if status == "accepted"));
    assert_eq!(world.turn_status(id, first).await, "queued");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_queue_takes_any_order_that_names_all_of_it(db: PgPool) {
    let world = World::new(db).await;
    let (claim, [first, second, third]) = world.queued(["first", "second", "third"]).await;
    let id = claim.session_id;
    for order in [[third, first, second], [second, third, first], [first, second, third]] {
        world.reorder(id, &order).await.unwrap();
        let queue = crate::store::queue::list(&world.db, id).await.unwrap();
        assert_eq!(queue.iter().map(|turn| turn.id).collect::<Vec<_>>(), order);
        let positions = queue.iter().map(|turn| turn.queue_position);
        assert_eq!(positions.collect::<Vec<_>>(), [Some(1), Some(2), Some(3)]);
    }
    let before = world.state(id).await;
    world.reorder(id, &[first, second, third]).await.unwrap();
    assert_eq!(world.state(id).await, before, "an order that changes nothing was written");

    let missing = world.reorder(id, &[second, first]).await.unwrap_err();
    expect!["invalid turn_ids: must name every queued turn, and does not name …"]
        .assert_eq(&missing.to_string().replace(&third.to_string(), "…"));
    let unknown = world.reorder(id, &[second, first, third, TurnId::new()]).await.unwrap_err();
    assert!(matches!(unknown, Error::TurnNotFound { .. }));
    assert_eq!(world.state(id).await, before);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn an_order_of_an_older_queue_is_refused(db: PgPool) {
    let world = World::new(db).await;
    let (claim, [first, second, third]) = world.queued(["first", "second", "third"]).await;
    let id = claim.session_id;
    world.end(&claim, Ending::Completed).await;
    let before = world.state(id).await;
    let error = world.reorder(id, &[third, second, first]).await.unwrap_err();
    assert!(matches!(error, Error::TurnNotQueued { turn_id, .. } if turn_id == first));
    world.cancel(id, second).await.unwrap();
    let error = world.reorder(id, &[third, second]).await.unwrap_err();
    assert!(
        matches!(error, Error::TurnNotQueued { turn_id, status, .. } if turn_id == second && status == "cancelled")
    );
    assert_eq!(world.queue(id).await, ["third"]);
    assert_eq!(world.state(id).await.next_seq, before.next_seq + 2);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_queue_that_an_error_stopped_can_be_resumed(db: PgPool) {
    let world = World::new(db).await;
    let (claim, [first, _]) = world.queued(["first", "second"]).await;
    let id = claim.session_id;

    // Nothing stands still yet.
    let before = world.state(id).await;
    assert_eq!(world.resume(id).await.unwrap(), []);
    assert_eq!(world.state(id).await, before);

    world.end(&claim, Ending::Broken { message: "broken".into() }).await;
    let from = world.state(id).await.next_seq;
    assert_eq!(world.resume(id).await.unwrap().len(), 2);
    let state = world.state(id).await;
    assert_eq!((state.status.as_str(), state.active_turn, state.queued), ("ready", Some(first), 1));
    expect![[r#"
        9 queue.changed resumed 2
        10 queue.changed fired 1
    "#]]
    .assert_eq(&world.log_from(id, from).await);
    assert_eq!(world.claim(id).await.turn_id, first);

    let unknown = SessionId::new();
    let error = world.resume(unknown).await.unwrap_err();
    assert!(matches!(error, Error::SessionNotFound(id) if id == unknown));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn an_error_whose_queue_was_emptied_waits_for_a_submission(db: PgPool) {
    let world = World::new(db).await;
    let (claim, [first]) = world.queued(["first"]).await;
    let id = claim.session_id;
    world.end(&claim, Ending::Broken { message: "broken".into() }).await;
    world.cancel(id, first).await.unwrap();
    let state = world.state(id).await;
    assert_eq!((state.status.as_str(), state.queued), ("error", 0));
    assert_eq!(world.resume(id).await.unwrap(), []);
    assert_eq!(world.submit(id, "second").await.status, "accepted");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn another_tenants_queue_is_not_there(db: PgPool) {
    let world = World::new(db.clone()).await;
    let (claim, [first]) = world.queued(["first"]).await;
    let id = claim.session_id;
    let before = world.state(id).await;
    let stranger = World { tenant: "other".parse().unwrap(), ..World::new(db).await };
    let refused = [
        stranger.edit(id, first, "mine").await,
        stranger.cancel(id, first).await,
        stranger.promote(id, first).await,
        stranger.reorder(id, &[first]).await,
        stranger.resume(id).await.map(drop),
    ];
    for refused in refused {
        assert!(matches!(refused.unwrap_err(), Error::SessionNotFound(missing) if missing == id));
    }
    assert_eq!(world.state(id).await, before);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn interrupting_a_turn_that_waits_takes_it_out_of_the_queue(db: PgPool) {
    let world = World::new(db).await;
    let (claim, [first]) = world.queued(["first"]).await;
    let id = claim.session_id;
    let (tenant, stamp) = (&world.tenant, stamp(world.replica));
    let stop = turns::interrupt(&world.db, tenant, id, Some(first), "bob", "enough", &stamp);
    let stopped = stop.await.unwrap();
    assert_eq!((stopped.turn_id, stopped.events.len()), (first, 2));
    assert_eq!(world.turn_status(id, first).await, "cancelled");
    assert_eq!(world.state(id).await.active_turn, Some(claim.turn_id));
}

/// Ends the running turn while others race for the queue.
async fn fire(world: &World, claim: &turns::Claim) {
    let end = pending(|pending, now| {
        pending.append(completed(), now);
        pending.end(Ending::Completed);
    });
    // A flush leaves out a session that somebody else holds, and tries again.
    while world.flush(&Owner::from(claim), &end).await.is_none() {
        tokio::task::yield_now().await;
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn of_cancelling_and_firing_exactly_one_wins(db: PgPool) {
    let world = World::new(db).await;
    let mut fired = 0;
    for round in 0..40 {
        let (claim, [first, second]) = world.queued(["first", "second"]).await;
        let id = claim.session_id;
        // Several people press the same button.
        let (a, b, c, ()) = match round % 2 {
            0 => tokio::join!(
                world.cancel(id, first),
                world.cancel(id, first),
                world.cancel(id, first),
                fire(&world, &claim)
            ),
            _ => {
                let (fired, a, b, c) = tokio::join!(
                    fire(&world, &claim),
                    world.cancel(id, first),
                    world.cancel(id, first),
                    world.cancel(id, first)
                );
                (a, b, c, fired)
            }
        };
        let cancelled = [&a, &b, &c].into_iter().filter(|cancelled| cancelled.is_ok()).count();
        let state = world.state(id).await;
        let status = world.turn_status(id, first).await;
        if cancelled == 1 {
            assert_eq!((status.as_str(), state.active_turn), ("cancelled", Some(second)));
            assert_eq!((state.status.as_str(), state.queued), ("ready", 0));
        } else {
            fired += 1;
            assert_eq!(cancelled, 0);
            assert_eq!((status.as_str(), state.active_turn), ("accepted", Some(first)));
            assert_eq!((state.status.as_str(), state.queued), ("ready", 1));
        }
        for refused in [a, b, c].into_iter().filter_map(Result::err) {
            assert!(matches!(refused, Error::TurnNotQueued { .. }), "{refused}");
        }
    }
    // Neither always wins, or this would prove nothing.
    assert!((1..40).contains(&fired), "fired {fired} times out of 40");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_runs_is_what_an_edit_that_succeeded_said(db: PgPool) {
    let world = World::new(db).await;
    for _ in 0..40 {
        let (claim, [first]) = world.queued(["first"]).await;
        let id = claim.session_id;
        let (edited, ()) = tokio::join!(world.edit(id, first, "edited"), fire(&world, &claim));
        let said = texts(&world.db, id).await;
        match edited {
            Ok(()) => assert_eq!(said, ["hello", "edited"]),
            Err(Error::TurnNotQueued { .. }) => assert_eq!(said, ["hello", "first"]),
            Err(error) => panic!("{error}"),
        }
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn changes_that_race_leave_every_turn_in_the_queue_once(db: PgPool) {
    let world = World::new(db).await;
    for _ in 0..10 {
        let (claim, [a, b, c]) = world.queued(["a", "b", "c"]).await;
        let id = claim.session_id;
        let (one, other) = ([b, c, a], [c, a, b]);
        let (_, _, _, _, ()) = tokio::join!(
            world.promote(id, c),
            world.reorder(id, &one),
            world.promote(id, b),
            world.reorder(id, &other),
            fire(&world, &claim),
        );
        let mut left = world.queue(id).await;
        let running = world.claim(id).await.turn_id;
        left.push(
            ["a", "b", "c"][[a, b, c].iter().position(|turn| *turn == running).unwrap()].into(),
        );
        left.sort();
        assert_eq!(left, ["a", "b", "c"]);
        assert_eq!(world.state(id).await.queued, 2);
    }
}
