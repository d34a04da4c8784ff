use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use local::Service;
use proto::{
    auth::v1::Scope,
    session::v1::{
        CreateKeyRequest, GetSessionRequest, GetSnapshotRequest, GetTurnRequest, ListEventsRequest,
        ListMessagesRequest, RevokeKeyRequest, SubmitTurnRequest, SubscribeRequest,
    },
};
use tests::{Client, Method, World, explain, methods, request_id, says};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

#[tokio::test]
async fn whoever_has_no_key_is_refused_everywhere() {
    let mut world = World::start().await;
    let strangers = [world.client_with(None), world.client_with(Some("wl_no_such_key"))];
    for method in methods() {
        for stranger in &strangers {
            let refused = stranger.call(&method).await.unwrap_err();
            assert_eq!(
                explain(&refused),
                "Unauthenticated REASON_UNAUTHENTICATED: \
                 the credential is missing, malformed, unknown, expired or revoked",
                "{}",
                method.name
            );
        }
    }
}

#[tokio::test]
async fn a_key_opens_what_its_scopes_say() {
    let mut world = World::start().await;
    let reader = world.client_who_may("acme", "read").await;
    for method in methods().into_iter().filter(|method| method.scope != Scope::Read) {
        let refused = reader.call(&method).await.unwrap_err();
        let scope = method.scope.name();
        assert_eq!(
            explain(&refused),
            format!(
                "PermissionDenied REASON_SCOPE_MISSING: the credential does not hold the scope {scope}"
            ),
            "{}",
            method.name
        );
    }
}

#[tokio::test]
async fn a_revoked_key_is_refused_by_all_services_within_seconds() {
    let mut world = World::start().await;
    let admin = world.client("acme").await;
    let request = CreateKeyRequest {
        name: "soon gone".into(),
        subject: "bob".into(),
        scopes: vec!["read".into()],
        expire_time: None,
    };
    let created = admin.keys().create_key(request).await.unwrap().into_inner();
    let client = world.client_with(Some(&created.secret));

    // One call to each service, so that all of them have read the key.
    let calls = Service::ALL.map(|service| {
        let reads = |method: &Method| method.service == service && method.scope == Scope::Read;
        methods().into_iter().find(|method| reads(method) && method.name.contains("/List")).unwrap()
    });
    for call in &calls {
        assert_ne!(code(client.call(call).await), Code::Unauthenticated, "{}", call.name);
    }
    let request = RevokeKeyRequest { key_id: created.key.unwrap().key_id };
    admin.keys().revoke_key(request).await.unwrap();

    let soon = Instant::now() + Duration::from_secs(30);
    for call in &calls {
        while code(client.call(call).await) != Code::Unauthenticated {
            assert!(Instant::now() < soon, "{} still takes the key", call.service);
            sleep(Duration::from_millis(200)).await;
        }
    }
}

#[tokio::test]
async fn another_tenants_session_does_not_exist() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    let turn_id = session.run("say Nobody else hears this.").await[0].turn_id.clone();
    let before = (session.log().await, session.messages().await);
    let stranger = world.client("rival").await;

    // An id as good as the real one: only the last letters differ.
    let nowhere = |id: &str| format!("{}{}", &id[..id.len() - 4], "0000");
    let (there, nobody) = (session.id.clone(), nowhere(&session.id));
    let foreign = knock(&stranger, &there, &turn_id).await;
    let unknown = knock(&stranger, &nobody, &nowhere(&turn_id)).await;
    for ((rpc, foreign), (_, unknown)) in foreign.iter().zip(&unknown) {
        assert_eq!(foreign.code(), Code::NotFound, "{rpc}");
        let unknown = shape(unknown).replace(&nobody, &there);
        let unknown = unknown.replace(&nowhere(&turn_id), &turn_id);
        assert_eq!(shape(foreign), unknown, "{rpc} tells a foreign session from none");
    }

    assert_eq!((session.log().await, session.messages().await), before);
}

/// Everything that takes the id of a session, tried on one.
async fn knock(client: &Client, id: &str, turn_id: &str) -> Vec<(&'static str, Status)> {
    let session_id = id.to_owned();
    let turn = SubmitTurnRequest {
        session_id: session_id.clone(),
        request_id: request_id(),
        parts: vec![says("Let me in.")],
        ..SubmitTurnRequest::default()
    };
    let get = GetSessionRequest { session_id: session_id.clone() };
    let snapshot = GetSnapshotRequest { session_id: session_id.clone(), turns: 0 };
    let messages =
        ListMessagesRequest { session_id: session_id.clone(), ..ListMessagesRequest::default() };
    let events =
        ListEventsRequest { session_id: session_id.clone(), ..ListEventsRequest::default() };
    let get_turn = GetTurnRequest { session_id: session_id.clone(), turn_id: turn_id.into() };
    let subscribe = SubscribeRequest { session_id, ..SubscribeRequest::default() };

    let mut sessions = client.sessions();
    vec![
        ("GetSession", sessions.get_session(get).await.unwrap_err()),
        ("GetSnapshot", sessions.get_snapshot(snapshot).await.unwrap_err()),
        ("ListMessages", sessions.list_messages(messages).await.unwrap_err()),
        ("ListEvents", sessions.list_events(events).await.unwrap_err()),
        ("SubmitTurn", client.turns().submit_turn(turn).await.unwrap_err()),
        ("GetTurn", client.turns().get_turn(get_turn).await.unwrap_err()),
        ("Subscribe", client.streams().subscribe(subscribe).await.unwrap_err()),
    ]
}

/// Everything a caller can read from a failure but the id of its own call.
fn shape(status: &Status) -> String {
    let mut details = status.get_error_details();
    let info = details.error_info().cloned().unwrap();
    let metadata = BTreeMap::from_iter(info.metadata);
    details.set_error_info("", "", HashMap::new());
    details.set_request_info("", "");
    format!("{} {metadata:?} {details:?}", explain(status))
}

fn code(result: Result<(), Status>) -> Code {
    result.err().map_or(Code::Ok, |status| status.code())
}
