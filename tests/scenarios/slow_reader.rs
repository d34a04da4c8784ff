use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    session::v1::{
        SubscribeRequest, stream_service_client::StreamServiceClient, subscribe_request::From,
        subscribe_response::Item,
    },
};
use tests::{World, reason};
use tonic::{Request, transport::Endpoint};
use tonic_types::StatusExt as _;

/// As much as a model says in one turn.
const MUCH: &str = "repeat 80000 \"0123456789 \"";

/// In so many turns it says more than the server and the transport hold for somebody who does not
/// read.
const TURNS: usize = 20;

#[tokio::test]
async fn a_reader_that_does_not_read_is_dropped_and_can_go_on() {
    let plan = Fleet::plan().env_of(Service::Session, "READER_PATIENCE", "0.5");
    let mut world = World::planned(plan).await;
    let session = world.client("acme").await.create_session().await;
    let key = world.fleet.mint_key("acme", "slow", "read").await.unwrap();

    // One that takes little at a time, and then nothing.
    let endpoint = Endpoint::from_shared(world.fleet.endpoint(Service::Session)).unwrap();
    let channel = endpoint
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535)
        .connect()
        .await
        .unwrap();
    let mut request = Request::new(SubscribeRequest {
        session_id: session.id.clone(),
        from: Some(From::FromStart(true)),
        channel: "slow".into(),
        ..SubscribeRequest::default()
    });
    let bearer = format!("Bearer {key}").parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    let mut slow = StreamServiceClient::new(channel).subscribe(request).await.unwrap().into_inner();
    assert!(matches!(slow.message().await.unwrap().unwrap().item, Some(Item::Snapshot(_))));

    // The turns do not wait for it.
    let mut others = session.subscribe(From::Live(true)).await;
    let is_gone = |event: &Event| event.r#type == "channel.disconnected";
    let mut facts = Vec::new();
    for _ in 0..TURNS {
        let turn = session.submit(MUCH).await;
        facts.extend(others.until_ended(&turn.turn_id).await);
        let last = facts.iter().rfind(|event| event.turn_id == turn.turn_id);
        assert_eq!(last.unwrap().r#type, "turn.completed");
    }
    if !facts.iter().any(is_gone) {
        facts.extend(others.until(is_gone).await);
    }
    match &facts.iter().find(|event| is_gone(event)).unwrap().payload {
        Some(Payload::ChannelDisconnected(said)) => assert_eq!(said.reason, "too_slow"),
        other => panic!("{other:?}"),
    }

    // What was under way still arrives, and then it is told where to go on.
    let mut sequences = Vec::new();
    let error = loop {
        match slow.message().await {
            Ok(Some(response)) => match response.item {
                Some(Item::Event(event)) => sequences.push(event.sequence),
                other => panic!("{other:?}"),
            },
            Ok(None) => panic!("it ended without saying why"),
            Err(error) => break error,
        }
    };
    assert_eq!(reason(&error), "REASON_READER_TOO_SLOW");
    let last = *sequences.last().unwrap();
    let info = error.get_details_error_info().unwrap();
    assert_eq!(info.metadata["last_sequence"], last.to_string());
    assert_eq!(sequences, (1..=last).collect::<Vec<_>>());

    let log = session.log().await;
    let mut rest = session.subscribe(From::AfterSequence(last)).await;
    for stored in &log[last as usize..] {
        assert_eq!(rest.next().await.unwrap(), *stored);
    }
}
