//! What the model says where there is no script.

use super::user;
use crate::{
    prompt::Prompt,
    script::{Action, Rhythm, Step, Text},
};

/// Whether this work looks at a conversation that others have. Then the scripts in
/// it are their lines and not its own.
pub fn is_onlooker(profile: &str) -> bool {
    matches!(profile, "title" | "summary")
}

pub fn step(profile: &str, prompt: &Prompt) -> Step {
    let answer = match profile {
        "title" => quote(user(prompt).lines().next().unwrap_or_default(), 60),
        "summary" => summary(prompt),
        _ => introduction(prompt),
    };
    let say = Action::Say { text: Text::literal(answer), rhythm: Rhythm::default() };
    Step { actions: vec![say], ..Step::default() }
}

fn summary(prompt: &Prompt) -> String {
    let messages = prompt.messages.len();
    format!("A conversation of {messages} messages. Last: {}", quote(user(prompt), 200))
}

fn introduction(prompt: &Prompt) -> String {
    let quote = quote(user(prompt), 200);
    format!(
        "You said: {quote}\n\n\
         I am the scripted model: I need no key and do what a script says. Write a line \
         `#!script` in your message, or in the agent's system prompt, and lines like these below it:\n\n\
         say Let me look.\n\
         call bash {{\"command\": \"ls\"}}\n\
         ---\n\
         say I found {{{{tool_result}}}}\n"
    )
}

fn quote(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
