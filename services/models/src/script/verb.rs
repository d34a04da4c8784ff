//! One line of a script at a time.

use std::{collections::BTreeMap, num::NonZeroUsize, ops::RangeInclusive, time::Duration};

use serde::de::IgnoredAny;

use super::{Action, Attempts, Fault, Rhythm, Script, Step, Text};
use crate::{provider::FinishReason, usage::Usage};

const REPEATS: RangeInclusive<u32> = 1..=100_000;
const CHUNKS: RangeInclusive<usize> = 1..=65_536;
const ATTEMPTS: RangeInclusive<u32> = 1..=1_000;
const TOKENS: RangeInclusive<i32> = 0..=1_000_000_000;
const MAX_DURATION: Duration = Duration::from_secs(600);
const DURATION: &str = "expected a duration like 200ms, 1.5s or 2m, at most 10m";

type Result<T> = std::result::Result<T, String>;

/// What is read so far.
#[derive(Default)]
pub struct Parser {
    steps: Vec<Step>,
    step: Step,
    rhythm: Rhythm,
}

impl Parser {
    pub fn finish(mut self) -> Script {
        self.steps.push(self.step);
        Script { steps: self.steps }
    }

    pub fn line(&mut self, line: &str) -> Result<()> {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if line.trim_end() == "---" {
            self.steps.push(std::mem::take(&mut self.step));
            return Ok(());
        }
        // Texts are kept as written after one space; everything else forgives more of them.
        let (verb, text) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let words = text.trim();
        let rhythm = self.rhythm;
        let action = match verb {
            "say" => Action::Say { text: some_text(text)?, rhythm },
            "think" => Action::Think { text: some_text(text)?, rhythm },
            "repeat" => {
                let (count, text) = words.split_once(' ').unwrap_or((words, ""));
                let count = number("how often to repeat", count, REPEATS)?;
                Action::Repeat { count, text: some_text(text)?, rhythm }
            }
            "call" => {
                let (tool, input) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
                if tool.is_empty() {
                    return Err("expected a tool".to_owned());
                }
                Action::Call { tool: tool.to_owned(), input: input_json(input.trim())?, rhythm }
            }
            "delay" => Action::Delay(duration(words)?),
            "fail" => fail(words)?,
            "hang" => nothing_after(words, Action::Hang)?,
            "cut" => nothing_after(words, Action::Cut)?,
            "chunk" => {
                let chunk = number("a number of characters", words, CHUNKS)?;
                self.rhythm.chunk = NonZeroUsize::new(chunk);
                return Ok(());
            }
            "pace" => {
                self.rhythm.pace = duration(words)?;
                return Ok(());
            }
            "usage" => return once("usage", &mut self.step.usage, usage(words)?),
            "finish" => return once("finish", &mut self.step.finish, finish(words)?),
            _ => return Err(unknown_verb(verb)),
        };
        self.step.actions.push(action);
        Ok(())
    }
}

fn unknown_verb(verb: &str) -> String {
    let verb: String = verb.chars().take(40).collect();
    format!(
        "unknown verb {verb:?}: there are say, think, repeat, call, delay, chunk, pace, usage, \
         finish, fail, hang and cut"
    )
}

fn some_text(text: &str) -> Result<Text> {
    match text {
        "" => Err("expected a text".to_owned()),
        text => Text::parse(text),
    }
}

/// An object is checked and sent as written. A JSON string is sent as its content,
/// whatever that is, because real models send broken input too.
fn input_json(input: &str) -> Result<Text> {
    match input {
        "" => Ok(Text::literal("{}".to_owned())),
        input if input.starts_with('"') => Text::parse(input),
        input => {
            serde_json::from_str::<BTreeMap<String, IgnoredAny>>(input)
                .map_err(|error| format!("expected a JSON object as the tool's input: {error}"))?;
            Text::template(input)
        }
    }
}

fn fail(words: &str) -> Result<Action> {
    let mut words = words.split_whitespace();
    let fault = match words.next() {
        Some("transient") => Fault::Transient,
        Some("rate_limit") => Fault::RateLimit(duration(words.next().unwrap_or_default())?),
        Some("auth") => Fault::Auth,
        Some("overflow") => Fault::Overflow,
        Some("refused") => Fault::Refused,
        Some("invalid") => Fault::Invalid,
        _ => {
            return Err("expected transient, rate_limit, auth, overflow, refused or invalid".into());
        }
    };
    let attempts = match words.next() {
        None => Attempts::All,
        Some(count) => Attempts::First(number("how many attempts fail", count, ATTEMPTS)?),
    };
    nothing_after(words.next().unwrap_or_default(), Action::Fail { fault, attempts })
}

fn usage(words: &str) -> Result<Usage> {
    let mut usage = Usage::default();
    for word in words.split_whitespace() {
        let (name, count) = word.split_once('=').unwrap_or((word, ""));
        let field = match name {
            "input" => &mut usage.input,
            "output" => &mut usage.output,
            "reasoning" => &mut usage.reasoning,
            "cache_read" => &mut usage.cache_read,
            "cache_write" => &mut usage.cache_write,
            _ => {
                return Err(
                    "expected input=, output=, reasoning=, cache_read= or cache_write=".into()
                );
            }
        };
        *field = number("a number of tokens", count, TOKENS)?;
    }
    match usage.reasoning > usage.output {
        true => Err("reasoning is a part of output and cannot be more".to_owned()),
        false => Ok(usage),
    }
}

fn finish(word: &str) -> Result<FinishReason> {
    word.parse().map_err(|_| "expected stop, length, tool_calls or refused".to_owned())
}

/// `200ms`, `1.5s` or `2m`.
fn duration(word: &str) -> Result<Duration> {
    let unit = word.trim_start_matches(|char: char| char.is_ascii_digit() || char == '.');
    let seconds_in_unit = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err(DURATION.to_owned()),
    };
    word.strip_suffix(unit)
        .and_then(|number| number.parse::<f64>().ok())
        .and_then(|number| Duration::try_from_secs_f64(number * seconds_in_unit).ok())
        .filter(|duration| *duration <= MAX_DURATION)
        .ok_or_else(|| DURATION.to_owned())
}

fn number<N>(what: &str, word: &str, range: RangeInclusive<N>) -> Result<N>
where
    N: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    word.parse()
        .ok()
        .filter(|number| range.contains(number))
        .ok_or_else(|| format!("expected {what}, from {} to {}", range.start(), range.end()))
}

fn nothing_after<T>(words: &str, parsed: T) -> Result<T> {
    match words {
        "" => Ok(parsed),
        words => Err(format!("unexpected {:?}", words.chars().take(40).collect::<String>())),
    }
}

fn once<T>(verb: &str, place: &mut Option<T>, value: T) -> Result<()> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("this step has a {verb} line already")),
    }
}
