use std::sync::atomic::{AtomicU32, Ordering};

use proto::{
    event::v1::Event,
    session::v1::{
        GetSessionRequest, GetSnapshotRequest, GetSnapshotResponse, GetTurnRequest, InputPart,
        ListEventsRequest, ListMessagesRequest, Message, Session as Shown, SubmitTurnRequest,
        SubscribeRequest, Turn, input_part::Content, subscribe_request::From,
    },
};

use crate::{Client, Events};

/// A session of a client's.
#[derive(Clone)]
pub struct Session {
    pub client: Client,
    pub id: String,
}

impl Session {
    /// A message that makes the scripted model do what `script` says.
    pub fn turn(&self, script: &str) -> SubmitTurnRequest {
        SubmitTurnRequest {
            session_id: self.id.clone(),
            request_id: request_id(),
            parts: vec![says(&format!("Please.\n#!script\n{script}"))],
            ..SubmitTurnRequest::default()
        }
    }

    pub async fn submit(&self, script: &str) -> Turn {
        let response = self.client.turns().submit_turn(self.turn(script)).await.unwrap();
        response.into_inner().turn.unwrap()
    }

    /// Submits a turn and returns everything that happened in it.
    pub async fn run(&self, script: &str) -> Vec<Event> {
        let mut events = self.subscribe(From::Live(true)).await;
        let turn = self.submit(script).await;
        events.until_ended(&turn.turn_id).await
    }

    pub async fn subscribe(&self, from: From) -> Events {
        let request = SubscribeRequest {
            session_id: self.id.clone(),
            from: Some(from),
            ..SubscribeRequest::default()
        };
        let response = self.client.streams().subscribe(request).await.unwrap();
        Events::after_the_snapshot(response.into_inner()).await
    }

    pub async fn get(&self) -> Shown {
        let request = GetSessionRequest { session_id: self.id.clone() };
        let response = self.client.sessions().get_session(request).await.unwrap();
        response.into_inner().session.unwrap()
    }

    pub async fn get_turn(&self, turn_id: &str) -> Turn {
        let request = GetTurnRequest { session_id: self.id.clone(), turn_id: turn_id.into() };
        self.client.turns().get_turn(request).await.unwrap().into_inner().turn.unwrap()
    }

    pub async fn snapshot(&self) -> GetSnapshotResponse {
        let request = GetSnapshotRequest { session_id: self.id.clone(), turns: 0 };
        self.client.sessions().get_snapshot(request).await.unwrap().into_inner()
    }

    /// The latest messages, and what waits in the queue behind them.
    pub async fn messages(&self) -> Vec<Message> {
        let request =
            ListMessagesRequest { session_id: self.id.clone(), ..ListMessagesRequest::default() };
        self.client.sessions().list_messages(request).await.unwrap().into_inner().messages
    }

    /// The whole log, which nobody reads here without checking that it has no gap.
    pub async fn log(&self) -> Vec<Event> {
        self.pages().await.0
    }

    /// The whole log as JSON.
    pub async fn log_json(&self) -> Vec<String> {
        self.pages().await.1
    }

    async fn pages(&self) -> (Vec<Event>, Vec<String>) {
        let (mut events, mut json) = (Vec::<Event>::new(), Vec::new());
        loop {
            let request = ListEventsRequest {
                session_id: self.id.clone(),
                after_sequence: events.len() as i64,
                ..ListEventsRequest::default()
            };
            let page = self.client.sessions().list_events(request).await.unwrap().into_inner();
            events.extend(page.events);
            json.extend(page.json);
            if !page.more {
                break;
            }
        }
        for (event, sequence) in events.iter().zip(1..) {
            assert_eq!(event.sequence, sequence, "the log has a gap or a duplicate: {event:?}");
        }
        assert_eq!(events.len(), json.len());
        (events, json)
    }
}

pub fn says(text: &str) -> InputPart {
    InputPart { content: Some(Content::Text(text.to_owned())) }
}

/// One that was not used before.
pub fn request_id() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    format!("request-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}
