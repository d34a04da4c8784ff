use local::Service;
use proto::session::v1::{
    SubscribeRequest, message::Role, stream_service_client::StreamServiceClient,
    subscribe_request::From,
};
use tests::{Fold, World};
use tokio::sync::mpsc;
use tonic::{Request, transport::Endpoint};

const SCRIPT: &str = r#"pace 20ms
think Let me think about it for a while.
say This takes its time, and then some more of it.
call bash {"command": "echo found"}
---
pace 20ms
say It is done, whoever listened."#;

#[tokio::test]
async fn abort_is_not_disconnect() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    let key = world.fleet.mint_key("acme", "ann", "read").await.unwrap();

    // One reader closes its stream. Another one has all its threads and sockets taken away.
    let mut reader = session.subscribe(From::Live(true)).await;
    let client =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut request = Request::new(SubscribeRequest {
        session_id: session.id.clone(),
        from: Some(From::FromStart(true)),
        ..SubscribeRequest::default()
    });
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    let endpoint = Endpoint::from_shared(world.fleet.endpoint(Service::Session)).unwrap();
    let (reads, mut has_read) = mpsc::channel(1);
    client.spawn(async move {
        let mut streams = StreamServiceClient::new(endpoint.connect().await.unwrap());
        let mut stream = streams.subscribe(request).await.unwrap().into_inner();
        while let Ok(Some(_)) = stream.message().await {
            let _ = reads.try_send(());
        }
    });
    has_read.recv().await.expect("the client reads nothing");

    let turn = session.submit(SCRIPT).await;
    reader.until(|event| event.r#type == "reasoning.delta").await;
    client.shutdown_background();
    reader.until(|event| event.r#type == "model.delta").await;
    drop(reader);

    // Nobody listens, and the turn goes on to its end.
    let log = session
        .eventually(async || {
            let ended = session.get().await.active_turn_id.is_empty();
            if ended { Some(session.log().await) } else { None }
        })
        .await;
    assert_eq!(log.last().unwrap().r#type, "turn.completed");
    assert_eq!(log.last().unwrap().turn_id, turn.turn_id);

    // From the beginning it is exactly what the database holds.
    let mut again = session.subscribe(From::FromStart(true)).await;
    let seen = again.until_ended(&turn.turn_id).await;
    assert_eq!(seen, log);
    let rebuilt = Fold::of(&seen).messages.into_iter();
    let mut rebuilt = rebuilt.filter(|message| message.role() == Role::Assistant);
    let stored = session.messages().await.into_iter();
    for message in stored.filter(|message| message.role() == Role::Assistant) {
        let mut rebuilt = rebuilt.next().unwrap();
        rebuilt.create_time = message.create_time;
        for (part, stored) in rebuilt.parts.iter_mut().zip(&message.parts) {
            part.part_id = stored.part_id.clone();
        }
        assert_eq!(rebuilt, message);
    }
    assert_eq!(rebuilt.next(), None);

    // Only an interrupt stops a turn.
    let mut reader = session.subscribe(From::Live(true)).await;
    let turn = session.submit("say Still here.\nhang").await;
    reader.until(|event| event.r#type == "model.delta").await;
    drop(reader);
    assert_eq!(session.get().await.active_turn_id, turn.turn_id);
    let mut reader = session.subscribe(From::Live(true)).await;
    session.interrupt("").await;
    let seen = reader.until_ended(&turn.turn_id).await;
    assert_eq!(seen.last().unwrap().r#type, "turn.failed");
}
