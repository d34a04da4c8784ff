use expect_test::expect;
use proto::{event::v1::Usage, session::v1::TurnView};
use sqlx::PgPool;

use super::lease::waits_for_a_lock;
use crate::{
    ids::{MessageId, ReplicaId},
    pending::{Owner, Pending},
    store::{events, messages, sessions},
    testing::{World, completed, delta, pending, started, step, texts},
    turn::Ending,
};

fn end(ending: Ending) -> Pending {
    pending(|pending, now| {
        pending.append(completed(), now);
        pending.end(ending);
    })
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_flush_writes_everything_at_once(db: PgPool) {
    let world = World::new(db.clone()).await;
    let claim = world.claimed().await;
    let (id, message_id) = (claim.session_id, MessageId::new());
    let mut owner = Owner::from(&claim);
    let usage = Usage { input: 10, cache_read: 5, output: 7, ..Usage::default() };
    let first = pending(|pending, now| {
        pending.append(started(), now);
        pending.append(delta(message_id, "Hello"), now);
        pending.save_message(claim.turn_id, &step(message_id, "Hello"), now);
        pending.save_part(&step(message_id, "Hello"), 0);
        pending
            .save_turn(claim.turn_id, &TurnView { agent: "default".into(), ..TurnView::default() });
        pending.save_prompt("digest".into(), "be kind".into());
        pending.spend(&usage, 20);
    });
    let answer = world.flush(&owner, &first).await.unwrap();
    assert_eq!((answer.base, answer.ready), (4, false));
    owner.flush_no += 1;
    // Somebody else appends in between, and nothing collides.
    world.submit(id, "second").await;
    let more = pending(|pending, now| {
        pending.append(delta(message_id, " world"), now);
    });
    assert_eq!(world.flush(&owner, &more).await.unwrap().base, 8);

    expect![[r#"
        1 session.created
        2 thread.started
        3 turn.submitted accepted
        4 turn.started
        5 model.delta Hello
        6 turn.submitted queued
        7 queue.changed queued 1
        8 model.delta  world
    "#]]
    .assert_eq(&world.log(id).await);
    expect![[r#"
        user at 3 rank - accepted
        assistant at 5 rank - streaming
        user at - rank 6 queued queued_at
    "#]]
    .assert_eq(&world.messages(id).await);
    assert_eq!(texts(&db, id).await, ["hello", "Hello world"]);
    assert_eq!(world.turn_status(id, claim.turn_id).await, "running");
    let session = sessions::get(&db, &world.tenant, id).await.unwrap();
    assert_eq!((session.input_tokens, session.output_tokens), (15, 7));
    assert_eq!((session.cost_micros, session.model_calls), (20, 1));
    let prompt: String =
        sqlx::query_scalar("select body from session.prompt where tenant_id = 'acme'")
            .fetch_one(&db)
            .await
            .unwrap();
    assert_eq!(prompt, "be kind");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_is_given_up_unread_grows_no_more_and_loses_nothing(db: PgPool) {
    let world = World::new(db.clone()).await;
    let claim = world.claimed().await;
    let (id, message_id) = (claim.session_id, MessageId::new());
    let mut owner = Owner::from(&claim);
    let first = pending(|pending, now| {
        pending.append(delta(message_id, "Hello"), now);
        pending.save_message(claim.turn_id, &step(message_id, "Hello"), now);
        pending.save_part(&step(message_id, "Hello"), 0);
    });
    world.flush(&owner, &first).await.unwrap();
    owner.flush_no += 1;
    let more = pending(|pending, now| {
        pending.append(delta(message_id, " world"), now);
    });
    world.flush(&owner, &more).await.unwrap();
    let row = "select data_json ->> 'text', data_json ->> 'streaming'
               from session.chat_parts where session_id = $1 and message_id = $2";
    let row = async || -> (String, String) {
        let row = sqlx::query_as(row).bind(id).bind(message_id);
        row.fetch_one(&db).await.unwrap()
    };

    // Whoever lost the session closes nothing.
    messages::close(&db, world.replica, id, claim.epoch - 1).await.unwrap();
    messages::close(&db, ReplicaId::new(), id, claim.epoch).await.unwrap();
    assert_eq!(row().await, ("Hello".into(), "true".into()));

    messages::close(&db, world.replica, id, claim.epoch).await.unwrap();
    assert_eq!(row().await, ("Hello world".into(), "false".into()));
    assert_eq!(texts(&db, id).await, ["hello", "Hello world"]);
    assert!(world.messages(id).await.contains("assistant at 4 rank - failed"));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_is_published_is_what_a_reload_shows(db: PgPool) {
    let world = World::new(db.clone()).await;
    let claim = world.claimed().await;
    let owner = Owner::from(&claim);
    let rows = pending(|pending, now| {
        let message_id = MessageId::new();
        let mut first = started();
        first.trace_id = "0af7651916cd43dd8448eb211c80319c".into();
        first.model_request_id = "req".into();
        first.refs.insert("output".into(), "blob".into());
        pending.append(first, now);
        pending.append(delta(message_id, "Grüße \"\\u0000\" \u{FFFD}"), now);
    });
    let base = world.flush(&owner, &rows).await.unwrap().base;
    let stored = events::after(&db, claim.session_id, base - 1, 10).await.unwrap();
    assert_eq!(rows.into_events(&owner, base, world.replica), stored);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_flush_without_the_proof_writes_nothing(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let id = claim.session_id;
    let owner = Owner::from(&claim);
    let (before, log) = (world.state(id).await, world.log(id).await);
    let rows = end(Ending::Completed);
    for wrong in [
        Owner { epoch: owner.epoch - 1, ..owner.clone() },
        Owner { epoch: owner.epoch + 1, ..owner.clone() },
        Owner { flush_no: owner.flush_no + 1, ..owner.clone() },
        Owner { flush_no: owner.flush_no - 1, ..owner.clone() },
    ] {
        assert!(world.flush(&wrong, &rows).await.is_none());
    }
    assert!(world.flush_as(ReplicaId::new(), &[(&owner, &rows)]).await.is_empty());
    assert_eq!((world.state(id).await, world.log(id).await), (before, log));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn the_same_flush_twice_is_written_once(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let owner = Owner::from(&claim);
    let rows = pending(|pending, now| {
        pending.append(started(), now);
        pending.spend(&Usage { input: 1, ..Usage::default() }, 1);
    });
    assert!(world.flush(&owner, &rows).await.is_some());
    let (state, log) = (world.state(claim.session_id).await, world.log(claim.session_id).await);
    assert!(world.flush(&owner, &rows).await.is_none());
    assert_eq!(world.state(claim.session_id).await, state);
    assert_eq!(world.log(claim.session_id).await, log);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn one_batch_writes_what_is_its_own_and_leaves_the_rest(db: PgPool) {
    let world = World::new(db).await;
    let (mine, lost) = (world.claimed().await, world.claimed().await);
    let rows = end(Ending::Completed);
    let stale = |claim| Owner { epoch: 0, ..Owner::from(claim) };
    let batch = [(&stale(&lost), &rows), (&stale(&mine), &rows), (&Owner::from(&mine), &rows)];
    let answers = world.flush_as(world.replica, &batch).await;
    assert_eq!(answers.iter().map(|answer| answer.lease).collect::<Vec<_>>(), [2]);
    assert_eq!(world.state(mine.session_id).await.status, "idle");
    assert_eq!(world.state(lost.session_id).await.status, "busy");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn the_end_of_a_turn_lets_the_next_one_go(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let id = claim.session_id;
    let second = world.submit(id, "second").await.turn_id;
    world.submit(id, "third").await;
    let answer = world.flush(&Owner::from(&claim), &end(Ending::Failed)).await.unwrap();
    assert!(answer.ready);

    let state = world.state(id).await;
    assert_eq!((state.status.as_str(), state.active_turn), ("ready", Some(second)));
    assert_eq!((state.owner, state.queued, state.next_seq), (None, 1, 10));
    assert_eq!(world.turn_status(id, second).await, "accepted");
    expect![[r#"
        1 session.created
        2 thread.started
        3 turn.submitted accepted
        4 turn.submitted queued
        5 queue.changed queued 1
        6 turn.submitted queued
        7 queue.changed queued 2
        8 turn.completed
        9 queue.changed fired 1
    "#]]
    .assert_eq(&world.log(id).await);
    expect![[r#"
        user at 3 rank - accepted
        user at 9 rank - accepted
        user at - rank 6 queued queued_at
    "#]]
    .assert_eq(&world.messages(id).await);
    let again = world.claim(id).await;
    assert_eq!((again.turn_id, again.epoch, again.attempts), (second, 2, 1));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn the_end_of_a_turn_without_a_queue_leaves_the_session_idle(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    world.flush(&Owner::from(&claim), &end(Ending::Cancelled)).await.unwrap();
    let state = world.state(claim.session_id).await;
    assert_eq!((state.status.as_str(), state.active_turn, state.owner), ("idle", None, None));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn after_a_hard_error_the_queue_stays(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let id = claim.session_id;
    world.submit(id, "second").await;
    let broken = Ending::Broken { message: "the provider is gone".into() };
    let answer = world.flush(&Owner::from(&claim), &end(broken)).await.unwrap();
    assert!(!answer.ready);
    let state = world.state(id).await;
    assert_eq!((state.status.as_str(), state.active_turn, state.queued), ("error", None, 1));
    let session = sessions::get(&world.db, &world.tenant, id).await.unwrap();
    assert_eq!(session.status_message, "the provider is gone");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_that_is_submitted_while_another_ends_is_not_stranded(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let id = claim.session_id;

    // The submission waits for the row that the end holds, and then finds it idle.
    let mut ending = world.db.begin().await.unwrap();
    let (owner, rows) = (Owner::from(&claim), end(Ending::Completed));
    let batch = crate::testing::batch(world.replica, &[(&owner, &rows)]);
    sqlx::query("select * from session.flush_turns($1, $2)")
        .bind(world.replica)
        .bind(sqlx::types::Json(&batch))
        .execute(&mut *ending)
        .await
        .unwrap();
    let submit = async {
        let turn = world.submit(id, "second").await;
        assert_eq!(turn.status, "accepted");
    };
    let commit = async {
        waits_for_a_lock(&world.db).await;
        ending.commit().await.unwrap();
    };
    tokio::join!(submit, commit);
    assert_eq!(world.state(id).await.status, "ready");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn an_end_that_meets_a_submission_steps_aside_and_then_sees_it(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let id = claim.session_id;
    let (owner, rows) = (Owner::from(&claim), end(Ending::Completed));

    let mut submitting = world.db.begin().await.unwrap();
    sqlx::query(
        "select * from session.submit('acme', $1, 'msg', 'turn_01h00000000000000000000000', 'second', 'second',
                '[]', '{}', '{}', 'alice', null, false, 3, '{\"runtime_id\": \"rep\"}')",
    )
    .bind(id)
    .execute(&mut *submitting)
    .await
    .unwrap();
    assert!(world.flush(&owner, &rows).await.is_none());
    submitting.commit().await.unwrap();

    let answer = world.flush(&owner, &rows).await.unwrap();
    assert!(answer.ready);
    assert_eq!(world.state(id).await.status, "ready");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn flushes_that_bring_the_same_prompts_do_not_meet_in_a_deadlock(db: PgPool) {
    let world = World::new(db).await;
    let prompts = |order: [usize; 8]| {
        pending(|pending, now| {
            pending.append(started(), now);
            for prompt in order {
                pending.save_prompt(format!("digest {prompt}"), "x".repeat(1000));
            }
        })
    };
    let (forth, back) = (prompts([0, 1, 2, 3, 4, 5, 6, 7]), prompts([7, 6, 5, 4, 3, 2, 1, 0]));
    for _ in 0..20 {
        let (a, b) = (world.claimed().await, world.claimed().await);
        let (a, b) = (Owner::from(&a), Owner::from(&b));
        tokio::join!(world.flush(&a, &forth), world.flush(&b, &back));
        sqlx::query("delete from session.prompt").execute(&world.db).await.unwrap();
    }
}
