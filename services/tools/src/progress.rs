use std::time::Duration;

use proto::event::v1::Payload;

use crate::{
    facts::{self, Facts},
    text::Decoder,
};

/// Output as it happens: in pieces worth a row in the log, and only up to a budget.
pub struct Progress<'a> {
    facts: &'a Facts<'a>,
    decoder: Decoder,
    news: String,

    /// How many bytes may still be passed on.
    budget: usize,
}

impl<'a> Progress<'a> {
    /// How often there may be news.
    pub const PERIOD: Duration = Duration::from_millis(50);

    pub fn new(facts: &'a Facts<'a>, budget: usize) -> Progress<'a> {
        Progress { facts, decoder: Decoder::default(), news: String::new(), budget }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.budget)];
        self.budget -= bytes.len();
        self.news += &self.decoder.push(bytes);
    }

    pub async fn flush(&mut self) {
        if !self.news.is_empty() {
            let news = std::mem::take(&mut self.news);
            self.facts.note(Payload::ToolProgress(facts::progress(news))).await;
        }
    }

    pub async fn finish(mut self) {
        // The rest of a character that the budget cut through is not worth showing.
        if self.budget > 0 {
            self.news += &std::mem::take(&mut self.decoder).finish();
        }
        self.flush().await;
    }
}
