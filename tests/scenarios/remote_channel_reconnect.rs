use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    session::v1::{AcknowledgeRequest, subscribe_request::From},
};
use tests::{Events, Session, World, explain, reason};

const SLOW: &str = "pace 20ms\nrepeat 60 \"word \"";

#[tokio::test]
async fn remote_channel_reconnect() {
    // Somebody notices a death within a second instead of ten.
    let plan = Fleet::plan()
        .env_of(Service::Session, "HEARTBEAT", "0.2")
        .env_of(Service::Session, "LEASE", "1")
        .env_of(Service::Session, "SWEEP", "0.2");
    let mut world = World::planned(plan).await;
    let session = world.client("acme").await.create_session().await;

    let mut phone = session.subscribe_on("phone", From::FromAcknowledged(true)).await;
    let turn = session.submit(SLOW).await;
    let mut seen = read_deltas(&mut phone, 5).await;
    assert_eq!(names(&seen)[..3], ["session.created", "thread.started", "channel.connected"]);
    let arrived = seen.last().unwrap().sequence;
    assert_eq!(acknowledge(&session, arrived).await.unwrap(), arrived);
    assert_eq!(acknowledge(&session, 1).await.unwrap(), arrived);
    let ahead = acknowledge(&session, 1_000_000).await.unwrap_err();
    assert_eq!(reason(&ahead), "REASON_CURSOR_AHEAD");

    // It drops, and that is a fact.
    drop(phone);
    let gone = disconnected(&session, 1).await;
    assert_eq!(said(&gone), ("closed", arrived));

    // It comes back and gets exactly what came after what it acknowledged.
    let mut phone = session.subscribe_on("phone", From::FromAcknowledged(true)).await;
    seen.extend(phone.until_ended(&turn.turn_id).await);
    assert_eq!(session.log().await[..seen.len()], seen, "not what is stored, or not once");
    assert_eq!(names(&seen).iter().filter(|name| **name == "channel.resumed").count(), 1);
    assert_eq!(gone.channel_id, seen[2].channel_id);

    // Its server dies: whoever comes after says that it is gone.
    acknowledge(&session, seen.last().unwrap().sequence).await.unwrap();
    world.fleet.get(Service::Session).kill().await.unwrap();
    while phone.next().await.is_ok() {}
    world.fleet.get(Service::Session).restart().await.unwrap();
    let gone = disconnected(&session, 2).await;
    assert_eq!(said(&gone), ("lost", seen.last().unwrap().sequence));
    let mut phone = session.subscribe_on("phone", From::FromAcknowledged(true)).await;
    let next = phone.next().await.unwrap();
    assert_eq!(next.sequence, seen.last().unwrap().sequence + 1);

    // What it wants is removed: it is told so, and goes on with what is left.
    let rest = session.run("say Bye.").await;
    let last = rest.last().unwrap().sequence;
    assert!(session.sealed(last).await.intact);
    let expire = format!("select session.expire_log('{}', now() + interval '1 hour')", session.id);
    crate::seals::sql(&world, &expire).await;
    let mut tablet = session.subscribe_on("tablet", From::FromAcknowledged(true)).await;
    let repaired = tablet.next().await.unwrap();
    match &repaired.payload {
        Some(Payload::SnapshotRepaired(said)) => {
            assert_eq!((said.requested_after_sequence, said.first_sequence), (0, last + 1));
            assert_eq!(said.unavailable, [format!("events:1-{last}")]);
            assert_eq!(said.stale, ["messages", "turns"]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(repaired.sequence, last);
    assert_eq!(tablet.next().await.unwrap().sequence, last + 1);

    // Who does not know its place, or a name, is told.
    let request =
        AcknowledgeRequest { session_id: session.id.clone(), channel: "watch".into(), sequence: 1 };
    let unknown = session.client.streams().acknowledge(request).await.unwrap_err();
    assert_eq!(
        explain(&unknown),
        format!(
            "InvalidArgument REASON_INVALID_FIELD: invalid channel: session {} has no channel of this name",
            session.id
        )
    );
}

async fn acknowledge(session: &Session, sequence: i64) -> Result<i64, tonic::Status> {
    let request =
        AcknowledgeRequest { session_id: session.id.clone(), channel: "phone".into(), sequence };
    let response = session.client.streams().acknowledge(request).await?;
    Ok(response.into_inner().sequence)
}

async fn read_deltas(events: &mut Events, count: usize) -> Vec<Event> {
    let mut seen = Vec::<Event>::new();
    while seen.iter().filter(|event| event.r#type == "model.delta").count() < count {
        seen.push(events.next().await.unwrap());
    }
    seen
}

/// The fact that the phone is gone, for the `nth` time.
async fn disconnected(session: &Session, nth: usize) -> Event {
    let mut events = session.subscribe(From::FromStart(true)).await;
    let mut found = 0;
    loop {
        let event = events.next().await.unwrap();
        found += usize::from(event.r#type == "channel.disconnected");
        if found == nth {
            return event;
        }
    }
}

fn said(event: &Event) -> (&str, i64) {
    match &event.payload {
        Some(Payload::ChannelDisconnected(said)) => (&said.reason, said.acknowledged_sequence),
        other => panic!("{other:?}"),
    }
}

fn names(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.r#type.as_str()).collect()
}
