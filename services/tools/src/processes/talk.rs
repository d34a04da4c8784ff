//! What goes back and forth between a process and everybody else.

use std::{future::pending, io};

use proto::event::v1::Event;
use sandbox::Input;
use tokio::{io::AsyncWriteExt as _, time::Instant};

use super::{journal::Writer, told};
use crate::{
    redact::Redacted,
    store::processes::{Key, Stream},
};

/// What is under way between a process and everybody else.
pub struct Talk {
    pub writer: Writer,
    pub preview: told::Preview,
    /// What happened that is not on record yet.
    pub told: Vec<Event>,
    pub counted: Instant,
    /// Input that the process has not read yet, and whether it is the last.
    pub waiting: Vec<u8>,
    pub closing: bool,
    pub input: Option<Input>,
}

impl Talk {
    async fn printed(&mut self, stream: Stream, bytes: &[u8]) {
        let offset = self.writer.push(stream, bytes).await;
        self.preview.push(stream, offset, bytes);
    }

    /// What is to be put on record, in order.
    pub fn news(&mut self, key: &Key) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.told);
        events.extend(self.preview.take(key));
        events
    }

    pub fn wrote(&mut self, written: io::Result<usize>) {
        match written {
            Ok(written) => drop(self.waiting.drain(..written)),
            // Nobody reads it any more.
            Err(_) => {
                self.input = None;
                self.waiting.clear();
            }
        }
        self.close_if_done();
    }

    /// Says that nothing more will come, once everything before that was read.
    pub fn close(&mut self) {
        self.closing = true;
        if let Some(input) = &self.input {
            self.waiting.extend(input.farewell());
        }
        self.close_if_done();
    }

    fn close_if_done(&mut self) {
        if self.closing && self.waiting.is_empty() {
            self.input = None;
        }
    }

    /// Writes some of what waits.
    pub async fn write(&mut self) -> io::Result<usize> {
        match &mut self.input {
            Some(input) if !self.waiting.is_empty() => input.write(&self.waiting).await,
            _ => pending().await,
        }
    }
}

/// One of the streams that a process writes to, without secrets.
pub struct Printing<'a> {
    pub stream: Stream,
    pub redacted: Redacted<'a>,
}

impl Printing<'_> {
    pub async fn push(&mut self, talk: &mut Talk, bytes: &[u8]) {
        let shown = self.redacted.push(bytes);
        talk.printed(self.stream, &shown).await;
    }

    pub async fn finish(self, talk: &mut Talk) {
        let rest = self.redacted.finish();
        talk.printed(self.stream, &rest).await;
    }
}
