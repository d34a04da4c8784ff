//! Has the agent `title` name a session that nobody named, beside its first turn. Nobody waits
//! for it, and nothing depends on it: a title that cannot be had is not there.

use std::{sync::Arc, time::Duration};

use chassis::Caller;
use proto::models::v1 as models;
use tokio::{sync::mpsc, time::timeout};
use tracing::{Instrument as _, debug};

use super::{Driver, model};
use crate::{
    agent,
    error::Result,
    host::Host,
    message::{Part, Role},
    store::{
        self,
        turns::{Claim, Stamp},
    },
    turn::Input,
};

/// How much of a message says what it is about.
const MOST_TEXT: usize = 4 * 1024;

/// How long a title may be, in characters.
const MOST_TITLE: usize = 100;

/// A session that has no title after this long has none.
const PATIENCE: Duration = Duration::from_secs(60);

impl Driver {
    /// Begins to look for a title, if this is the first thing that anybody said here.
    pub(super) fn name_session(&self) {
        let [message] = self.history.as_slice() else { return };
        if message.role != Role::User || message.metadata.compact || self.claim.attempts > 1 {
            return;
        }
        let texts = message.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        let mut text = texts.collect::<Vec<_>>().join("\n");
        text.truncate(text.floor_char_boundary(MOST_TEXT));
        if text.trim().is_empty() {
            return;
        }
        let (host, caller, claim) = (self.host.clone(), self.caller.clone(), self.claim.clone());
        let name = async move {
            let id = claim.session_id;
            match timeout(PATIENCE, name(host, caller, claim, text)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, session.id = %id, "session {id} gets no title"),
                Err(_) => debug!(session.id = %id, "a title of session {id} took too long"),
            }
        };
        tokio::spawn(name.in_current_span());
    }
}

async fn name(host: Arc<Host>, caller: Caller, claim: Claim, text: String) -> Result<()> {
    let agent = host.agent(&claim.tenant, agent::TITLE).await?;
    let manifest = &agent.manifest;
    let content = models::Content { kind: Some(models::content::Kind::Text(text)) };
    let role = models::message::Role::User.into();
    let request = models::GenerateRequest {
        session_id: claim.session_id.to_string(),
        turn_id: claim.turn_id.to_string(),
        prompt: Some(models::Prompt {
            system: manifest.prompt.clone(),
            messages: vec![models::Message { role, content: vec![content] }],
            tools: vec![],
        }),
        target: Some(models::Target {
            model: manifest.model.clone(),
            profile: manifest.profile.clone(),
            ..models::Target::default()
        }),
        options: Some(models::Options {
            max_output_tokens: manifest.max_output_tokens,
            temperature: manifest.temperature,
            ..models::Options::default()
        }),
        attempt: 1,
        ..models::GenerateRequest::default()
    };
    let (answers, mut answer) = mpsc::channel(64);
    let generate = model::generate(host.clone(), caller, request, Arc::default(), answers);
    let listen = async {
        let (mut said, mut done) = (String::new(), false);
        while let Some(inputs) = answer.recv().await {
            for input in inputs {
                match input {
                    Input::Text(more) => said.push_str(&more),
                    Input::Finished(_) => done = true,
                    _ => {}
                }
            }
        }
        done.then_some(said)
    };
    let ((), said) = tokio::join!(generate, listen);
    let Some(title) = said.as_deref().and_then(title) else { return Ok(()) };
    let stamp = Stamp::of(host.replica);
    let events =
        store::admin::name(&host.db, &claim.tenant, claim.session_id, &title, &stamp).await?;
    host.bus.publish(&claim.tenant, claim.session_id, events, false);
    Ok(())
}

/// What a model said as a title: its first line, without what models like to put around it.
fn title(said: &str) -> Option<String> {
    let line = said.lines().map(str::trim).find(|line| !line.is_empty())?;
    let line =
        line.trim_matches(|around: char| around.is_whitespace() || "\"'#*`".contains(around));
    let title: String = line.chars().take(MOST_TITLE).collect();
    let title = crate::message::without_nul(title);
    (!title.is_empty()).then_some(title)
}

#[test]
fn a_title_is_one_line_without_decoration() {
    assert_eq!(title("\n# \"Lunch plans\"\nBecause…"), Some("Lunch plans".into()));
    assert_eq!(title(&"a".repeat(500)).unwrap().len(), MOST_TITLE);
    assert_eq!(title(" \n "), None);
}
