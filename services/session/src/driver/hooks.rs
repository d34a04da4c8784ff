//! Has hooks asked about the turn itself.

use std::sync::Arc;

use chassis::Caller;
use proto::tools::v1::{RunHooksRequest, RunHooksResponse};
use tonic::{Code, Status};
use tracing::Instrument as _;

use super::{Driver, Inputs, calls::storable};
use crate::{
    flusher::Stopped,
    hook::Event,
    host::{Host, PATIENT_ANSWER},
    ids::MessageId,
    message::{Message, Metadata, Part, Role, without_nul},
    passing::Asked,
    turn::{Hooked, Hooks, Input, Verdict},
};

/// How much of a text hooks get to see, in bytes.
const MOST_TEXT: usize = 512 * 1024;

impl Driver {
    pub(super) async fn run_hooks(
        &mut self,
        event: Event,
        stops: usize,
        inputs: &Inputs,
    ) -> Result<(), Stopped> {
        // A turn that hooks were asked about has begun: whoever takes over must not begin it
        // again, and so hooks are not asked again.
        self.flush().await?;
        let text = match event {
            Event::SessionStart => String::new(),
            Event::UserPromptSubmit => {
                let mut asked = self.history.iter().rev();
                let asked = asked.find(|message| {
                    message.role == Role::User && message.turn_id == self.claim.turn_id
                });
                asked.map(|message| text(&message.parts)).unwrap_or_default()
            }
            Event::Stop => {
                let said = self.turn.steps().iter().rev().find(|step| !step.is_note());
                said.map(|step| text(&step.parts)).unwrap_or_default()
            }
        };
        let request = RunHooksRequest {
            session_id: self.claim.session_id.to_string(),
            epoch: self.claim.epoch,
            turn_id: self.claim.turn_id.to_string(),
            workspace_id: self.workspace_id.to_string(),
            event: event.as_str().to_owned(),
            text,
            stops: stops as i32,
        };
        let metadata = Metadata { agent: Some(self.agent.id.clone()), ..Metadata::default() };
        let (host, caller, inputs) = (self.host.clone(), self.caller.clone(), inputs.clone());
        let asking = async move {
            let (verdict, answer) = match ask(host, caller, event, request).await {
                Ok(answer) if answer.blocked => {
                    (Verdict::Block(without_nul(answer.reason.clone())), answer)
                }
                Ok(answer) => (Verdict::Continue, answer),
                Err(status) => {
                    let why = format!("the hooks could not be asked: {}", status.message());
                    (Verdict::Unavailable(without_nul(why)), RunHooksResponse::default())
                }
            };
            let hooked = Hooked {
                event,
                facts: answer.facts.into_iter().map(storable).collect(),
                verdict,
                context: without_nul(answer.context),
                message_id: MessageId::new(),
                metadata,
            };
            let _ = inputs.send(vec![Input::Hooked(Box::new(hooked))]).await;
        };
        self.tasks.spawn(asking.in_current_span());
        Ok(())
    }
}

async fn ask(
    host: Arc<Host>,
    caller: Caller,
    event: Event,
    request: RunHooksRequest,
) -> Result<RunHooksResponse, Status> {
    let mut asked = Asked::new(&host);
    loop {
        let answer = async {
            // Who could not say before whether there are any may be able to now.
            if !host.hook_events(&caller).await?.iter().any(|name| name == event.as_str()) {
                return Ok::<_, Status>(RunHooksResponse::default());
            }
            let (mut client, peer) = host.tools();
            let request = peer.request_within(PATIENT_ANSWER, &caller, request.clone());
            Ok(client.run_hooks(request).await?.into_inner())
        };
        let answer = answer.await;
        // Nothing else says that hooks were not asked.
        let away = answer.as_ref().is_err_and(|status| status.code() == Code::Unavailable);
        if !away || !asked.is_worth_another(&answer).await {
            return answer;
        }
    }
}

/// The hooks that a turn may have. Where nobody can say, it may have all of them.
pub async fn hooks(host: &Host, caller: &Caller) -> Hooks {
    let events = host.hook_events(caller).await;
    let has = |event: Event| match &events {
        Ok(events) => events.iter().any(|name| name == event.as_str()),
        Err(_) => true,
    };
    Hooks {
        session_start: has(Event::SessionStart),
        user_prompt_submit: has(Event::UserPromptSubmit),
        stop: has(Event::Stop),
    }
}

/// Whether a session begins with this turn: nothing else was said that anybody can see.
pub fn begins(history: &[Message]) -> bool {
    history.iter().all(|message| message.turn_id == history[0].turn_id)
}

/// What somebody said, in words.
fn text(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    let mut text = texts.collect::<Vec<_>>().join("\n");
    text.truncate(text.floor_char_boundary(MOST_TEXT));
    text
}
