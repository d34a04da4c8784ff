//! What people do, and what they remember of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use proto::{
    event::v1::Event,
    session::v1::{
        CancelQueuedTurnRequest, EditQueuedTurnRequest, InterruptTurnRequest, ListActionsRequest,
        PromoteQueuedTurnRequest, RespondActionRequest, SubmitTurnRequest,
        respond_action_request::Decision,
    },
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tonic::{Response, Status};

use super::{ASKED, Dice, Place};
use crate::{Client, Reader, is_passing, reason, request_id, says};

/// Who gets no answer for so long does not wait for it any more.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long reading what is left may take when all is well.
const TO_THE_END: Duration = Duration::from_secs(60);

/// How far back readers go who come again.
const BACK: usize = 2000;

/// What everybody knows about a session.
#[derive(Default)]
pub struct Notes {
    /// Everything that was ever submitted, by request id.
    pub submissions: BTreeMap<String, Submission>,
    /// Turns that were taken out of the queue, as was acknowledged.
    pub cancelled: BTreeSet<String>,
    /// Turns that somebody stopped or took out of the queue, or tried to without an answer.
    pub stopped: BTreeSet<String>,
    /// How often somebody stopped whatever ran, and did not hear which turn that was.
    pub stopped_blindly: usize,
    /// Turns that somebody asked to be changed, and what they say then.
    pub edits: BTreeMap<String, Vec<Edit>>,
    /// Turns that triggers started, and what their commands write.
    pub fired: BTreeMap<String, Option<String>>,
}

pub struct Submission {
    pub request: SubmitTurnRequest,
    /// What its commands write, in order.
    pub marks: Vec<String>,
    /// How its script has the model fail, if it does.
    pub fails: Option<&'static str>,
    /// Known when somebody acknowledged it.
    pub turn_id: Option<String>,
}

pub struct Edit {
    pub mark: String,
    pub acknowledged: bool,
}

pub struct Person {
    pub number: usize,
    /// Of what is done now; each has its own, which depends on nothing that happened before.
    pub dice: Dice,
    pub replicas: Vec<Client>,
    pub places: Vec<Arc<Place>>,
}

impl Person {
    pub async fn act(mut self, stopped: watch::Receiver<bool>) {
        let chance = Dice(self.dice.roll());
        let mut count = 0;
        while !*stopped.borrow() {
            count += 1;
            self.dice = chance.of(count);
            match self.dice.below(20) {
                0..9 => self.submit(count).await,
                9..11 => self.submit_again().await,
                11 => self.submit_otherwise().await,
                12 | 13 => self.interrupt().await,
                14..17 => self.decide().await,
                17 => self.cancel().await,
                18 => self.edit(count).await,
                _ => self.promote().await,
            }
            sleep(self.dice.millis(50, 800)).await;
        }
    }

    async fn submit(&mut self, count: usize) {
        let place = self.place();
        let mark = format!("p{}-{count}", self.number);
        let command = |mark: &str, rest: &str| {
            format!("call bash {{\"command\": \"echo {mark} >> witness{rest}\"}}")
        };
        let (script, marks) = match self.dice.below(16) {
            0..3 => (format!("say {mark}"), vec![]),
            3..5 => (format!("pace 10ms\nrepeat 60 \"{mark} \""), vec![]),
            5..8 => (format!("{}\n---\nsay {mark}", command(&mark, "")), vec![mark]),
            8 => (
                format!("say Wait. \n{}\n---\nsay {mark}", command(&mark, "; sleep 1")),
                vec![mark],
            ),
            9 | 10 => {
                let marks = vec![format!("{mark}-a"), format!("{mark}-b")];
                let calls = [command(&marks[0], ""), command(&marks[1], "; sleep 0.2")];
                (format!("{}\n---\nsay {mark}", calls.join("\n")), marks)
            }
            11..13 => {
                let asked = format!(
                    "call bash {{\"command\": \"{ASKED}; echo {mark} >> witness\"}}\n---\nsay {mark}"
                );
                (asked, vec![mark])
            }
            13 => (format!("fail transient 1\nsay {mark}"), vec![]),
            14 => (format!("say {mark}\ncut"), vec![]),
            _ => ("fail auth".to_owned(), vec![]),
        };
        let fails = match script.as_str() {
            "fail auth" => Some("auth"),
            script => script.ends_with("\ncut").then_some("cut"),
        };
        let request = SubmitTurnRequest { request_id: request_id(), ..place.session.turn(&script) };
        let submission = Submission { request: request.clone(), marks, fails, turn_id: None };
        let id = request.request_id.clone();
        place.notes.lock().unwrap().submissions.insert(id, submission);
        self.send(&place, request).await;
    }

    /// Repeats a submission, whatever has become of it.
    async fn submit_again(&mut self) {
        let place = self.place();
        let request = {
            let notes = place.notes.lock().unwrap();
            let known: Vec<_> = notes.submissions.values().collect();
            self.dice.choose(&known).map(|submission| submission.request.clone())
        };
        if let Some(request) = request {
            self.send(&place, request).await;
        }
    }

    async fn send(&mut self, place: &Place, request: SubmitTurnRequest) {
        let id = request.request_id.clone();
        let answer = ask(self.client().turns().submit_turn(request)).await;
        let turn = match answer {
            Some(Ok(response)) => response.into_inner().turn.unwrap(),
            Some(Err(status)) => return assert_eq!(reason(&status), "REASON_QUEUE_FULL"),
            None => return,
        };
        let mut notes = place.notes.lock().unwrap();
        let submission = notes.submissions.get_mut(&id).unwrap();
        let first = submission.turn_id.get_or_insert_with(|| turn.turn_id.clone());
        assert_eq!(*first, turn.turn_id, "one submission has become two turns");
    }

    /// The same id for something else is refused, if the first is known to be stored.
    async fn submit_otherwise(&mut self) {
        let place = self.place();
        let request = {
            let notes = place.notes.lock().unwrap();
            let known: Vec<_> =
                notes.submissions.values().filter(|known| known.turn_id.is_some()).collect();
            self.dice.choose(&known).map(|submission| submission.request.clone())
        };
        let Some(mut request) = request else { return };
        request.parts = vec![says("Something else.")];
        if let Some(answer) = ask(self.client().turns().submit_turn(request)).await {
            assert_eq!(reason(&answer.unwrap_err()), "REASON_REQUEST_ID_REUSED");
        }
    }

    async fn interrupt(&mut self) {
        let place = self.place();
        let turn_id = match self.dice.below(2) {
            0 => String::new(),
            _ => self.some_turn(&place).unwrap_or_default(),
        };
        let session_id = place.session.id.clone();
        let request =
            InterruptTurnRequest { session_id, turn_id: turn_id.clone(), reason: "enough".into() };
        let answer = ask(self.client().turns().interrupt_turn(request)).await;
        let mut notes = place.notes.lock().unwrap();
        match answer {
            Some(Ok(response)) => {
                notes.stopped.insert(response.into_inner().turn.unwrap().turn_id);
            }
            Some(Err(status)) => assert_eq!(reason(&status), "REASON_TURN_OVER", "{status:?}"),
            None if turn_id.is_empty() => notes.stopped_blindly += 1,
            None => {
                notes.stopped.insert(turn_id);
            }
        }
    }

    /// Approves or rejects something that is asked.
    async fn decide(&mut self) {
        let place = self.place();
        let session_id = place.session.id.clone();
        let request = ListActionsRequest { session_id, ..ListActionsRequest::default() };
        let Some(listed) = ask(self.client().turns().list_actions(request)).await else { return };
        let actions = listed.unwrap().into_inner().actions;
        let Some(action) = self.dice.choose(&actions) else { return };
        let decision = match self.dice.below(3) {
            0 => Decision::Reject,
            _ => Decision::Once,
        };
        let request = RespondActionRequest {
            session_id: place.session.id.clone(),
            action_id: action.action_id.clone(),
            decision: decision.into(),
            ..RespondActionRequest::default()
        };
        if let Some(Err(status)) = ask(self.client().turns().respond_action(request)).await {
            assert_eq!(reason(&status), "REASON_ACTION_RESOLVED");
        }
    }

    async fn cancel(&mut self) {
        let place = self.place();
        let Some(turn_id) = self.some_turn(&place) else { return };
        let session_id = place.session.id.clone();
        let request = CancelQueuedTurnRequest { session_id, turn_id: turn_id.clone() };
        let answer = ask(self.client().turns().cancel_queued_turn(request)).await;
        let unheard = answer.is_none();
        let cancelled = changed(answer);
        let mut notes = place.notes.lock().unwrap();
        if cancelled {
            notes.cancelled.insert(turn_id.clone());
        }
        if cancelled || unheard {
            notes.stopped.insert(turn_id);
        }
    }

    async fn edit(&mut self, count: usize) {
        let place = self.place();
        let Some(turn_id) = self.some_turn(&place) else { return };
        let mark = format!("p{}-{count}-edited", self.number);
        let script = format!("call bash {{\"command\": \"echo {mark} >> witness\"}}");
        let number = {
            let mut notes = place.notes.lock().unwrap();
            let edits = notes.edits.entry(turn_id.clone()).or_default();
            edits.push(Edit { mark, acknowledged: false });
            edits.len() - 1
        };
        let request = EditQueuedTurnRequest {
            session_id: place.session.id.clone(),
            turn_id: turn_id.clone(),
            parts: place.session.turn(&script).parts,
        };
        let answer = ask(self.client().turns().edit_queued_turn(request)).await;
        if changed(answer) {
            let mut notes = place.notes.lock().unwrap();
            notes.edits.get_mut(&turn_id).unwrap()[number].acknowledged = true;
        }
    }

    async fn promote(&mut self) {
        let place = self.place();
        let Some(turn_id) = self.some_turn(&place) else { return };
        let session_id = place.session.id.clone();
        let request = PromoteQueuedTurnRequest { session_id, turn_id };
        changed(ask(self.client().turns().promote_queued_turn(request)).await);
    }

    fn place(&mut self) -> Arc<Place> {
        let index = self.dice.below(self.places.len());
        self.places[index].clone()
    }

    fn client(&mut self) -> &Client {
        let index = self.dice.below(self.replicas.len());
        &self.replicas[index]
    }

    /// One of the last turns, which may well wait in the queue.
    fn some_turn(&mut self, place: &Place) -> Option<String> {
        let notes = place.notes.lock().unwrap();
        let mut turns: Vec<_> =
            notes.submissions.values().filter_map(|known| known.turn_id.clone()).collect();
        // Their ids are in the order of time.
        turns.sort();
        self.dice.choose(&turns[turns.len().saturating_sub(6)..]).cloned()
    }
}

/// Whether a change of the queue was acknowledged.
fn changed<T>(answer: Option<Result<Response<T>, Status>>) -> bool {
    match answer {
        Some(Ok(_)) => true,
        Some(Err(status)) => {
            assert_eq!(reason(&status), "REASON_TURN_NOT_QUEUED");
            false
        }
        None => false,
    }
}

/// Calls; nothing is known when nobody answered, or when somebody could not.
async fn ask<T>(
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Option<Result<Response<T>, Status>> {
    match timeout(PATIENCE, call).await {
        Ok(Err(status)) if is_passing(&status) => None,
        Ok(answer) => Some(answer),
        Err(_) => None,
    }
}

/// Reads from anywhere, leaves, and comes back where it was, until all is quiet; then reads to the
/// end. Returns what was seen, in unbroken pieces.
pub async fn read(
    place: Arc<Place>,
    replicas: Vec<Client>,
    chance: Dice,
    mut quiet: watch::Receiver<bool>,
) -> Vec<(String, Vec<Event>)> {
    let mut pieces = Vec::new();
    let (mut last, mut count) = (0, 0);
    while !*quiet.borrow() {
        count += 1;
        let mut dice = chance.of(count);
        let mut reader = Reader::after(&place.session, &replicas, last);
        tokio::select! {
            () = sleep(dice.millis(100, 4000)) => {}
            _ = quiet.wait_for(|quiet| *quiet) => {}
            () = async { while reader.next().await.sequence > 0 {} } => {}
        }
        // Behind what it saw, or somewhere in it.
        let seen = reader.seen.last().map_or(last, |event| event.sequence);
        let back = if dice.below(4) == 0 { dice.below(BACK.min(seen as usize) + 1) } else { 0 };
        last = seen - back as i64;
        pieces.push((place.session.id.clone(), reader.seen));
    }
    let end = place.session.get().await.last_sequence;
    if last < end {
        let mut reader = Reader::after(&place.session, &replicas, last);
        let rest = reader.until(|event| event.sequence == end);
        timeout(TO_THE_END, rest).await.expect("nobody tells how it ended");
        pieces.push((place.session.id.clone(), reader.seen));
    }
    pieces
}
