//! Conversations whose last turn ended here a moment ago, so that the next one need not load them.
//!
//! A copy of what Postgres has, good for exactly one state of the log: whoever wants it says
//! where the log ended before his own event. Debug builds load all the same and compare.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use moka::sync::Cache;
use serde_json::json;

use crate::{
    ids::SessionId,
    message::{Message, Part},
};

/// How long somebody may think before the next turn has to load again.
const KEPT: Duration = Duration::from_secs(60);

/// How much is kept of all conversations, and how much of one at most.
const MOST: u64 = 32 * 1024 * 1024;
const LARGE: usize = 256 * 1024;

/// How many times as much as its text JSON takes that was read.
const TREE: usize = 3;

/// What a host takes that a call has reached.
const REACHED: usize = 128;

pub struct Recent(Cache<SessionId, Arc<Conversation>>);

struct Conversation {
    /// The last event of the log when it was like this.
    through: i64,
    /// Whoever takes it takes it from here: the cache lets go of what was removed only later.
    messages: Mutex<Vec<Message>>,
    bytes: usize,
}

impl Default for Recent {
    fn default() -> Recent {
        let weigh =
            |_: &SessionId, kept: &Arc<Conversation>| kept.bytes.try_into().unwrap_or(u32::MAX);
        Recent(Cache::builder().weigher(weigh).max_capacity(MOST).time_to_live(KEPT).build())
    }
}

impl Recent {
    pub fn keep(&self, id: SessionId, through: i64, messages: Vec<Message>) {
        let bytes = messages.iter().map(size).sum();
        if bytes <= LARGE {
            let messages = Mutex::new(messages);
            self.0.insert(id, Arc::new(Conversation { through, messages, bytes }));
        }
    }

    /// The conversation, if nothing has happened to it since.
    pub fn take(&self, id: SessionId, through: i64) -> Option<Vec<Message>> {
        let kept = self.0.remove(&id)?;
        let mut messages = kept.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = mem::take(&mut *messages);
        (kept.through == through).then_some(messages)
    }
}

/// Roughly what a message costs to hold.
fn size(message: &Message) -> usize {
    let part = |part: &Part| match part {
        Part::Text(text) | Part::Reasoning(text) => text.text.len() + text.signature.len(),
        Part::Tool(tool_use) => {
            let transcript = tool_use.metadata.as_ref().map(|known| &known.transcript_json);
            let hooks = tool_use.metadata.as_ref().map(|known| &known.hook_context);
            let reached = tool_use.metadata.as_ref().map_or(0, |known| known.reached.len());
            let (output, error) = (tool_use.output_json.as_ref(), tool_use.error_text.as_ref());
            let texts = [output, error, transcript, hooks];
            let texts = texts.into_iter().flatten().map(String::len).sum::<usize>();
            tool_use.input_json.len() + texts + REACHED * reached
        }
        Part::File(file) => file.data.len(),
        Part::Data { data, .. } => TREE * data.to_string().len(),
    };
    let trigger = message.metadata.trigger.as_ref().map(|trigger| json!(trigger));
    let about = [message.metadata.client.as_ref(), trigger.as_ref()].into_iter().flatten();
    let about = about.map(|value| TREE * value.to_string().len()).sum::<usize>();
    512 + about + message.parts.iter().map(|each| 256 + part(each)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{MessageId, TurnId},
        message::{Metadata, Role},
    };

    fn said(text: &str) -> Message {
        Message {
            id: MessageId::new(),
            turn_id: TurnId::new(),
            role: Role::User,
            metadata: Metadata::default(),
            parts: vec![Part::text(text)],
        }
    }

    #[test]
    fn a_conversation_is_known_once_and_only_as_it_was() {
        let (recent, id) = (Recent::default(), SessionId::new());
        let conversation = vec![said("hello")];
        recent.keep(id, 7, conversation.clone());
        assert_eq!(recent.take(id, 7), Some(conversation.clone()));
        assert_eq!(recent.take(id, 7), None, "who took it changes it");
        recent.keep(id, 7, conversation);
        assert_eq!(recent.take(id, 8), None, "something happened in between");
    }

    #[test]
    fn a_large_conversation_is_not_kept() {
        let (recent, id) = (Recent::default(), SessionId::new());
        recent.keep(id, 7, vec![said(&"a".repeat(LARGE))]);
        assert_eq!(recent.take(id, 7), None);
    }
}
