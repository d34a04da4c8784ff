use std::sync::{Arc, Mutex};

use axum::{Json, Router, extract::State, http::HeaderMap, routing::post};
use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    session::v1::{part, respond_action_request::Decision, subscribe_request::From},
    tools::v1::{
        Hook, ReadOutputRequest, hook::Target, output_service_client::OutputServiceClient,
    },
};
use serde_json::{Value, json};
use tests::{Client, Session, World};
use tokio::net::TcpListener;

/// Somebody who has an opinion about commands, and remembers what it was asked.
#[derive(Clone, Default)]
struct Guard(Arc<Mutex<Vec<Value>>>);

impl Guard {
    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/rewrites", post(rewrite))
            .route("/blocks", post(block))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        format!("http://{address}")
    }

    fn heard(&self) -> Vec<Value> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

async fn rewrite(
    State(guard): State<Guard>,
    headers: HeaderMap,
    Json(event): Json<Value>,
) -> Json<Value> {
    assert!(headers["webhook-signature"].to_str().unwrap().starts_with("v1,"));
    guard.0.lock().unwrap().push(event.clone());
    let command = event["input"]["command"].as_str().unwrap();
    match command.contains("before") {
        true => Json(json!({
            "decision": "rewrite",
            "reason": "before is now after",
            "updated_input": { "command": command.replace("before", "after") },
        })),
        false => Json(json!({})),
    }
}

async fn block(State(guard): State<Guard>, Json(event): Json<Value>) -> Json<Value> {
    guard.0.lock().unwrap().push(event.clone());
    match event["input"]["command"].as_str().unwrap().contains("forbidden") {
        true => Json(json!({ "decision": "block", "reason": "nobody may do that" })),
        false => Json(json!({})),
    }
}

#[tokio::test]
async fn hook_input_rewrite() {
    let plan = Fleet::plan().env_of(Service::Tools, "EGRESS_ALLOW_PRIVATE", "127.0.0.1").env_of(
        Service::Tools,
        "HOOK_SECRET",
        "a secret between the guard and us",
    );
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let guard = Guard::default();
    let address = guard.start().await;
    put_hook(&client, "first", 1, format!("{address}/rewrites")).await;
    put_hook(&client, "second", 2, format!("{address}/blocks")).await;

    // One hook rewrites the input, and that is what runs.
    let session = client.create_session().await;
    let script = r#"call bash {"command": "echo before"}
---
say Well."#;
    let (seen, view) = session.run_and_view(script).await;
    assert_eq!(
        names(&seen),
        [
            "tool.started",
            "tool.args",
            "hook.started",
            "hook.completed",
            "hook.started",
            "hook.completed",
            "permission.evaluated",
            "tool.args",
            "sandbox.applied",
            "tool.progress",
            "tool.result",
        ]
    );
    let rewritten = completed(&seen, "first");
    assert_eq!(rewritten.0.outcome, "rewrite");
    assert_eq!(rewritten.0.updated_input_json, r#"{"command":"echo after"}"#);
    let output_ref = rewritten.1.refs["updatedInputRef"].clone();
    let mut outputs = OutputServiceClient::new(client.to(Service::Tools));
    let request = ReadOutputRequest { output_ref, ..ReadOutputRequest::default() };
    let stored = outputs.read_output(request).await.unwrap().into_inner();
    assert_eq!(stored.data, rewritten.0.updated_input_json.as_bytes());
    let call = tool_use(&session).await;
    assert_eq!(call.input_json, rewritten.0.updated_input_json);
    assert!(call.output_json.contains("after"), "{call:?}");
    let heard = guard.heard();
    assert_eq!(heard[0]["input"], json!({ "command": "echo before" }));
    assert_eq!(heard[1]["input"], json!({ "command": "echo after" }));
    for event in &heard {
        assert_eq!(event["session_id"], session.id);
        assert_eq!(event["turn_id"], seen[0].turn_id);
    }
    let outcomes: Vec<_> = view.hook_runs.iter().map(|run| run.outcome.as_str()).collect();
    assert_eq!(outcomes, ["rewrite", "continue"]);

    // The other blocks, and nothing runs; the result and the read model say who and why.
    let forbidden = script.replace("before", "forbidden");
    let (seen, view) = session.run_and_view(&forbidden).await;
    assert_eq!(completed(&seen, "second").0.outcome, "block");
    assert_eq!(completed(&seen, "second").0.reason, "nobody may do that");
    assert!(!names(&seen).contains(&"sandbox.applied"), "it ran");
    let state = view.permission_state.unwrap();
    assert_eq!((state.decision.as_str(), state.cause.as_str()), ("deny", "hook"));
    let call = tool_use(&session).await;
    assert_eq!(call.error_text, "the hook second blocks it: nobody may do that");
    let failed = seen.iter().find_map(|event| match &event.payload {
        Some(Payload::ToolFailed(failed)) => Some(failed),
        _ => None,
    });
    assert_eq!(failed.unwrap().error_text, call.error_text);
    let outcomes: Vec<_> = view.hook_runs.iter().map(|run| run.outcome.as_str()).collect();
    assert_eq!(outcomes, ["continue", "block"]);

    // What a person is shown is what the hook wrote, and what the person approves is what runs.
    guard.heard();
    let careful = client.create_careful_session().await;
    let action = careful.asks(script).await;
    assert_eq!(action.request.as_ref().unwrap().input_json, r#"{"command":"echo after"}"#);
    let mut events = careful.subscribe(From::Live(true)).await;
    careful.respond(&action, Decision::Once).await.unwrap();
    events.until_ended(&action.turn_id).await;
    assert!(tool_use(&careful).await.output_json.contains("after"));
    assert_eq!(guard.heard().len(), 2, "nobody is asked again about what a person approved");
}

async fn put_hook(client: &Client, id: &str, order: i32, url: String) {
    let hook = Hook {
        hook_id: id.into(),
        event: "pre_tool_use".into(),
        tools: "bash".into(),
        target: Some(Target::Url(url)),
        order,
        ..Hook::default()
    };
    client.put_hook(hook).await;
}

/// What happened to the call, in order.
fn names(events: &[Event]) -> Vec<&str> {
    let of_call = events.iter().filter(|event| !event.tool_call_id.is_empty());
    of_call.map(|event| event.r#type.as_str()).collect()
}

fn completed<'a>(
    events: &'a [Event],
    hook_id: &str,
) -> (&'a proto::event::v1::HookCompleted, &'a Event) {
    let mut completed = events.iter().filter_map(|event| match &event.payload {
        Some(Payload::HookCompleted(hook)) if hook.hook_id == hook_id => Some((hook, event)),
        _ => None,
    });
    completed.next().unwrap()
}

/// The last tool call of a session, as people see it.
async fn tool_use(session: &Session) -> part::ToolUse {
    let messages = session.messages().await;
    let parts = messages.into_iter().flat_map(|message| message.parts);
    let calls = parts.filter_map(|part| match part.content {
        Some(part::Content::Tool(tool_use)) => Some(tool_use),
        _ => None,
    });
    calls.last().unwrap()
}
