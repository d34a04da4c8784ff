//! The built-in model that plays a script: for demos without a key, tests and load.
//!
//! It keeps nothing between requests. What it plays is read from the prompt alone,
//! so the same request has the same answer on every replica.

mod beats;
mod introduction;
mod stage;

use async_stream::try_stream;
use futures::{
    StreamExt as _, future,
    stream::{self, BoxStream},
};
use tokio::time::sleep;

use self::beats::Beat;
use super::{Broken, Chunk, Failure, FinishReason, Provider, Request};
use crate::{
    prompt::{Content, Message, Prompt, Role},
    script::{self, Script, Step, Variables},
    tokens,
};

pub use stage::seen;

pub struct Scripted;

impl Provider for Scripted {
    fn generate(&self, request: Request) -> BoxStream<'static, Result<Chunk, Broken>> {
        match Scene::find(&request.prompt, &request.profile) {
            Ok(scene) => stage::watch(play(scene, request)).boxed(),
            Err(error) => stream::iter([Err(Failure::from(error).into())]).boxed(),
        }
    }
}

/// The part of a script that is the answer to one prompt.
#[derive(Debug, PartialEq)]
struct Scene {
    /// Which answer this is: 0, 1, …
    index: usize,
    step: Step,
}

impl Scene {
    /// Looks for a script in the user messages, newest first, then in the system prompt.
    ///
    /// The first belongs to its message and goes on over as many turns as it has
    /// steps. The second belongs to the agent and begins anew with every turn.
    fn find(prompt: &Prompt, profile: &str) -> Result<Scene, script::Error> {
        let messages = &prompt.messages;
        if !introduction::is_onlooker(profile)
            && let Some((start, script)) = script_of_user(messages)
        {
            return Scene::of(script, &messages[start..]);
        }
        let turn = messages.iter().rposition(is_user).unwrap_or(0);
        match script::split(&prompt.system).1 {
            Some(script) => Scene::of(script, &messages[turn..]),
            None => Ok(Scene { index: 0, step: introduction::step(profile, prompt) }),
        }
    }

    fn of(script: &str, since: &[Message]) -> Result<Scene, script::Error> {
        let index = since.iter().filter(|message| message.role == Role::Assistant).count();
        let mut steps = Script::parse(script)?.steps;
        let step = if index < steps.len() { steps.swap_remove(index) } else { Step::default() };
        Ok(Scene { index, step })
    }
}

/// Plays until the script or the caller's patience for output ends.
fn play(
    scene: Scene,
    request: Request,
) -> impl futures::Stream<Item = Result<Chunk, Broken>> + Send {
    try_stream! {
        let variables =
            Variables { tool_result: tool_result(&request.prompt), user: user(&request.prompt) };
        let mut said = 0;
        for beat in beats::of(scene, variables, request.attempt) {
            match beat {
                Beat::Words { delta, characters, pace } => {
                    if said > 0 && !pace.is_zero() {
                        sleep(pace).await;
                    }
                    said += characters;
                    if tokens::plain(said) > request.max_output_tokens {
                        yield Chunk::Finished { finish_reason: FinishReason::Length, usage: None };
                        return;
                    }
                    yield Chunk::Delta(delta);
                }
                Beat::Frame(delta) => yield Chunk::Delta(delta),
                Beat::Finish(finish_reason, usage) => {
                    yield Chunk::Finished { finish_reason, usage };
                }
                Beat::Delay(duration) => sleep(duration).await,
                Beat::Fail(failure) => Err(failure)?,
                Beat::Hang => future::pending().await,
            }
        }
    }
}

/// The newest script of a user message, and where that message is.
fn script_of_user(messages: &[Message]) -> Option<(usize, &str)> {
    messages.iter().enumerate().rev().filter(|(_, message)| is_user(message)).find_map(
        |(start, message)| {
            let script = message.texts().find_map(|text| script::split(text).1)?;
            Some((start, script))
        },
    )
}

/// What a person reads of the last user message.
fn user(prompt: &Prompt) -> &str {
    let last = prompt.messages.iter().rfind(|message| is_user(message));
    last.and_then(|message| message.texts().next()).map_or("", |text| script::split(text).0)
}

fn tool_result(prompt: &Prompt) -> &str {
    let contents = prompt.messages.iter().flat_map(|message| &message.content);
    let results = contents.rev().find_map(|content| match content {
        Content::ToolResult { text, .. } => Some(text.as_str()),
        _ => None,
    });
    results.unwrap_or_default()
}

fn is_user(message: &Message) -> bool {
    message.role == Role::User
}

#[cfg(test)]
mod tests;
