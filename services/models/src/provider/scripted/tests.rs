use std::{fmt::Write as _, time::Duration};

use expect_test::{expect, expect_file};
use tokio::time::{Instant, timeout};

use super::*;
use crate::{prompt::Tool, provider::Delta, usage::Usage};

fn message(role: Role, content: Content) -> Message {
    Message { role, content: vec![content] }
}

fn user(text: &str) -> Message {
    message(Role::User, Content::Text(text.to_owned()))
}

fn assistant(text: &str) -> Message {
    message(Role::Assistant, Content::Text(text.to_owned()))
}

fn result(text: &str) -> Message {
    let content = Content::ToolResult {
        tool_call_id: "call_1".to_owned(),
        text: text.to_owned(),
        error: false,
    };
    message(Role::Tool, content)
}

fn request(prompt: &Prompt, attempt: u32) -> Request {
    Request { attempt, ..Request::about(prompt.clone()) }
}

/// What the model says to a prompt, without the pauses.
async fn answer(prompt: &Prompt, profile: &str) -> String {
    let mut text = String::new();
    let request = Request { profile: profile.to_owned(), ..request(prompt, 1) };
    let mut chunks = Scripted.generate(request);
    while let Some(chunk) = chunks.next().await {
        match chunk.unwrap() {
            Chunk::Delta(Delta::Text(delta)) => text += &delta,
            other => write!(text, "[{other:?}]").unwrap(),
        }
    }
    text
}

const FINISHED: &str = "[Finished { finish_reason: Stop, usage: None }]";

async fn says(system: &str, messages: &[Message], expected: &str) {
    let prompt = Prompt {
        system: system.to_owned(),
        messages: messages.to_vec(),
        tools: Vec::<Tool>::new(),
    };
    assert_eq!(answer(&prompt, "chat").await, format!("{expected}{FINISHED}"));
}

#[tokio::test]
async fn a_step_plays_for_each_answer_since_the_script() {
    let script = user("hi\n#!script\nsay one\n---\nsay two {{user}} {{tool_result}}");
    let mut messages = vec![assistant("earlier"), script];
    says("", &messages, "one").await;
    messages.extend([assistant("one"), result("42")]);
    says("", &messages, "two hi 42").await;
    messages.push(assistant("two"));
    says("", &messages, "").await;
}

#[tokio::test]
async fn a_script_goes_on_until_another_message_brings_another() {
    let mut messages = vec![user("#!script\nsay one\n---\nsay two {{user}}"), assistant("one")];
    messages.push(user("go on"));
    says("", &messages, "two go on").await;
    messages.push(user("#!script\nsay three"));
    says("", &messages, "three").await;
}

#[tokio::test]
async fn an_agents_script_begins_anew_with_every_turn() {
    let system = "You are a clerk.\n#!script\nsay one\n---\nsay two";
    let mut messages = vec![user("a"), assistant("one"), result("42")];
    says(system, &messages, "two").await;
    messages.push(user("b"));
    says(system, &messages, "one").await;
    messages.push(user("#!script\nsay mine"));
    says(system, &messages, "mine").await;
}

#[tokio::test]
async fn without_a_script_the_model_introduces_itself() {
    let messages = vec![user(&format!("{} {{{{nonsense}}}}", "long ".repeat(100)))];
    let prompt = Prompt { messages, ..Prompt::default() };
    expect![[r#"
        You said: long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long long …

        I am the scripted model: I need no key and do what a script says. Write a line `#!script` in your message, or in the agent's system prompt, and lines like these below it:

        say Let me look.
        call bash {"command": "ls"}
        ---
        say I found {{tool_result}}
        [Finished { finish_reason: Stop, usage: None }]"#]].assert_eq(&answer(&prompt, "chat").await);
}

/// Who writes a title or a summary must not play the conversation it reads again.
#[tokio::test]
async fn an_onlooker_has_only_its_own_script() {
    let messages = vec![user("Lunch?\nToday?\n#!script\nfail auth"), assistant("Yes.")];
    let mut prompt = Prompt { messages, ..Prompt::default() };
    assert_eq!(answer(&prompt, "title").await, format!("Lunch?{FINISHED}"));
    expect![[r#"
        A conversation of 2 messages. Last: Lunch?
        Today?[Finished { finish_reason: Stop, usage: None }]"#]]
    .assert_eq(&answer(&prompt, "summary").await);
    prompt.messages.push(user("Write a title."));
    prompt.system = "You write titles.\n#!script\nsay About lunch".to_owned();
    assert_eq!(answer(&prompt, "title").await, format!("About lunch{FINISHED}"));
}

#[tokio::test]
async fn a_script_that_cannot_be_read_says_where() {
    let prompt = Prompt { messages: vec![user("hi\n#!script\n\nsya")], ..Prompt::default() };
    let first = Scripted.generate(request(&prompt, 1)).next().await;
    let Some(Err(Broken { failure: Failure::Script(error), .. })) = first else {
        panic!("{first:?}")
    };
    assert_eq!(error.line, 2);
}

#[tokio::test]
async fn an_answer_ends_at_the_callers_limit() {
    let prompt =
        Prompt { messages: vec![user("#!script\nrepeat 9 abcd\ncut")], ..Prompt::default() };
    let request = Request { max_output_tokens: 2, ..request(&prompt, 1) };
    let chunks: Vec<_> = Scripted.generate(request).collect().await;
    let text = || Ok(Chunk::Delta(Delta::Text("abcd".to_owned())));
    let finished = Chunk::Finished { finish_reason: FinishReason::Length, usage: None };
    assert_eq!(chunks, [text(), text(), Ok(finished)]);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_hangs_does_so_until_it_is_dropped() {
    let prompt =
        Prompt { messages: vec![user("#!script\nsay a\nhang\nsay b")], ..Prompt::default() };
    let mut chunks = Scripted.generate(request(&prompt, 1));
    assert!(chunks.next().await.is_some());
    assert!(timeout(Duration::from_secs(86_400), chunks.next()).await.is_err());
}

/// Plays every example of the manual and writes down what happens below it.
#[tokio::test(start_paused = true)]
async fn the_manual_is_right() {
    let mut manual = String::new();
    let mut rest = include_str!("../../../SCRIPT.md");
    while let Some((before, after)) = rest.split_once("```script\n") {
        let (script, after) = after.split_once("```\n").unwrap();
        let (between, after) = after.split_once("```text\n").unwrap();
        let (_, after) = after.split_once("```\n").unwrap();
        let played = transcript(script).await;
        write!(manual, "{before}```script\n{script}```\n{between}```text\n{played}```\n").unwrap();
        rest = after;
    }
    expect_file!["../../../SCRIPT.md"].assert_eq(&(manual + rest));
}

/// A whole conversation: every answer, with made-up results for its calls, until the
/// script is over or its failure is final.
async fn transcript(script: &str) -> String {
    let mut text = String::new();
    let mut prompt = Prompt { messages: vec![user(script)], ..Prompt::default() };
    for step in 1.. {
        let mut lines = Vec::new();
        let mut played = attempt_at(&prompt, 1, &mut lines).await;
        if let Err(Failure::Transient(_) | Failure::RateLimited { .. }) = played {
            played = attempt_at(&prompt, 2, &mut lines).await;
        }
        if let [(_, finish)] = lines.as_slice()
            && finish == &["stop"]
        {
            break;
        }
        writeln!(text, "answer {step}").unwrap();
        for (verb, deltas) in &lines {
            writeln!(text, "  {verb:6} {}", deltas.join("|")).unwrap();
        }
        if played.is_err() {
            break;
        }
        let calls = lines.iter().filter(|(verb, _)| verb.starts_with("call")).count();
        prompt.messages.push(assistant(""));
        let results = (1..=calls).map(|call| result(&format!("the result of call {call}")));
        prompt.messages.extend(results);
    }
    text
}

type Line = (String, Vec<String>);

/// Plays one attempt and writes it down, deltas of a kind on the same line.
async fn attempt_at(prompt: &Prompt, attempt: u32, lines: &mut Vec<Line>) -> Result<(), Failure> {
    let mut chunks = Scripted.generate(request(prompt, attempt));
    let mut clock = Instant::now();
    while let Some(chunk) = chunks.next().await {
        let waited = std::mem::replace(&mut clock, Instant::now()).elapsed().as_millis();
        let (verb, delta) = match chunk {
            Ok(Chunk::Delta(Delta::Text(text))) => ("say", text),
            Ok(Chunk::Delta(Delta::Reasoning { text, .. })) => ("think", text),
            Ok(Chunk::Delta(Delta::ToolCallInput { input_json, .. })) => ("call", input_json),
            Ok(Chunk::Delta(Delta::ToolCallStarted { tool, .. })) => {
                lines.push((format!("call   {tool}"), Vec::new()));
                continue;
            }
            Ok(Chunk::Delta(Delta::ToolCallCompleted { .. })) => continue,
            Ok(Chunk::Finished { finish_reason, usage }) => {
                if let Some(Usage { input, output, reasoning, cache_read, cache_write }) = usage {
                    let counts = format!(
                        "input={input} output={output} reasoning={reasoning} \
                         cache_read={cache_read} cache_write={cache_write}"
                    );
                    lines.push(("usage".to_owned(), vec![counts]));
                }
                lines.push(("finish".to_owned(), vec![finish_reason.as_str().to_owned()]));
                return Ok(());
            }
            Err(Broken { failure, .. }) => {
                lines.push(("error".to_owned(), vec![failure.to_string()]));
                return Err(failure);
            }
        };
        let delta = match waited {
            0 => delta.replace('\n', "⏎"),
            waited => format!("+{waited}ms {delta}"),
        };
        match lines.last_mut() {
            Some((last, deltas)) if last.starts_with(verb) => deltas.push(delta),
            _ => lines.push((verb.to_owned(), vec![delta])),
        }
    }
    panic!("an answer ends with a failure or a finish")
}
