use proto::{
    event::v1::{Event, Payload},
    session::v1::subscribe_request::From,
    tools::v1::rule::Action,
};
use tests::World;

use super::{create, dormant, run, settled};

fn endings(events: &[Event]) -> Vec<&str> {
    let ended = |event: &&Event| {
        matches!(event.payload, Some(Payload::ToolResult(_) | Payload::ToolFailed(_)))
    };
    events.iter().filter(ended).map(|event| event.r#type.as_str()).collect()
}

#[tokio::test]
async fn triggered_turns_are_headless() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    client.put_agent_that("careful", Action::Ask).await;

    // What a person would be asked is denied, a question fails, and the turn goes on.
    let question = r#"call question {"questions": [{"prompt": "Which?"}]}"#;
    let bash = r#"call bash {"command": "echo hello"}"#;
    let cases = [
        ("careful", bash, "", "tool.failed"),
        ("careful", question, "", "tool.failed"),
        ("scripted", bash, "", "tool.result"),
        // The watchdog runs: what is allowed to the agent is not allowed to a turn in plan mode.
        ("scripted", r#"call bash {"command": "touch made"}"#, "plan", "tool.failed"),
        ("scripted", r#"call bash {"command": "touch made"}"#, "", "tool.result"),
    ];
    for (agent, call, mode, ending) in cases {
        let session = client.create_session_with(agent).await;
        let mut events = session.subscribe(From::Live(true)).await;
        let mut trigger = dormant(&session, &format!("{call}\n---\nsay Went on."));
        trigger.mode = mode.into();
        let trigger = create(&client, trigger).await;
        run(&client, &trigger, "").await;
        let turn_id = settled(&client, &trigger, 1).await.remove(0).turn_id;
        let seen = events.until_ended(&turn_id).await;
        assert_eq!(endings(&seen), [ending], "{agent} {call} {mode}");
        assert!(seen.iter().all(|event| event.action_id.is_empty()), "somebody was asked");
        assert_eq!(seen.last().unwrap().r#type, "turn.completed");
        let judged = seen.iter().filter(|event| event.r#type == "permission.evaluated").count();
        assert_eq!(judged, 1, "nobody looked at {call}");
    }
}
