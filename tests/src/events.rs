use std::time::Duration;

use proto::{
    event::v1::{Event, Payload},
    session::v1::{SubscribeResponse, subscribe_response::Item},
};
use tokio::time::timeout;
use tonic::{Status, Streaming};

/// Long enough for a debug build on a busy machine; nobody waits that long when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a subscriber sees.
pub struct Events(Streaming<SubscribeResponse>);

impl Events {
    pub(crate) async fn after_the_snapshot(mut stream: Streaming<SubscribeResponse>) -> Events {
        let first = stream.message().await.unwrap().unwrap();
        assert!(matches!(first.item, Some(Item::Snapshot(_))), "not a snapshot: {first:?}");
        Events(stream)
    }

    pub async fn next(&mut self) -> Result<Event, Status> {
        let response = timeout(PATIENCE, self.0.message()).await.expect("nothing happens")?;
        match response.expect("the stream ended without saying why").item {
            Some(Item::Event(event)) => Ok(*event),
            other => panic!("not an event: {other:?}"),
        }
    }

    /// Everything up to the event that is `wanted`.
    pub async fn until(&mut self, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let mut seen = Vec::new();
        loop {
            let event = self.next().await.unwrap();
            let found = wanted(&event);
            seen.push(event);
            if found {
                return seen;
            }
        }
    }

    /// Everything up to the end of a turn, whichever end that is.
    pub async fn until_ended(&mut self, turn_id: &str) -> Vec<Event> {
        self.until(|event| {
            let ended = ["turn.completed", "turn.failed"].contains(&event.r#type.as_str());
            ended && event.turn_id == turn_id
        })
        .await
    }
}

/// What the model said in these events.
pub fn text_of<'a>(events: impl IntoIterator<Item = &'a Event>) -> String {
    let deltas = events.into_iter().filter_map(|event| match &event.payload {
        Some(Payload::ModelDelta(delta)) => Some(delta.text.as_str()),
        _ => None,
    });
    deltas.collect()
}
