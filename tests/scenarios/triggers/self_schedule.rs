use local::Service;
use proto::{
    session::v1::{DeleteSessionRequest, Manifest, message::Role, part::Content},
    tools::v1::{Permissions, permissions::Mode},
    triggers::v1::{ListTriggersRequest, Trigger},
};
use serde_json::{Value, json};
use tests::{Client, Session, World};

use super::{Clock, settled, until};

async fn wakeups(client: &Client, session: &Session) -> Vec<Trigger> {
    let request =
        ListTriggersRequest { session_id: session.id.clone(), ..ListTriggersRequest::default() };
    client.triggers().list_triggers(request).await.unwrap().into_inner().triggers
}

/// What the last call of a tool answered.
async fn call(session: &Session, tool: &str, input: Value) -> Result<Value, String> {
    session.run(&format!("call {tool} {input}\n---\nsay Noted.")).await;
    let parts = session.messages().await.into_iter().flat_map(|message| message.parts);
    let mut called = parts.filter_map(|part| match part.content {
        Some(Content::Tool(called)) if called.tool == tool => Some(called),
        _ => None,
    });
    let called = called.next_back().unwrap();
    match called.state.as_str() {
        "output-available" => Ok(serde_json::from_str(&called.output_json).unwrap()),
        _ => Err(called.error_text),
    }
}

#[tokio::test]
async fn self_schedule() {
    let clock = Clock::at("2026-05-01T08:00:00Z");
    let plan = clock.plan().env_of(Service::Triggers, "MAX_WAKEUPS", "3");
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let manifest = Manifest {
        prompt: "You do what scripts say.".into(),
        model: "scripted/demo".into(),
        permissions: Some(Permissions { mode: Mode::Auto.into(), ..Permissions::default() }),
        ..Manifest::default()
    };
    client.put_manifest("worker", manifest).await;
    let session = client.create_session_with("worker").await;

    // After a delay, at a time, and by a pattern.
    let message = "Look again. {{ not a template }}\n#!script\nsay I looked.";
    let delayed = json!({ "message": message, "delay_seconds": 600 });
    let delayed = call(&session, "request_wakeup", delayed).await.unwrap();
    assert_eq!(delayed["next_fire_time"], "2026-05-01T08:10:00Z");
    let at = json!({ "message": "Later.", "at": "2026-05-02T08:00:00Z" });
    let at = call(&session, "request_wakeup", at).await.unwrap();
    let cron = json!({ "message": "Daily.", "cron": "0 9 * * *", "time_zone": "Europe/Berlin" });
    let cron = call(&session, "request_wakeup", cron).await.unwrap();
    assert_eq!(cron["next_fire_time"], "2026-05-02T07:00:00Z");
    let listed = wakeups(&client, &session).await;
    assert_eq!(listed.len(), 3);
    assert!(listed.iter().all(|wakeup| wakeup.source == "self_schedule"));

    // No more than so many, and none beyond the horizon; the agent reads why and goes on.
    let more = json!({ "message": "More.", "delay_seconds": 60 });
    let refused = call(&session, "request_wakeup", more.clone()).await.unwrap_err();
    assert!(refused.contains("has 3 wake-ups"), "{refused}");
    let id = json!({ "wakeup_id": at["wakeup_id"] });
    assert_eq!(call(&session, "cancel_wakeup", id.clone()).await.unwrap()["cancelled"], true);
    assert!(call(&session, "cancel_wakeup", id).await.unwrap_err().contains("no wake-up"));
    let far = json!({ "message": "Far.", "at": "2026-05-08T08:00:01Z" });
    let refused = call(&session, "request_wakeup", far).await.unwrap_err();
    assert!(refused.contains("beyond the horizon of 7 days"), "{refused}");
    let rare = json!({ "message": "Rare.", "cron": "0 0 1 1 *" });
    let refused = call(&session, "request_wakeup", rare).await.unwrap_err();
    assert!(refused.contains("beyond the horizon"), "{refused}");
    for wrong in [
        json!({ "message": "Both.", "delay_seconds": 60, "cron": "* * * * *" }),
        json!({ "message": "Never.", "cron": "0 0 30 2 *" }),
        json!({ "message": "Past.", "at": "2026-04-01T00:00:00Z" }),
        json!({ "message": "No pattern.", "cron": "every day" }),
    ] {
        call(&session, "request_wakeup", wrong.clone()).await.expect_err(&wrong.to_string());
    }

    // It comes when it should, in the agent's own words, and once.
    clock.advance(600);
    let wakeup = Trigger {
        trigger_id: delayed["wakeup_id"].as_str().unwrap().to_owned(),
        ..Trigger::default()
    };
    let firing = settled(&client, &wakeup, 1).await.remove(0);
    let asked = until("the turn", async || {
        let messages = session.messages().await;
        messages
            .into_iter()
            .find(|message| message.turn_id == firing.turn_id && message.role() == Role::User)
    })
    .await;
    let metadata: Value = serde_json::from_str(&asked.metadata_json).unwrap();
    assert_eq!(metadata["trigger"]["source"], "self_schedule");
    assert_eq!(metadata["trigger"]["schedule_id"], delayed["wakeup_id"]);
    assert!(matches!(&asked.parts[0].content, Some(Content::Text(text)) if text.text == message));

    // What has fired counts no more.
    until("the end of the turn", async || {
        let turn = session.get_turn(&firing.turn_id).await;
        (turn.status().as_str_name() == "STATUS_COMPLETED").then_some(())
    })
    .await;
    call(&session, "request_wakeup", more).await.unwrap();

    // Whoever deletes the session deletes them, also when the triggers service is away just then.
    world.fleet.get(Service::Triggers).kill().await.unwrap();
    let request = DeleteSessionRequest { session_id: session.id.clone() };
    client.sessions().delete_session(request).await.unwrap();
    world.fleet.get(Service::Triggers).restart().await.unwrap();
    until("the end of all wake-ups", async || {
        wakeups(&client, &session).await.is_empty().then_some(())
    })
    .await;
}
