use proto::{
    session::v1::{Message, message::Role, subscribe_request::From},
    triggers::v1::RedeliverFiringRequest,
};
use serde_json::Value;
use tests::{Session, World, request_id};

use super::{create, dormant, run, settled};

/// What the message of a turn says about what fired it.
async fn trigger_of(session: &Session, turn_id: &str) -> Value {
    let asks = |message: &Message| message.turn_id == turn_id && message.role() == Role::User;
    let message = session.messages().await.into_iter().find(asks).unwrap();
    let metadata: Value = serde_json::from_str(&message.metadata_json).unwrap();
    metadata["trigger"].clone()
}

#[tokio::test]
async fn trigger_envelope() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let mut events = session.subscribe(From::Live(true)).await;

    // Somebody talks to the agent, and somebody else waits already.
    let first = session.submit("delay 2s\nsay I was here first.").await;
    let second = session.submit("say I waited.").await;
    let trigger = create(&client, dormant(&session, "say {{ payload.word }}")).await;
    let firing = run(&client, &trigger, r#"{"word": "Fired."}"#).await;
    let firing = match firing.status.as_str() {
        "pending" => settled(&client, &trigger, 1).await.remove(0),
        _ => firing,
    };
    assert_eq!((firing.status.as_str(), &firing.session_id), ("submitted", &session.id));

    // It is a user message with its envelope, and waits behind those who came before.
    let told = trigger_of(&session, &firing.turn_id).await;
    assert_eq!(told["source"], "schedule");
    assert_eq!(told["schedule_id"], trigger.trigger_id.as_str());
    assert_eq!(told["delivery_id"], firing.delivery_id.as_str());
    assert_eq!(told["auth_subject"], "ann");
    let fired = firing.fire_time.unwrap();
    assert_eq!(told["fired_at"], fired.seconds * 1000 + i64::from(fired.nanos) / 1_000_000);
    assert_eq!(told.get("headers"), None, "nobody sent any");
    let seen = events.until_ended(&firing.turn_id).await;
    let ended = seen.iter().filter(|event| event.r#type == "turn.completed");
    let ended: Vec<&str> = ended.map(|event| event.turn_id.as_str()).collect();
    assert_eq!(ended, [&first.turn_id, &second.turn_id, &firing.turn_id]);
    assert!(tests::text_of(&seen).ends_with("Fired."));

    // What was fired can be fired again, with the same payload, as a new turn.
    let again =
        RedeliverFiringRequest { firing_id: firing.firing_id.clone(), request_id: request_id() };
    let redelivered = client.triggers().redeliver_firing(again.clone()).await.unwrap();
    let redelivered = redelivered.into_inner().firing.unwrap();
    assert_ne!(redelivered.firing_id, firing.firing_id);
    let repeated = client.triggers().redeliver_firing(again).await.unwrap().into_inner();
    assert_eq!(repeated.firing.unwrap().firing_id, redelivered.firing_id);
    let both = settled(&client, &trigger, 2).await;
    let seen = events.until_ended(&both[1].turn_id).await;
    assert!(tests::text_of(&seen).ends_with("Fired."));
}
