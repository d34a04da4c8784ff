use std::fs;

use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    session::v1::{InputPart, Manifest, TurnView, input_part::Content, part::File},
    tools::v1::Permissions,
};
use tests::{Client, Session, World, text_of};

/// The smallest picture there is.
const PIXEL: &[u8] = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89\x00\x00\x00\nIDATx\x9cc\x00\x01\x00\x00\x05\x00\x01\r\n-\xb4\x00\x00\x00\x00IEND\xaeB`\x82";

async fn last_turn(session: &Session) -> TurnView {
    let snapshot = session.snapshot().await.snapshot.unwrap();
    snapshot.threads[0].turns.last().unwrap().clone()
}

/// A session whose agent names no model, and has one tool, so that the smallest will do.
async fn routed(client: &Client) -> Session {
    let permissions = Permissions { tools: vec!["bash".into()], ..Permissions::default() };
    let manifest = Manifest {
        prompt: "You do what scripts say.".into(),
        permissions: Some(permissions),
        ..Manifest::default()
    };
    client.put_manifest("routed", manifest).await;
    client.create_session_with("routed").await
}

fn find<T>(events: &[Event], wanted: impl Fn(&Payload) -> Option<T>) -> Option<T> {
    events.iter().find_map(|event| wanted(event.payload.as_ref()?))
}

#[tokio::test]
async fn model_routing_single_candidate() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("catalogue.json");
    let tenants = r#""tenants": {"frugal": {"deny": ["scripted/demo"]}, "barred": {"deny": ["*"]}}, "models""#;
    let catalogue = include_str!("../../services/models/catalogue.json");
    fs::write(&path, catalogue.replacen("\"models\"", tenants, 1)).unwrap();
    let plan = Fleet::plan().env_of(Service::Models, "CATALOGUE", path.to_string_lossy());
    let mut world = World::planned(plan).await;

    // Somebody names a model that cannot see, and shows it a picture.
    let client = world.client("acme").await;
    let session = client.create_session_on("scripted/small").await;
    let mut turn = session.turn("say I see nothing.");
    turn.parts.push(InputPart {
        content: Some(Content::File(File {
            name: "pixel.png".into(),
            media_type: "image/png".into(),
            data: PIXEL.to_vec(),
            ..File::default()
        })),
    });
    let seen = session.run_turn(turn).await;
    assert_eq!(text_of(&seen), "I see nothing.");
    let single = find(&seen, |payload| match payload {
        Payload::RoutingSingleCandidate(single) => Some(single.clone()),
        _ => None,
    });
    let single = single.expect("there was a choice");
    assert_eq!((single.provider.as_str(), single.model.as_str()), ("scripted", "small"));
    assert_eq!(single.reason, "scripted/small was asked for");
    assert_eq!(single.capability_gap, ["images"]);

    // The read model says all of it without the log.
    let view = last_turn(&session).await;
    let candidates = view.candidate_model_set.unwrap();
    assert_eq!((candidates.candidates.len(), candidates.excluded.len()), (1, 1));
    assert_eq!(candidates.excluded[0].reason, "not_requested");
    let decision = view.routing_decision.unwrap();
    assert_eq!((decision.candidates, decision.reason), (1, single.reason));
    assert_eq!(decision.capability_gap, ["images"]);
    assert!(decision.fallbacks.is_empty());
    let cost = view.cost_state.unwrap();
    assert!(cost.cost_micros > 0 && cost.model_calls == 1, "{cost:?}");
    assert_eq!(view.limit_state.unwrap().status, "ok");

    // Nobody names a model, and a policy leaves one.
    let client = world.client("frugal").await;
    let session = routed(&client).await;
    let seen = session.run("say The only one.").await;
    assert_eq!(text_of(&seen), "The only one.");
    let view = last_turn(&session).await;
    let excluded = view.candidate_model_set.unwrap().excluded;
    assert_eq!((excluded[0].model.as_str(), excluded[0].reason.as_str()), ("demo", "policy"));
    let decision = view.routing_decision.unwrap();
    assert_eq!((decision.model.as_str(), decision.candidates), ("small", 1));
    assert!(decision.capability_gap.is_empty());

    // Or none, which is a fact too, and the end of the turn.
    let client = world.client("barred").await;
    let session = routed(&client).await;
    let seen = session.run("say Never.").await;
    let excluded = find(&seen, |payload| match payload {
        Payload::RoutingNotPossible(not_possible) => Some(not_possible.excluded.clone()),
        _ => None,
    });
    assert!(excluded.unwrap().iter().all(|one| one.reason == "policy"));
    assert!(matches!(seen.last().unwrap().payload, Some(Payload::TurnFailed(_))));
    let view = last_turn(&session).await;
    assert_eq!((view.routing_decision, view.cost_state), (None, None));
}
