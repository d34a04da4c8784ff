//! A reader that stays, whoever dies.

use std::{error::Error as _, time::Duration};

use proto::{
    error::v1::Reason,
    event::v1::Event,
    session::v1::{
        SubscribeRequest, SubscribeResponse, subscribe_request::From, subscribe_response::Item,
    },
};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

use crate::{Client, Session};

/// How long to wait before somebody is asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// A stream on which nothing comes may belong to somebody who sleeps.
const SILENCE: Duration = Duration::from_secs(3);

/// Follows a session from a sequence on. When a stream breaks off it resumes behind the last
/// event it saw, at the next replica. Whatever happens, it sees every event once and in order.
pub struct Reader {
    session_id: String,
    replicas: Vec<Client>,
    next: usize,
    last: i64,
    stream: Option<Streaming<SubscribeResponse>>,
    pub seen: Vec<Event>,
}

impl Reader {
    /// From the beginning.
    pub fn new(session: &Session, replicas: &[Client]) -> Reader {
        Reader::after(session, replicas, 0)
    }

    /// From the event behind this one.
    pub fn after(session: &Session, replicas: &[Client], last: i64) -> Reader {
        let (session_id, replicas) = (session.id.clone(), replicas.to_vec());
        Reader { session_id, replicas, next: 0, last, stream: None, seen: vec![] }
    }

    /// The next event, however long it takes to find somebody who tells it.
    pub async fn next(&mut self) -> &Event {
        loop {
            let Some(stream) = &mut self.stream else {
                self.connect().await;
                continue;
            };
            match timeout(SILENCE, stream.message()).await {
                Ok(Ok(Some(SubscribeResponse { item: Some(Item::Event(event)) }))) => {
                    let sequence = event.sequence;
                    assert_eq!(sequence, self.last + 1, "a gap or a duplicate: {event:?}");
                    self.last = sequence;
                    self.seen.push(*event);
                    return &self.seen[self.seen.len() - 1];
                }
                Ok(Ok(Some(SubscribeResponse { item: Some(Item::Snapshot(_)) }))) => {}
                Ok(Ok(other)) => panic!("neither an event nor a reason to leave: {other:?}"),
                Ok(Err(status)) => {
                    assert!(is_passing(&status), "readers must be able to go on: {status:?}");
                    self.stream = None;
                }
                Err(_) => self.stream = None,
            }
        }
    }

    /// Everything up to the event that is `wanted`.
    pub async fn until(&mut self, wanted: impl Fn(&Event) -> bool) {
        while !wanted(self.next().await) {}
    }

    /// Everything up to the end of a turn, whichever end that is.
    pub async fn until_ended(&mut self, turn_id: &str) {
        self.until(|event| {
            ["turn.completed", "turn.failed"].contains(&event.r#type.as_str())
                && event.turn_id == turn_id
        })
        .await;
    }

    async fn connect(&mut self) {
        let client = &self.replicas[self.next % self.replicas.len()];
        self.next += 1;
        let request = SubscribeRequest {
            session_id: self.session_id.clone(),
            from: Some(From::AfterSequence(self.last)),
            ..SubscribeRequest::default()
        };
        match timeout(SILENCE, client.streams().subscribe(request)).await {
            Ok(Ok(stream)) => self.stream = Some(stream.into_inner()),
            Ok(Err(status)) => {
                assert!(is_passing(&status), "readers must be able to come: {status:?}");
                sleep(PAUSE).await;
            }
            Err(_) => {}
        }
    }
}

/// Whether a failure says that the same call may work later, or elsewhere.
pub fn is_passing(status: &Status) -> bool {
    let info = status.get_details_error_info();
    match info.and_then(|info| Reason::from_str_name(&info.reason)) {
        Some(Reason::DependencyUnavailable) => {
            assert!(status.get_details_retry_info().is_some(), "without a delay: {status:?}");
            true
        }
        Some(Reason::Stopping | Reason::ReaderTooSlow | Reason::Overloaded) => true,
        Some(_) => false,
        // Nobody was there to give a reason: the connection failed. What a server says over the
        // wire has no source; what the transport says has one, and codes as it likes (a server
        // that goes away in peace is INTERNAL).
        None => {
            status.source().is_some()
                || matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled)
        }
    }
}
