use local::Service;
use proto::{
    event::v1::Payload,
    session::v1::{
        ForkSessionRequest, GetSessionRequest, ListSessionsRequest, UpdateSessionRequest,
        session::Status, subscribe_request::From,
    },
};
use tests::{Client, Session, World, explain, reason, request_id, text_of};

#[tokio::test]
async fn fork_and_sidecar() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    session.run("say One.\nusage input=100 output=10").await;
    session.run("say Two.\nusage input=200 output=20").await;
    session.run("say Hidden.\nusage input=400 output=40").await;
    let messages = session.messages().await;
    session.rewind(&messages[4].message_id).await.unwrap();
    let parent = session.get().await;
    assert_eq!((parent.input_tokens, parent.output_tokens), (700, 70));
    let log = session.log().await;

    // All that is visible, under new ids.
    let fork = session.fork("", false).await.unwrap();
    let shown = fork.get().await;
    assert_eq!(shown.title, "A scenario (copy)");
    assert_eq!((shown.status(), shown.agent.as_str()), (Status::Idle, "scripted"));
    assert_eq!(
        (&shown.parent_session_id, &shown.parent_message_id),
        (&session.id, &messages[3].message_id)
    );
    assert_eq!(shown.workspace_id, parent.workspace_id);
    assert_eq!((shown.input_tokens, shown.output_tokens), (300, 30));
    assert_eq!(fork.texts().await, session.texts().await);
    let copies = fork.messages().await;
    for (copy, message) in copies.iter().zip(&messages) {
        assert_ne!(copy.message_id, message.message_id);
        assert_eq!(
            (copy.role, &copy.usage, &copy.create_time),
            (message.role, &message.usage, &message.create_time)
        );
        assert_eq!(copy.session_id, fork.id);
    }
    assert_eq!(session.log().await, log, "its parent noticed");
    assert_eq!(session.get().await, parent);

    // A log of its own, that says where it came from.
    let own = fork.log().await;
    match own[0].payload.as_ref() {
        Some(Payload::SessionCreated(created)) => {
            assert_eq!(created.parent_session_id, session.id);
            assert_eq!(created.parent_message_id, messages[3].message_id);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        own.iter().map(|event| event.r#type.as_str()).collect::<Vec<_>>(),
        ["session.created", "thread.started"]
    );

    // The fork goes its own way, with what was said before in mind.
    let seen = fork.run("say Aside.").await;
    assert_eq!(text_of(&seen), "Aside.");
    let asked = seen.iter().find_map(|event| match &event.payload {
        Some(Payload::ModelRequested(requested)) => Some(requested.messages),
        _ => None,
    });
    assert_eq!(asked, Some(5), "the model does not see the copies");
    assert_eq!(fork.messages().await.len(), 6);
    assert_eq!(session.messages().await.len(), 4);

    a_sidecar_is_put_away(&session, &messages[1].message_id).await;
    nothing_is_forked_while_busy(&mut world, &session).await;
}

/// A side question: hidden from the list, inspected by who asks for it, and deleted.
async fn a_sidecar_is_put_away(session: &Session, message_id: &str) {
    let client = &session.client;
    let before = list(client, ListSessionsRequest::default()).await;
    let sidecar = session.fork(message_id, true).await.unwrap();
    assert!(sidecar.get().await.ephemeral);
    assert_eq!(sidecar.messages().await.len(), 2);
    sidecar.run("say Psst.").await;
    assert_eq!(list(client, ListSessionsRequest::default()).await, before);
    let everything = ListSessionsRequest { include_ephemeral: true, ..Default::default() };
    assert_eq!(list(client, everything.clone()).await[0], sidecar.id);
    let children = ListSessionsRequest { parent_session_id: session.id.clone(), ..everything };
    assert_eq!(list(client, children).await.len(), 2);

    sidecar.delete().await.unwrap();
    let request = GetSessionRequest { session_id: sidecar.id.clone() };
    let gone = client.sessions().get_session(request).await.unwrap_err();
    assert_eq!(
        explain(&gone),
        format!("NotFound REASON_SESSION_NOT_FOUND: session {} not found", sidecar.id)
    );
    sidecar.delete().await.unwrap();

    // A fork that somebody is done with can be put away like any other session.
    let fork = session.fork(message_id, false).await.unwrap();
    let request = UpdateSessionRequest {
        session_id: fork.id.clone(),
        title: Some("An idea".into()),
        archived: Some(true),
    };
    let updated =
        client.sessions().update_session(request).await.unwrap().into_inner().session.unwrap();
    assert_eq!((updated.title.as_str(), updated.archived), ("An idea", true));
    assert!(!list(client, ListSessionsRequest::default()).await.contains(&fork.id));
    let archived = ListSessionsRequest { include_archived: true, ..Default::default() };
    assert!(list(client, archived).await.contains(&fork.id));
}

async fn nothing_is_forked_while_busy(world: &mut World, session: &Session) {
    world.fleet.get(Service::Models).pause().unwrap();
    let mut events = session.subscribe(From::Live(true)).await;
    let turn = session.submit("say Busy.").await;
    let before = list(&session.client, ListSessionsRequest::default()).await;
    let message_id = session.messages().await[0].message_id.clone();
    for refused in [
        session.fork("", true).await.map(drop),
        session.delete().await,
        session.rewind(&message_id).await.map(drop),
    ] {
        assert_eq!(
            explain(&refused.unwrap_err()),
            format!(
                "FailedPrecondition REASON_SESSION_BUSY: session {} is not at rest: a turn runs or waits",
                session.id
            )
        );
    }
    assert_eq!(list(&session.client, ListSessionsRequest::default()).await, before);
    world.fleet.get(Service::Models).resume().unwrap();
    events.until_ended(&turn.turn_id).await;

    // A repeated call returns the same fork, and the same id for another is refused.
    let request = ForkSessionRequest {
        request_id: request_id(),
        session_id: session.id.clone(),
        ..ForkSessionRequest::default()
    };
    let mut sessions = session.client.sessions();
    let first = sessions.fork_session(request.clone()).await.unwrap().into_inner();
    let again = sessions.fork_session(request.clone()).await.unwrap().into_inner();
    assert_eq!(first, again);
    let other = ForkSessionRequest { ephemeral: true, ..request };
    assert_eq!(
        reason(&sessions.fork_session(other).await.unwrap_err()),
        "REASON_REQUEST_ID_REUSED"
    );
}

async fn list(client: &Client, request: ListSessionsRequest) -> Vec<String> {
    let response = client.sessions().list_sessions(request).await.unwrap().into_inner();
    response.sessions.into_iter().map(|session| session.session_id).collect()
}
