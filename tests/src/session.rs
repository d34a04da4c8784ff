use std::sync::atomic::{AtomicU32, Ordering};

use proto::{
    event::v1::{Event, Payload},
    session::v1::{
        Action, CompactSessionRequest, GetSessionRequest, GetSnapshotRequest, GetSnapshotResponse,
        GetTurnRequest, InputPart, InterruptTurnRequest, ListActionsRequest, ListEventsRequest,
        ListMessagesRequest, Message, RespondActionRequest, Session as Shown, SubmitTurnRequest,
        SubscribeRequest, Turn, TurnView, input_part::Content, respond_action_request::Decision,
        subscribe_request::From,
    },
};
use tonic::Status;

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

    /// The same with a text of so many bytes above the script, for people to read.
    pub fn long_turn(&self, bytes: usize, script: &str) -> SubmitTurnRequest {
        let text = "All work and no play. ".repeat(bytes.div_ceil(22));
        let parts = vec![says(&format!("{}\n#!script\n{script}", &text[..bytes]))];
        SubmitTurnRequest { parts, ..self.turn(script) }
    }

    pub async fn submit(&self, script: &str) -> Turn {
        let response = self.client.turns().submit_turn(self.turn(script)).await.unwrap();
        response.into_inner().turn.unwrap()
    }

    /// Submits this and returns everything that happened in its turn.
    pub async fn run_turn(&self, request: SubmitTurnRequest) -> Vec<Event> {
        let mut events = self.subscribe(From::Live(true)).await;
        let response = self.client.turns().submit_turn(request).await.unwrap();
        events.until_ended(&response.into_inner().turn.unwrap().turn_id).await
    }

    /// Has the history summarized and returns everything that happened meanwhile.
    pub async fn compact(&self) -> Vec<Event> {
        let mut events = self.subscribe(From::Live(true)).await;
        let request =
            CompactSessionRequest { session_id: self.id.clone(), request_id: request_id() };
        let response = self.client.sessions().compact_session(request).await.unwrap();
        events.until_ended(&response.into_inner().turn_id).await
    }

    /// Submits a turn and returns everything that happened in it.
    pub async fn run(&self, script: &str) -> Vec<Event> {
        let mut events = self.subscribe(From::Live(true)).await;
        let turn = self.submit(script).await;
        events.until_ended(&turn.turn_id).await
    }

    /// Submits a turn and returns what happened in it, and what the read model says of it.
    pub async fn run_and_view(&self, script: &str) -> (Vec<Event>, TurnView) {
        let seen = self.run(script).await;
        let turns = self.snapshot().await.snapshot.unwrap().threads.remove(0).turns;
        let turn_id = &seen.last().unwrap().turn_id;
        let view = turns.into_iter().find(|turn| turn.turn_id == *turn_id).unwrap();
        (seen, view)
    }

    pub async fn subscribe(&self, from: From) -> Events {
        self.subscribe_on("", from).await
    }

    /// Reads under a name.
    pub async fn subscribe_on(&self, channel: &str, from: From) -> Events {
        let request = SubscribeRequest {
            session_id: self.id.clone(),
            from: Some(from),
            channel: channel.to_owned(),
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

    /// Submits a turn and returns what it asks a person first.
    pub async fn asks(&self, script: &str) -> Action {
        let mut events = self.subscribe(From::Live(true)).await;
        self.submit(script).await;
        events.until(|event| event.r#type == "run.status" && is_waiting(event)).await;
        self.actions().await.remove(0)
    }

    /// What people are asked.
    pub async fn actions(&self) -> Vec<Action> {
        let request =
            ListActionsRequest { session_id: self.id.clone(), ..ListActionsRequest::default() };
        self.client.turns().list_actions(request).await.unwrap().into_inner().actions
    }

    pub async fn respond(&self, action: &Action, decision: Decision) -> Result<Action, Status> {
        let request = RespondActionRequest {
            session_id: self.id.clone(),
            action_id: action.action_id.clone(),
            decision: decision.into(),
            comment: String::new(),
        };
        let response = self.client.turns().respond_action(request).await?;
        Ok(response.into_inner().action.unwrap())
    }

    /// Stops the active turn.
    pub async fn interrupt(&self, reason: &str) -> Turn {
        let request = InterruptTurnRequest {
            session_id: self.id.clone(),
            turn_id: String::new(),
            reason: reason.into(),
        };
        self.client.turns().interrupt_turn(request).await.unwrap().into_inner().turn.unwrap()
    }

    /// The latest messages, and what waits in the queue behind them.
    pub async fn messages(&self) -> Vec<Message> {
        let request =
            ListMessagesRequest { session_id: self.id.clone(), ..ListMessagesRequest::default() };
        self.client.sessions().list_messages(request).await.unwrap().into_inner().messages
    }

    /// All of what was said, oldest first.
    pub async fn all_messages(&self) -> Vec<Message> {
        let (mut messages, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = ListMessagesRequest {
                session_id: self.id.clone(),
                page_token,
                ..ListMessagesRequest::default()
            };
            let page = self.client.sessions().list_messages(request).await.unwrap().into_inner();
            messages.splice(0..0, page.messages);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return messages;
            }
        }
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

fn is_waiting(event: &Event) -> bool {
    match &event.payload {
        Some(Payload::RunStatus(status)) => status.status.starts_with("waiting"),
        _ => false,
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
