use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    session::v1::{ListEventsRequest, ListEventsResponse, subscribe_request::From},
};
use tests::{Session, World, reason, text_of};
use tonic::Status;
use tonic_types::StatusExt as _;

#[tokio::test]
async fn a_cursor_whose_events_were_removed_gets_a_snapshot_and_what_is_left() {
    let plan = Fleet::plan().env_of(Service::Session, "SWEEP", "0.2").env_of(
        Service::Session,
        "LOG_RETENTION",
        "0.2",
    );
    let mut world = World::planned(plan).await;
    let session = world.client("acme").await.create_session().await;
    let last = session.run("say One.").await.last().unwrap().sequence;
    let expired = session.eventually(async || list(&session, 1).await.err()).await;
    assert_eq!(reason(&expired), "REASON_CURSOR_EXPIRED");
    let info = expired.get_details_error_info().unwrap();
    assert_eq!(info.metadata["after_sequence"], "1");
    assert_eq!(info.metadata["first_sequence"], (last + 1).to_string());
    assert_eq!(list(&session, last).await.unwrap().events, []);

    // The conversation is all there, and so is the proof that nothing else was removed.
    assert_eq!(session.messages().await.len(), 2);
    let verified = session.verify().await;
    assert!(verified.intact, "{verified:?}");
    assert_eq!(verified.first_sequence, last + 1);

    for from in [From::AfterSequence(1), From::FromStart(true)] {
        let mut events = session.subscribe(from).await;
        let repaired = events.next().await.unwrap();
        assert_eq!((repaired.r#type.as_str(), repaired.sequence), ("snapshot.repaired", last));
    }
    let mut events = session.subscribe(From::AfterSequence(1)).await;
    let turn = session.submit("say Two.").await;
    let rest = events.until_ended(&turn.turn_id).await;
    assert_eq!(text_of(&rest), "Two.");
    let sequences: Vec<_> = rest.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (last..last + rest.len() as i64).collect::<Vec<_>>());
}

#[tokio::test]
async fn joined_deltas_say_the_same_to_those_who_come_later() {
    let plan = Fleet::plan().env_of(Service::Session, "SWEEP", "0.2").env_of(
        Service::Session,
        "DELTA_RETENTION",
        "0.2",
    );
    let mut world = World::planned(plan).await;
    let session = world.client("acme").await.create_session().await;
    let seen = session.run("pace 20ms\nthink Well, well.\nrepeat 20 \"word \"").await;
    let deltas = |events: &[Event], name: &str| {
        events
            .iter()
            .filter(|event| event.r#type == name)
            .map(|event| event.sequence)
            .collect::<Vec<_>>()
    };
    let said = deltas(&seen, "model.delta");
    assert!(said.len() > 2, "{said:?}");
    let (first, end) = (said[0], said[said.len() - 1]);
    assert_eq!(end - first + 1, said.len() as i64, "somebody wrote in between");
    let expired = session.eventually(async || list(&session, first).await.err()).await;
    assert_eq!(reason(&expired), "REASON_CURSOR_EXPIRED");

    // Each event goes on where the one before ended.
    let mut events = session.subscribe(From::FromStart(true)).await;
    let mut log = Vec::<Event>::new();
    while log.last().is_none_or(|event| event.sequence < seen.last().unwrap().sequence) {
        let event = events.next().await.unwrap();
        let after = log.last().map_or(0, |event: &Event| event.sequence);
        let stands_for = event.refs.get("firstSequence").map(|first| first.parse().unwrap());
        assert_eq!(stands_for.unwrap_or(event.sequence), after + 1);
        log.push(event);
    }
    assert_eq!(deltas(&log, "model.delta"), [end]);
    assert_eq!(deltas(&log, "reasoning.delta").len(), 1);
    assert_eq!(text_of(&log), text_of(&seen));
    let verified = session.verify().await;
    assert!(verified.intact, "{verified:?}");
    assert_eq!(verified.joined_events as usize, seen.last().unwrap().sequence as usize - log.len());

    // In the middle of it nobody can go on; before and behind it anybody can.
    let mut events = session.subscribe(From::AfterSequence(first)).await;
    match events.next().await.unwrap().payload {
        Some(Payload::SnapshotRepaired(said)) => assert_eq!(said.first_sequence, end),
        other => panic!("{other:?}"),
    }
    assert_eq!(events.next().await.unwrap().sequence, end);
    for after in [first - 1, end] {
        let mut events = session.subscribe(From::AfterSequence(after)).await;
        assert_ne!(events.next().await.unwrap().r#type, "snapshot.repaired");
    }
}

async fn list(session: &Session, after_sequence: i64) -> Result<ListEventsResponse, Status> {
    let request = ListEventsRequest {
        session_id: session.id.clone(),
        after_sequence,
        ..ListEventsRequest::default()
    };
    Ok(session.client.sessions().list_events(request).await?.into_inner())
}
