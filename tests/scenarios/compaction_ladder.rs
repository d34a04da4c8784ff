use proto::{
    event::v1::{Event, Payload},
    session::v1::{Manifest, session::Status},
};
use tests::{Client, World, text_of};

use crate::compaction::completed;

/// Has the tenant's summarizer do what a script says, on the model with the smallest context.
async fn put_summarizer(client: &Client, script: &str) {
    let manifest = Manifest {
        prompt: format!("Summarize.\n#!script\n{script}"),
        model: "scripted/small".into(),
        profile: "summary".into(),
        ..Manifest::default()
    };
    client.put_manifest("compaction", manifest).await;
}

#[tokio::test]
async fn compaction_recovery_ladder() {
    let mut world = World::start().await;
    let client = world.client("acme").await;

    // A summarizer that is away for a while is asked again.
    put_summarizer(&client, "fail transient 2\nsay In short.").await;
    let session = client.create_session().await;
    session.run("say Hello.").await;
    let seen = session.compact().await;
    assert_eq!(completed(&seen).method, "summary");
    let retries = seen.iter().filter_map(|event| match &event.payload {
        Some(Payload::RunStatus(status)) => Some((status.status.as_str(), status.attempt)),
        _ => None,
    });
    assert_eq!(retries.collect::<Vec<_>>(), [("retrying", 2), ("retrying", 3)]);

    // Too large because of what tools said: that is left out.
    put_summarizer(&client, "say In short.").await;
    let session = client.create_session().await;
    let output = "call bash {\"command\": \"head -c 20000 /dev/zero | tr '\\\\0' x\"}\n";
    session.run(&format!("{}---\nsay Done.", output.repeat(5))).await;
    assert_eq!(completed(&session.compact().await).method, "pruned");

    // Too large because of what people said: piece by piece.
    let session = client.create_session().await;
    for _ in 0..2 {
        session.run_turn(session.long_turn(20_000, "say Fine.")).await;
    }
    let seen = session.compact().await;
    assert_eq!(completed(&seen).method, "chunked");
    assert!(costs(&seen) > 1, "one request cannot read all of it");

    // Too large even for that: without its middle.
    for _ in 0..4 {
        session.run_turn(session.long_turn(40_000, "say Fine.")).await;
    }
    let seen = session.compact().await;
    assert_eq!((completed(&seen).method.as_str(), costs(&seen)), ("dropped_middle", 1));
    assert_eq!(text_of(&session.run("say Still here.").await), "Still here.");

    // And when nothing helps, people are told what does.
    put_summarizer(&client, "fail overflow").await;
    let seen = session.compact().await;
    let failed = seen.iter().find_map(|event| match &event.payload {
        Some(Payload::ContextCompactionFailed(failed)) => Some(failed.clone()),
        _ => None,
    });
    let failed = failed.unwrap();
    assert_eq!(failed.trigger, "manual");
    assert_eq!(failed.ways_out, ["switch_model", "fork", "rewind"]);
    match &seen.last().unwrap().payload {
        Some(Payload::TurnFailed(failed)) => {
            assert_eq!(failed.reason, "context_too_large");
            assert!(failed.message.contains("switch to a model"), "{}", failed.message);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(session.get().await.status(), Status::Error);
    // Which is not the end: nothing was lost, and the next message is answered.
    assert_eq!(text_of(&session.run("say As before.").await), "As before.");
    assert_eq!(session.get().await.status(), Status::Idle);
}

/// How many requests there were to pay for.
fn costs(events: &[Event]) -> usize {
    events.iter().filter(|event| event.r#type == "cost.recorded").count()
}
