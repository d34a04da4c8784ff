use local::Service;
use proto::session::v1::{
    Message, message::Role, respond_action_request::Decision, session::Status,
    subscribe_request::From,
};
use tests::{Fold, Session, World};

/// Text, reasoning, tools that work and tools that do not, in several steps.
const WORK: &str = r#"think Let me see.
say I look.
call bash {"command": "echo found"}
call bash {"command": "exit 3"}
call nothing {}
---
think Hm.
say It said {{tool_result}}"#;

#[tokio::test]
async fn the_views_follow_from_the_log_alone() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    compare(&session).await;
    session.run(WORK).await;
    compare(&session).await;
    session.run("fail transient 1\nsay Again.").await;
    compare(&session).await;

    // A queue behind a turn that is held, and then its end.
    world.fleet.get(Service::Models).pause().unwrap();
    let mut events = session.subscribe(From::Live(true)).await;
    session.submit("say First.").await;
    session.submit("say Second.\ncut").await;
    let third = session.submit("say Third.").await;
    compare(&session).await;
    world.fleet.get(Service::Models).resume().unwrap();
    // What is cut off is a hard error, behind which the queue waits.
    events.until(|event| event.r#type == "turn.failed").await;
    compare(&session).await;
    assert_eq!(session.get().await.status(), Status::Error);
    let last = session.submit("say Last.").await;
    events.until_ended(&third.turn_id).await;
    events.until_ended(&last.turn_id).await;
    compare(&session).await;
}

#[tokio::test]
async fn the_views_of_a_turn_that_waits_follow_from_the_log_alone() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_careful_session().await;
    let action = session.asks(WORK).await;
    compare(&session).await;
    let mut events = session.subscribe(From::Live(true)).await;
    for action in session.actions().await {
        session.respond(&action, Decision::Once).await.unwrap();
    }
    events.until_ended(&action.turn_id).await;
    compare(&session).await;

    session.asks("say Well.\ncall bash {\"command\": \"ls\"}").await;
    let mut waiting = Vec::new();
    for script in ["say Never.", "say One.", "say Two.", "say Three."] {
        waiting.push(session.submit(script).await.turn_id);
    }
    session.cancel(&waiting[0]).await.unwrap();
    session.promote(&waiting[3]).await.unwrap();
    compare(&session).await;
    session.reorder(&[&waiting[2], &waiting[3], &waiting[1]]).await.unwrap();
    session.edit(&waiting[2], "say Two!").await.unwrap();
    compare(&session).await;
    session.interrupt("enough").await;
    events.until_ended(&waiting[1]).await;
    compare(&session).await;
}

/// Compares every view with what the log adds up to.
async fn compare(session: &Session) {
    // Nothing is compared while it changes.
    let (log, shown, messages, snapshot) = session
        .eventually(async || {
            let before = session.get().await;
            let log = session.log().await;
            let (messages, snapshot) = (session.messages().await, session.snapshot().await);
            let still = before.last_sequence == session.get().await.last_sequence;
            let still =
                still && log.last().is_none_or(|event| event.sequence == before.last_sequence);
            if still { Some((log, before, messages, snapshot.snapshot.unwrap())) } else { None }
        })
        .await;
    let fold = Fold::of(&log);
    let thread = &snapshot.threads[0];

    assert_eq!(fold.views(), thread.turns);
    let queued: Vec<_> = thread.queued_turns.iter().map(|turn| turn.turn_id.clone()).collect();
    assert_eq!(fold.queue, queued);
    let asked: Vec<_> =
        thread.pending_requests.iter().map(|request| request.action_id.as_str()).collect();
    let open: Vec<_> = fold.open.iter().map(|(action_id, _)| action_id.as_str()).collect();
    assert_eq!(open, asked);
    assert_eq!(fold.queue.len() as i32, shown.queued_turns);
    assert_eq!(fold.active.clone().unwrap_or_default(), shown.active_turn_id);
    assert_eq!(fold.error, shown.status() == Status::Error);
    assert_eq!(
        (fold.input_tokens, fold.output_tokens, fold.cost_micros, fold.last_sequence),
        (shown.input_tokens, shown.output_tokens, shown.cost_micros, shown.last_sequence)
    );
    assert_eq!(fold.model_calls, thread.cost_state.as_ref().unwrap().model_calls);

    assert_eq!(fold.messages.len(), messages.len());
    for (rebuilt, stored) in fold.messages.into_iter().zip(messages) {
        assert_eq!(given(rebuilt, &stored), stored);
    }
}

/// What is in no event, see `Fold`: what people wrote, and the names of parts.
fn given(mut rebuilt: Message, stored: &Message) -> Message {
    if rebuilt.role() == Role::User {
        rebuilt.parts = stored.parts.clone();
        rebuilt.queue_time = stored.queue_time;
        assert_eq!(rebuilt.queue_time.is_some(), rebuilt.status == "queued");
    }
    for (part, stored) in rebuilt.parts.iter_mut().zip(&stored.parts) {
        part.part_id = stored.part_id.clone();
    }
    rebuilt.create_time = stored.create_time;
    rebuilt
}
