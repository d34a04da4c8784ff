//! What a session has to say that is not committed yet, and how it merges. No I/O.

use chassis::Tenant;
use jiff::Timestamp;
use proto::{
    event::v1::{Event, Payload, RareIds, SCHEMA_VERSION, Usage},
    session::v1::TurnView,
};
use serde_json::value::RawValue;

use crate::{
    ids::{PartId, ReplicaId, SessionId, SubagentId, ToolCallId, TurnId},
    store::{
        flush::{self, Batch, Lease},
        turns::Claim,
    },
    subagent::Spawn,
    time,
    turn::{Asking, Ending, Step, Stopping},
};

/// The rows of one session's next flush.
#[derive(Debug, Default)]
pub struct Pending {
    events: Vec<(Event, Timestamp)>,
    /// Events before this one are held by a part's row and must not grow any more.
    settled: usize,
    messages: Vec<flush::Message>,
    parts: Vec<flush::Part>,
    /// Digests and bodies.
    prompts: Vec<(String, String)>,
    turn: Option<flush::Turn>,
    sum: Option<flush::Sum>,
    actions: Vec<flush::Action>,
    spawns: Vec<Spawn>,
    /// Children whose end the conversation says now.
    tells: Vec<SubagentId>,
    stops: Option<Stopping>,
    status: Option<&'static str>,
    status_message: Option<String>,
    parks: bool,
    ending: Option<Ending>,
    bytes: usize,
}

impl Pending {
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
            && self.messages.is_empty()
            && self.parts.is_empty()
            && self.prompts.is_empty()
            && self.turn.is_none()
            && self.sum.is_none()
            && self.actions.is_empty()
            && self.spawns.is_empty()
            && self.tells.is_empty()
            && self.stops.is_none()
            && self.status.is_none()
            && !self.parks
            && self.ending.is_none()
    }

    /// Roughly how much text waits.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the session may have something to claim afterwards.
    pub fn lets_go(&self) -> bool {
        self.ending.is_some() || self.parks
    }

    /// The sessions of the children that it spawns, which wait for a worker afterwards.
    pub fn children(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.spawns.iter().map(|spawn| spawn.origin.session_id)
    }

    /// Adds an event, or lets the last one grow: deltas of one part that nobody has seen
    /// yet are one delta. Returns by how much a part's text grew.
    pub fn append(&mut self, event: Event, now: Timestamp) -> usize {
        let grown = text_of(&event).map_or(0, str::len);
        self.bytes += size(&event).max(64);
        if self.events.len() > self.settled
            && let Some((last, _)) = self.events.last_mut()
            && grow(last, &event)
        {
            return grown;
        }
        self.events.push((event, now));
        grown
    }

    pub fn save_message(&mut self, turn_id: TurnId, step: &Step, now: Timestamp) {
        let metadata = serde_json::json!(step.metadata);
        let status = step.status.as_str();
        if let Some(message) = self.messages.iter_mut().find(|row| row.id == step.message_id) {
            message.status = status;
            message.metadata = metadata;
            return;
        }
        self.messages.push(flush::Message {
            id: step.message_id,
            turn_id,
            ordinal: self.events.len() as i64 - 1,
            status,
            synthetic: step.is_compaction() || step.is_told(),
            metadata,
            created_at: now,
        });
    }

    pub fn save_part(&mut self, step: &Step, index: usize) {
        let Some(part) = step.parts.get(index) else { return };
        let message_id = step.message_id;
        self.settled = self.events.len();
        let row = flush::Part {
            message_id,
            index,
            id: PartId::new(),
            r#type: part.kind(),
            data: part.data(),
            ordinal: self.events.len() as i64 - 1,
        };
        match self.parts.iter_mut().find(|old| old.message_id == message_id && old.index == index) {
            Some(old) => *old = flush::Part { id: old.id, ..row },
            None => self.parts.push(row),
        }
    }

    pub fn save_prompt(&mut self, digest: String, body: String) {
        self.prompts.push((digest, body));
    }

    pub fn save_turn(&mut self, id: TurnId, view: &TurnView) {
        let status = match view.status.as_str() {
            "completed" => "completed",
            "failed" => "failed",
            "cancelled" => "cancelled",
            "blocked" => "waiting",
            _ => "running",
        };
        self.turn = Some(flush::Turn { id, status, view: view.clone() });
    }

    pub fn spend(&mut self, usage: &Usage, cost_micros: i64) {
        let sum = self.sum.get_or_insert_default();
        let read = [usage.input, usage.cache_read, usage.cache_write];
        sum.input_tokens += read.into_iter().map(i64::from).sum::<i64>();
        sum.output_tokens += i64::from(usage.output);
        sum.cost_micros += cost_micros;
        sum.model_calls += 1;
    }

    /// Stores that a person is asked about a call.
    pub fn ask(
        &mut self,
        turn_id: TurnId,
        step: &Step,
        id: ToolCallId,
        asking: &Asking,
        now: Timestamp,
    ) {
        let (permission, pattern) = asking.rule.clone().unzip();
        self.actions.push(flush::Action {
            id: id.action(),
            turn_id,
            step_id: step.message_id.step(),
            tool_call_id: id,
            kind: asking.request.kind.clone(),
            request: asking.request.clone(),
            permission,
            pattern,
            created_at: now,
            expires_at: asking.request.expire_time.and_then(time::from_proto),
        });
    }

    pub fn spawn(&mut self, spawn: Spawn) {
        self.bytes += spawn.prompt.len();
        self.spawns.push(spawn);
    }

    pub fn tell(&mut self, id: SubagentId) {
        self.tells.push(id);
    }

    pub fn stop_children(&mut self, which: Stopping) {
        self.stops = Some(which);
    }

    /// Lets go of the session until people have answered and children have ended.
    pub fn park(&mut self) {
        self.parks = true;
    }

    pub fn show(&mut self, status: &'static str, message: String) {
        self.status = Some(status);
        self.status_message = Some(message);
    }

    pub fn end(&mut self, ending: Ending) {
        if let Ending::Broken { message } = &ending {
            self.status_message = Some(message.clone());
        }
        // A session's place in lists moves with its turns, whatever they cost.
        self.sum.get_or_insert_default();
        self.ending = Some(ending);
    }

    /// Adds these rows to a batch, as the session with index `lease`.
    pub fn write<'a>(
        &'a self,
        batch: &mut Batch<'a>,
        lease: usize,
        owner: &'a Owner,
    ) -> Result<(), serde_json::Error> {
        // Events of a turn belong to one trace, which need not be said of each.
        let mut traces: Vec<_> =
            self.events.iter().map(|(event, _)| (&*event.trace_id, &*event.span_id)).collect();
        traces.dedup();
        let (shared, (trace_id, span_id)) = match traces[..] {
            [trace] => (true, trace),
            _ => (false, Default::default()),
        };
        let mut events = Vec::with_capacity(self.events.len());
        for (ordinal, (event, created_at)) in self.events.iter().enumerate() {
            let mut row = event_row(event, *created_at, ordinal)?;
            if shared {
                (row.trace_id, row.span_id) = Default::default();
            }
            events.push(row);
        }
        let prompts = self.prompts.iter();
        batch.prompts.extend(prompts.map(|(digest, body)| flush::Prompt {
            tenant_id: &owner.tenant,
            digest,
            body,
        }));
        batch.leases.push(Lease {
            lease,
            session_id: owner.session_id,
            epoch: owner.epoch,
            flush_no: owner.flush_no,
            trace_id,
            span_id,
            events,
            messages: &self.messages,
            parts: &self.parts,
            actions: &self.actions,
            spawns: &self.spawns,
            tells: &self.tells,
            stops: self.stops.map(|which| match which {
                Stopping::OfTurn => "turn",
                Stopping::All => "all",
            }),
            turn: self.turn.as_ref(),
            sum: self.sum,
            status: self.status,
            status_message: self.status_message.as_deref(),
            parks: self.parks,
            ends: self.ending.as_ref().map(|ending| match ending {
                Ending::Completed | Ending::Cancelled | Ending::Failed => "idle",
                Ending::Broken { .. } => "error",
            }),
        });
        Ok(())
    }

    /// The committed events, as readers get them.
    pub fn into_events(self, owner: &Owner, base: i64, runtime_id: ReplicaId) -> Vec<Event> {
        let session_id = owner.session_id;
        let stamp = |(ordinal, (event, created_at)): (usize, (Event, Timestamp))| {
            let sequence = base + ordinal as i64;
            Event {
                event_id: session_id.event(sequence),
                schema_version: SCHEMA_VERSION.to_owned(),
                runtime_id: runtime_id.to_string(),
                timestamp: Some(time::to_proto(created_at)),
                sequence,
                session_id: session_id.to_string(),
                thread_id: session_id.thread().to_string(),
                turn_id: owner.turn_id.to_string(),
                ..event
            }
        };
        self.events.into_iter().enumerate().map(stamp).collect()
    }
}

/// What an owner proves itself with.
#[derive(Debug, Clone)]
pub struct Owner {
    pub tenant: Tenant,
    pub session_id: SessionId,
    pub turn_id: TurnId,
    pub epoch: i64,
    pub flush_no: i64,
}

impl From<&Claim> for Owner {
    fn from(claim: &Claim) -> Owner {
        Owner {
            tenant: claim.tenant.clone(),
            session_id: claim.session_id,
            turn_id: claim.turn_id,
            epoch: claim.epoch,
            flush_no: claim.flush_no,
        }
    }
}

fn event_row(
    event: &Event,
    created_at: Timestamp,
    ordinal: usize,
) -> Result<flush::Event<'_>, serde_json::Error> {
    let ids = RareIds {
        job_id: event.job_id.clone(),
        job_item_id: event.job_item_id.clone(),
        process_id: event.process_id.clone(),
        channel_id: event.channel_id.clone(),
        output_ref: event.output_ref.clone(),
        model_request_id: event.model_request_id.clone(),
        request_id: event.request_id.clone(),
    };
    let payload = match &event.payload {
        Some(payload) => payload.to_json()?,
        None => "{}".to_owned(),
    };
    Ok(flush::Event {
        ordinal,
        r#type: &event.r#type,
        created_at,
        step_id: &event.step_id,
        tool_call_id: &event.tool_call_id,
        action_id: &event.action_id,
        task_id: &event.task_id,
        run_id: &event.run_id,
        subagent_id: &event.subagent_id,
        trace_id: &event.trace_id,
        span_id: &event.span_id,
        ids: (ids != RareIds::default()).then_some(ids),
        refs: &event.refs,
        payload: RawValue::from_string(payload)?,
    })
}

fn text_of(event: &Event) -> Option<&str> {
    match event.payload.as_ref()? {
        Payload::ModelDelta(delta) => Some(&delta.text),
        Payload::ReasoningDelta(delta) => Some(&delta.text),
        _ => None,
    }
}

/// Roughly what an event costs to hold.
fn size(event: &Event) -> usize {
    match event.payload.as_ref() {
        Some(Payload::ToolProgress(progress)) => progress.text.len(),
        Some(Payload::ToolResult(result)) => result.data_json.len(),
        _ => text_of(event).map_or(0, str::len),
    }
}

/// Lets a pending delta grow by the next one of the same thing.
fn grow(last: &mut Event, next: &Event) -> bool {
    let same_call = last.tool_call_id == next.tool_call_id;
    match (&mut last.payload, &next.payload) {
        (Some(Payload::ModelDelta(last)), Some(Payload::ModelDelta(next)))
            if last.message_id == next.message_id && last.part_index == next.part_index =>
        {
            last.text.push_str(&next.text);
            true
        }
        (Some(Payload::ReasoningDelta(last)), Some(Payload::ReasoningDelta(next)))
            if last.message_id == next.message_id && last.part_index == next.part_index =>
        {
            last.text.push_str(&next.text);
            true
        }
        (Some(Payload::ToolProgress(last)), Some(Payload::ToolProgress(next)))
            if same_call && last.stream == next.stream =>
        {
            last.text.push_str(&next.text);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
