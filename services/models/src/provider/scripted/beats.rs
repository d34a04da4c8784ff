//! A scene as a sequence of single things to do, made one at a time: a script of
//! twenty bytes may stand for a hundred thousand deltas.

use std::{iter, num::NonZeroUsize, time::Duration};

use super::Scene;
use crate::{
    provider::{Delta, Failure, FinishReason},
    script::{Action, Fault, Rhythm, Variables},
    usage::Usage,
};

#[derive(Debug, PartialEq)]
pub enum Beat {
    /// Words, and the wait between them and the words before.
    Words {
        delta: Delta,
        characters: usize,
        pace: Duration,
    },
    /// Where a tool call begins or ends.
    Frame(Delta),
    Finish(FinishReason, Option<Usage>),
    Delay(Duration),
    Fail(Failure),
    Hang,
}

type Beats = Box<dyn Iterator<Item = Beat> + Send>;

pub fn of(
    scene: Scene,
    variables: Variables<'_>,
    attempt: u32,
) -> impl Iterator<Item = Beat> + Send + use<'_> {
    let Scene { index, step } = scene;
    let mut calls = 0;
    let called = step.actions.iter().any(|action| matches!(action, Action::Call { .. }));
    let by_default = if called { FinishReason::ToolCalls } else { FinishReason::Stop };
    let finish_reason = step.finish.unwrap_or(by_default);
    let finish = Beat::Finish(finish_reason, step.usage);

    let actions = step.actions.into_iter().flat_map(move |action| -> Beats {
        match action {
            Action::Say { text, rhythm } => say(text.render(variables), rhythm, Delta::Text),
            Action::Think { text, rhythm } => say(text.render(variables), rhythm, |text| {
                Delta::Reasoning { text, signature: String::new() }
            }),
            Action::Repeat { count, text, rhythm } => {
                let text = text.render(variables);
                let again = (0..count).map(move |_| words(text.clone(), rhythm, Delta::Text));
                Box::new(again)
            }
            Action::Call { tool, input, rhythm } => {
                calls += 1;
                let id = format!("scripted_{index}_{}", calls - 1);
                call(calls - 1, id, tool, input.render_json(variables), rhythm)
            }
            Action::Delay(duration) => one(Beat::Delay(duration)),
            Action::Fail { fault, attempts } if attempts.include(attempt) => {
                one(Beat::Fail(failure(fault)))
            }
            Action::Fail { .. } => Box::new(iter::empty()),
            Action::Hang => one(Beat::Hang),
            Action::Cut => one(Beat::Fail(Failure::Cut)),
        }
    });
    actions.chain([finish])
}

fn say(text: String, rhythm: Rhythm, delta: impl Fn(String) -> Delta + Send + 'static) -> Beats {
    Box::new(Deltas::of(text, rhythm).map(move |text| words(text, rhythm, &delta)))
}

fn call(
    index: i32,
    provider_call_id: String,
    tool: String,
    input: String,
    rhythm: Rhythm,
) -> Beats {
    let started = Beat::Frame(Delta::ToolCallStarted { index, provider_call_id, tool });
    let deltas = Deltas::of(input.clone(), rhythm).map(move |text| {
        words(text, rhythm, |input_json| Delta::ToolCallInput { index, input_json })
    });
    let completed = Beat::Frame(Delta::ToolCallCompleted { index, input_json: input });
    Box::new(iter::once(started).chain(deltas).chain([completed]))
}

fn words(text: String, rhythm: Rhythm, delta: impl Fn(String) -> Delta) -> Beat {
    Beat::Words { characters: text.chars().count(), delta: delta(text), pace: rhythm.pace }
}

fn one(beat: Beat) -> Beats {
    Box::new(iter::once(beat))
}

fn failure(fault: Fault) -> Failure {
    match fault {
        Fault::Transient => Failure::Transient("the script says that this attempt fails".into()),
        Fault::RateLimit(retry_after) => Failure::RateLimited { retry_after },
        Fault::Auth => Failure::Auth,
        Fault::Overflow => Failure::Overflow,
        Fault::Refused => Failure::Refused,
        Fault::Invalid => Failure::Invalid("the script says that this request is invalid".into()),
    }
}

/// A text in pieces that, joined, are the text.
struct Deltas {
    text: String,
    start: usize,
    chunk: Option<NonZeroUsize>,
}

impl Deltas {
    fn of(text: String, rhythm: Rhythm) -> Deltas {
        Deltas { text, start: 0, chunk: rhythm.chunk }
    }
}

impl Iterator for Deltas {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let rest = &self.text[self.start..];
        let size = match self.chunk {
            Some(chunk) => rest.char_indices().nth(chunk.get()).map(|(end, _)| end),
            None => word_end(rest),
        };
        let delta = &rest[..size.unwrap_or(rest.len())];
        self.start += delta.len();
        (!delta.is_empty()).then(|| delta.to_owned())
    }
}

/// Where the second word begins, or nowhere.
fn word_end(text: &str) -> Option<usize> {
    let word = text.find(|char: char| !char.is_whitespace())?;
    let space = word + text[word..].find(char::is_whitespace)?;
    Some(space + text[space..].find(|char: char| !char.is_whitespace())?)
}
