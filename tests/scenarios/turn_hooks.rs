use std::sync::{Arc, Mutex};

use axum::{Json, Router, extract::State, routing::post};
use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    tools::v1::{Hook, hook::Target},
};
use serde_json::{Value, json};
use tests::{Client, World};
use tokio::net::TcpListener;

/// Remembers what it was told, and reacts to what is said.
#[derive(Clone, Default)]
pub struct Listener(Arc<Mutex<Vec<Value>>>);

impl Listener {
    pub async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", post(answer)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        format!("http://{address}/")
    }

    /// The events it heard of since the last time.
    pub fn heard(&self) -> Vec<String> {
        let heard = std::mem::take(&mut *self.0.lock().unwrap());
        heard.iter().map(|event| event["event"].as_str().unwrap().to_owned()).collect()
    }
}

async fn answer(State(listener): State<Listener>, Json(event): Json<Value>) -> Json<Value> {
    listener.0.lock().unwrap().push(event.clone());
    let says = |field: &str, word: &str| event[field].as_str().unwrap().contains(word);
    Json(match event["event"].as_str().unwrap() {
        "session_start" => json!({ "context": "The sky is green." }),
        "user_prompt_submit" if says("prompt", "password") => {
            json!({ "decision": "block", "reason": "no passwords" })
        }
        "stop" if says("message", "halfway") => {
            json!({ "decision": "block", "reason": "do the other half" })
        }
        "stop" if says("message", "never") => json!({ "decision": "block", "reason": "more" }),
        _ => json!({}),
    })
}

#[tokio::test]
async fn hooks_have_a_say_about_turns() {
    let plan = Fleet::plan().env_of(Service::Tools, "EGRESS_ALLOW_PRIVATE", "127.0.0.1");
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let listener = Listener::default();
    let url = listener.start().await;
    for event in ["session_start", "user_prompt_submit", "stop"] {
        put_hook(&client, event, &url).await;
    }

    // A message that is blocked ends its turn, and no model sees it, now or later.
    let session = client.create_session().await;
    let seen = session.run("say my password is swordfish").await;
    assert_eq!(listener.heard(), ["session_start", "user_prompt_submit"]);
    let Some(Payload::TurnFailed(failed)) = &seen.last().unwrap().payload else { panic!() };
    assert_eq!(failed.reason, "hook");
    assert_eq!(failed.message, "the hook user-prompt-submit blocks it: no passwords");
    assert!(!seen.iter().any(|event| event.r#type == "model.requested"));
    let seen = session.run("say fine").await;
    assert_eq!(listener.heard(), ["user_prompt_submit", "stop"]);
    let resolved = seen.iter().find_map(|event| match &event.payload {
        Some(Payload::ContextResolved(resolved)) => Some(resolved.messages),
        _ => None,
    });
    assert_eq!(resolved, Some(2), "what the hook said, and what the user says now");

    // What a hook adds is what the model reads.
    let session = client.create_session().await;
    let seen = session.run("say I hear: {{user}}").await;
    assert!(said(&seen).contains("The sky is green."), "{}", said(&seen));
    assert_eq!(listener.heard(), ["session_start", "user_prompt_submit", "stop"]);

    // A hook sends the model on, and only so often.
    let seen = session.run("say halfway\n---\nsay {{user}}").await;
    assert_eq!(listener.heard(), ["user_prompt_submit", "stop", "stop"]);
    assert!(said(&seen).contains("do the other half"), "{}", said(&seen));
    assert_eq!(seen.last().unwrap().r#type, "turn.completed");
    let never = ["say never"; 9].join("\n---\n");
    let seen = session.run(&never).await;
    assert_eq!(seen.last().unwrap().r#type, "turn.completed");
    assert_eq!(listener.heard(), ["user_prompt_submit", "stop", "stop", "stop"]);
    let steps = seen.iter().filter(|event| event.r#type == "model.completed").count();
    assert_eq!(steps, 4);
    for event in seen.iter().filter(|event| event.r#type.starts_with("hook.")) {
        assert!(!event.turn_id.is_empty() && !event.thread_id.is_empty(), "{event:?}");
    }
}

fn said(events: &[Event]) -> String {
    let texts = events.iter().filter_map(|event| match &event.payload {
        Some(Payload::ModelDelta(delta)) => Some(delta.text.as_str()),
        _ => None,
    });
    texts.collect()
}

pub async fn put_hook(client: &Client, event: &str, url: &str) {
    let hook = Hook {
        hook_id: event.replace('_', "-"),
        event: event.into(),
        target: Some(Target::Url(url.into())),
        ..Hook::default()
    };
    client.put_hook(hook).await;
}
