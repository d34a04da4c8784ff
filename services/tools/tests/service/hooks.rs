//! Hooks as they are asked, in every way that they can answer or not.

use expect_test::{Expect, expect};
use hmac::{Hmac, Mac as _};
use proto::{
    event::v1::{Event, Payload},
    tools::v1::{
        Call, Hook, Permissions, Rule, RunHooksRequest, RunHooksResponse,
        hook::Target,
        permissions::Mode,
        rule::{Action, Source},
    },
};
use serde_json::{Value, json};
use sha2::Sha256;
use sqlx::PgPool;
use tonic::Status;

use crate::{
    receiver::Receiver,
    world::{World, explain, rule},
};

const SECRET: &str = "another secret that is long enough";

async fn world(db: PgPool) -> (World, Receiver) {
    let flags = ["--egress-allow-private", "127.0.0.1", "--hook-secret", SECRET];
    (World::with(db, &flags).await, Receiver::start().await)
}

fn hook(event: &str, target: Target) -> Hook {
    Hook { hook_id: "guard".into(), event: event.into(), target: Some(target), ..Hook::default() }
}

fn url(event: &str, url: String) -> Hook {
    hook(event, Target::Url(url))
}

/// What a hook may do, as a URL and as a command.
fn behaviours(receiver: &Receiver) -> Vec<(&'static str, Target, Target)> {
    let prints = |answer: &str| format!("cat > /dev/null; echo '{answer}'");
    let says = |name, answer: &str| {
        (name, Target::Url(receiver.says(answer)), Target::Command(prints(answer)))
    };
    let does = |name, what: &str, command: &str| {
        (name, Target::Url(receiver.does(what)), Target::Command(command.into()))
    };
    vec![
        does("nothing", "nothing", "true"),
        says("continue", r#"{"decision": "continue"}"#),
        says("allow", r#"{"decision": "allow", "reason": "known"}"#),
        says("deny", r#"{"decision": "deny", "reason": "not here"}"#),
        says("block", r#"{"decision": "block", "reason": "not now"}"#),
        says("rewrite", r#"{"decision": "rewrite", "updated_input": {"command": "pwd"}}"#),
        says("a wrong rewrite", r#"{"decision": "rewrite", "updated_input": {"command": 1}}"#),
        says("context", r#"{"context": "mind the gap"}"#),
        says("garbage", "well"),
        does("failure", "fails", "echo oops >&2; exit 1"),
        does("flood", "floods", "head -c 2000000 /dev/zero"),
        does("timeout", "sleeps", "sleep 30"),
        does("redirect or exit 2", "redirects", "echo no way >&2; exit 2"),
    ]
}

impl World {
    async fn run_hooks(&self, request: RunHooksRequest) -> Result<RunHooksResponse, Status> {
        let request = self.peer.request(&self.caller, request);
        Ok(self.client.clone().run_hooks(request).await?.into_inner())
    }

    fn happened(&self, event: &str) -> RunHooksRequest {
        let call = self.bash("true");
        RunHooksRequest {
            session_id: call.session_id,
            epoch: 1,
            turn_id: call.turn_id,
            workspace_id: call.workspace_id,
            event: event.into(),
            text: "hello".into(),
            stops: 0,
        }
    }

    /// Lets an event happen and says what came of it, in one line.
    async fn happens(&self, event: &str, workspace_id: &str) -> String {
        match event {
            "pre_tool_use" | "permission_request" => {
                let action = if event == "pre_tool_use" { Action::Allow } else { Action::Ask };
                let call = governed(self.bash("ls"), vec![rule("bash", "*", action)]);
                let answer = self.evaluate(call.clone()).await.unwrap();
                let found = answer.evaluation.unwrap();
                let changed = match answer.input_json == call.input_json {
                    true => String::new(),
                    false => format!(" {}", answer.input_json),
                };
                let facts = answer.facts.iter().map(told).collect::<String>();
                format!("{facts}{} {}{changed}: {}", found.decision, found.cause, found.reason)
            }
            "post_tool_use" | "post_tool_failure" => {
                let path = if event == "post_tool_use" { "note" } else { "missing" };
                let ended = self.tool(workspace_id, "read", json!({ "path": path })).await;
                let facts = ended.facts.iter().map(told).collect::<String>();
                let result = match ended.outcome.error_kind.as_str() {
                    "" => "result".to_owned(),
                    kind => format!("{kind} {}", ended.error().1),
                };
                format!("{facts}{result}{}", context(&ended.outcome.metadata.unwrap().hook_context))
            }
            event => {
                let answer = self.run_hooks(self.happened(event)).await.unwrap();
                let facts = answer.facts.iter().map(told).collect::<String>();
                let verdict = match answer.blocked {
                    true => format!("blocked: {}", answer.reason),
                    false => "goes on".to_owned(),
                };
                format!("{facts}{verdict}{}", context(&answer.context))
            }
        }
    }

    /// Everything that hooks of an event can do, and what comes of it.
    async fn table(&self, receiver: &Receiver, event: &str, expected: Expect) {
        let mut lines = String::new();
        let workspace_id = self.workspace("echo one > note").await;
        for (name, http, command) in behaviours(receiver) {
            // What comes of it, and of which ways to be and to fail.
            let mut came: Vec<(String, Vec<&str>)> = Vec::new();
            for (way, target, fail_open) in [
                ("http", &http, false),
                ("command", &command, false),
                ("http open", &http, true),
                ("command open", &command, true),
            ] {
                let timeout_ms = if name == "timeout" { 300 } else { 20_000 };
                let hook = Hook { fail_open, timeout_ms, ..hook(event, target.clone()) };
                self.put_hook("", hook).await.unwrap();
                let line = self.happens(event, &workspace_id).await;
                match came.iter_mut().find(|(known, _)| *known == line) {
                    Some((_, ways)) => ways.push(way),
                    None => came.push((line, vec![way])),
                }
            }
            lines += &format!("{name}\n");
            for (line, ways) in came {
                let ways = if ways.len() == 4 { "always".to_owned() } else { ways.join(", ") };
                lines += &format!("    {ways}: {line}\n");
            }
        }
        self.delete_hook("", "guard").await.unwrap();
        expected.assert_eq(&lines);
    }
}

fn governed(call: Call, rules: Vec<Rule>) -> Call {
    Call { permissions: Some(Permissions { rules, ..Permissions::default() }), ..call }
}

fn context(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" [{text}]") }
}

/// A fact about a hook, in a few words.
fn told(fact: &Event) -> String {
    assert!(fact.session_id.starts_with("ses_") && fact.turn_id == "turn_1", "{fact:?}");
    match &fact.payload {
        Some(Payload::HookStarted(hook)) => format!("{} asked, ", hook.hook_id),
        Some(Payload::HookCompleted(hook)) => {
            assert_eq!(hook.outcome == "rewrite", fact.refs.contains_key("updatedInputRef"));
            format!("says {} {:?}; ", hook.outcome, hook.reason)
        }
        Some(Payload::HookFailed(hook)) => format!("failed {}, {}; ", hook.fail_mode, hook.error),
        _ => String::new(),
    }
}

#[sqlx::test(migrations = false)]
async fn before_a_tool_hooks_allow_deny_and_rewrite(db: PgPool) {
    let (world, receiver) = world(db).await;
    world.table(&receiver, "pre_tool_use", expect![[r#"
        nothing
            always: guard asked, says continue ""; allow rule: the rule bash "*" of the manifest allows it
        continue
            always: guard asked, says continue ""; allow rule: the rule bash "*" of the manifest allows it
        allow
            always: guard asked, says allow "known"; allow rule: the rule bash "*" of the manifest allows it
        deny
            always: guard asked, says deny "not here"; deny hook: the hook guard blocks it: not here
        block
            always: guard asked, says block "not now"; deny hook: the hook guard blocks it: not now
        rewrite
            always: guard asked, says rewrite ""; allow rule {"command": "pwd"}: the rule bash "*" of the manifest allows it (of the input that the hook guard wrote)
        a wrong rewrite
            http, command: guard asked, failed closed, it rewrote, and the input does not fit the schema of bash: /command: 1 is not of type "string"; deny hook: the hook guard blocks it: it failed, it rewrote, and the input does not fit the schema of bash: /command: 1 is not of type "string"
            http open, command open: guard asked, failed open, it rewrote, and the input does not fit the schema of bash: /command: 1 is not of type "string"; allow rule: the rule bash "*" of the manifest allows it
        context
            http, command: guard asked, failed closed, pre_tool_use does not take context; deny hook: the hook guard blocks it: it failed, pre_tool_use does not take context
            http open, command open: guard asked, failed open, pre_tool_use does not take context; allow rule: the rule bash "*" of the manifest allows it
        garbage
            http, command: guard asked, failed closed, its answer is no JSON object; deny hook: the hook guard blocks it: it failed, its answer is no JSON object
            http open, command open: guard asked, failed open, its answer is no JSON object; allow rule: the rule bash "*" of the manifest allows it
        failure
            http: guard asked, failed closed, it answered 500 Internal Server Error; deny hook: the hook guard blocks it: it failed, it answered 500 Internal Server Error
            command: guard asked, failed closed, it ended with the exit code 1: oops; deny hook: the hook guard blocks it: it failed, it ended with the exit code 1: oops
            http open: guard asked, failed open, it answered 500 Internal Server Error; allow rule: the rule bash "*" of the manifest allows it
            command open: guard asked, failed open, it ended with the exit code 1: oops; allow rule: the rule bash "*" of the manifest allows it
        flood
            http, command: guard asked, failed closed, its answer is larger than 1 MiB; deny hook: the hook guard blocks it: it failed, its answer is larger than 1 MiB
            http open, command open: guard asked, failed open, its answer is larger than 1 MiB; allow rule: the rule bash "*" of the manifest allows it
        timeout
            http, command: guard asked, failed closed, it did not answer within 300 ms; deny hook: the hook guard blocks it: it failed, it did not answer within 300 ms
            http open, command open: guard asked, failed open, it did not answer within 300 ms; allow rule: the rule bash "*" of the manifest allows it
        redirect or exit 2
            http: guard asked, failed closed, it answered 302 Found, and redirects are not followed; deny hook: the hook guard blocks it: it failed, it answered 302 Found, and redirects are not followed
            command, command open: guard asked, says block "no way"; deny hook: the hook guard blocks it: no way
            http open: guard asked, failed open, it answered 302 Found, and redirects are not followed; allow rule: the rule bash "*" of the manifest allows it
    "#]]).await;
}

#[sqlx::test(migrations = false)]
async fn hooks_answer_in_the_place_of_a_person(db: PgPool) {
    let (world, receiver) = world(db).await;
    world.table(&receiver, "permission_request", expect![[r#"
        nothing
            always: guard asked, says continue ""; ask rule: the rule bash "*" of the manifest asks a person
        continue
            always: guard asked, says continue ""; ask rule: the rule bash "*" of the manifest asks a person
        allow
            always: guard asked, says allow "known"; allow hook: the rule bash "*" of the manifest asks a person, and the hook guard allows it
        deny
            always: guard asked, says deny "not here"; deny hook: the hook guard blocks it: not here
        block
            always: guard asked, says block "not now"; deny hook: the hook guard blocks it: not now
        rewrite
            http, command: guard asked, failed closed, permission_request does not take the decision "rewrite"; deny hook: the hook guard blocks it: it failed, permission_request does not take the decision "rewrite"
            http open, command open: guard asked, failed open, permission_request does not take the decision "rewrite"; ask rule: the rule bash "*" of the manifest asks a person
        a wrong rewrite
            http, command: guard asked, failed closed, permission_request does not take the decision "rewrite"; deny hook: the hook guard blocks it: it failed, permission_request does not take the decision "rewrite"
            http open, command open: guard asked, failed open, permission_request does not take the decision "rewrite"; ask rule: the rule bash "*" of the manifest asks a person
        context
            http, command: guard asked, failed closed, permission_request does not take context; deny hook: the hook guard blocks it: it failed, permission_request does not take context
            http open, command open: guard asked, failed open, permission_request does not take context; ask rule: the rule bash "*" of the manifest asks a person
        garbage
            http, command: guard asked, failed closed, its answer is no JSON object; deny hook: the hook guard blocks it: it failed, its answer is no JSON object
            http open, command open: guard asked, failed open, its answer is no JSON object; ask rule: the rule bash "*" of the manifest asks a person
        failure
            http: guard asked, failed closed, it answered 500 Internal Server Error; deny hook: the hook guard blocks it: it failed, it answered 500 Internal Server Error
            command: guard asked, failed closed, it ended with the exit code 1: oops; deny hook: the hook guard blocks it: it failed, it ended with the exit code 1: oops
            http open: guard asked, failed open, it answered 500 Internal Server Error; ask rule: the rule bash "*" of the manifest asks a person
            command open: guard asked, failed open, it ended with the exit code 1: oops; ask rule: the rule bash "*" of the manifest asks a person
        flood
            http, command: guard asked, failed closed, its answer is larger than 1 MiB; deny hook: the hook guard blocks it: it failed, its answer is larger than 1 MiB
            http open, command open: guard asked, failed open, its answer is larger than 1 MiB; ask rule: the rule bash "*" of the manifest asks a person
        timeout
            http, command: guard asked, failed closed, it did not answer within 300 ms; deny hook: the hook guard blocks it: it failed, it did not answer within 300 ms
            http open, command open: guard asked, failed open, it did not answer within 300 ms; ask rule: the rule bash "*" of the manifest asks a person
        redirect or exit 2
            http: guard asked, failed closed, it answered 302 Found, and redirects are not followed; deny hook: the hook guard blocks it: it failed, it answered 302 Found, and redirects are not followed
            command, command open: guard asked, says block "no way"; deny hook: the hook guard blocks it: no way
            http open: guard asked, failed open, it answered 302 Found, and redirects are not followed; ask rule: the rule bash "*" of the manifest asks a person
    "#]]).await;
}

#[sqlx::test(migrations = false)]
async fn after_a_tool_hooks_add_to_its_result_or_withhold_it(db: PgPool) {
    let (world, receiver) = world(db).await;
    world.table(&receiver, "post_tool_use", expect![[r#"
        nothing
            always: guard asked, says continue ""; result
        continue
            always: guard asked, says continue ""; result
        allow
            http, command: guard asked, failed closed, post_tool_use does not take the decision "allow"; denied read ran, and its result is withheld: the hook guard blocks it: it failed, post_tool_use does not take the decision "allow"
            http open, command open: guard asked, failed open, post_tool_use does not take the decision "allow"; result
        deny
            http, command: guard asked, failed closed, post_tool_use does not take the decision "deny"; denied read ran, and its result is withheld: the hook guard blocks it: it failed, post_tool_use does not take the decision "deny"
            http open, command open: guard asked, failed open, post_tool_use does not take the decision "deny"; result
        block
            always: guard asked, says block "not now"; denied read ran, and its result is withheld: the hook guard blocks it: not now
        rewrite
            http, command: guard asked, failed closed, post_tool_use does not take the decision "rewrite"; denied read ran, and its result is withheld: the hook guard blocks it: it failed, post_tool_use does not take the decision "rewrite"
            http open, command open: guard asked, failed open, post_tool_use does not take the decision "rewrite"; result
        a wrong rewrite
            http, command: guard asked, failed closed, post_tool_use does not take the decision "rewrite"; denied read ran, and its result is withheld: the hook guard blocks it: it failed, post_tool_use does not take the decision "rewrite"
            http open, command open: guard asked, failed open, post_tool_use does not take the decision "rewrite"; result
        context
            always: guard asked, says continue ""; result [mind the gap]
        garbage
            http, command: guard asked, failed closed, its answer is no JSON object; denied read ran, and its result is withheld: the hook guard blocks it: it failed, its answer is no JSON object
            http open, command open: guard asked, failed open, its answer is no JSON object; result
        failure
            http: guard asked, failed closed, it answered 500 Internal Server Error; denied read ran, and its result is withheld: the hook guard blocks it: it failed, it answered 500 Internal Server Error
            command: guard asked, failed closed, it ended with the exit code 1: oops; denied read ran, and its result is withheld: the hook guard blocks it: it failed, it ended with the exit code 1: oops
            http open: guard asked, failed open, it answered 500 Internal Server Error; result
            command open: guard asked, failed open, it ended with the exit code 1: oops; result
        flood
            http, command: guard asked, failed closed, its answer is larger than 1 MiB; denied read ran, and its result is withheld: the hook guard blocks it: it failed, its answer is larger than 1 MiB
            http open, command open: guard asked, failed open, its answer is larger than 1 MiB; result
        timeout
            http, command: guard asked, failed closed, it did not answer within 300 ms; denied read ran, and its result is withheld: the hook guard blocks it: it failed, it did not answer within 300 ms
            http open, command open: guard asked, failed open, it did not answer within 300 ms; result
        redirect or exit 2
            http: guard asked, failed closed, it answered 302 Found, and redirects are not followed; denied read ran, and its result is withheld: the hook guard blocks it: it failed, it answered 302 Found, and redirects are not followed
            command, command open: guard asked, says block "no way"; denied read ran, and its result is withheld: the hook guard blocks it: no way
            http open: guard asked, failed open, it answered 302 Found, and redirects are not followed; result
    "#]]).await;
}

#[sqlx::test(migrations = false)]
async fn after_a_failure_hooks_add_to_it_or_withhold_it(db: PgPool) {
    let (world, receiver) = world(db).await;
    world.table(&receiver, "post_tool_failure", expect![[r#"
        nothing
            always: guard asked, says continue ""; failed there is no "missing" in the workspace
        continue
            always: guard asked, says continue ""; failed there is no "missing" in the workspace
        allow
            http, command: guard asked, failed closed, post_tool_failure does not take the decision "allow"; failed read failed, and what it said is withheld: the hook guard blocks it: it failed, post_tool_failure does not take the decision "allow"
            http open, command open: guard asked, failed open, post_tool_failure does not take the decision "allow"; failed there is no "missing" in the workspace
        deny
            http, command: guard asked, failed closed, post_tool_failure does not take the decision "deny"; failed read failed, and what it said is withheld: the hook guard blocks it: it failed, post_tool_failure does not take the decision "deny"
            http open, command open: guard asked, failed open, post_tool_failure does not take the decision "deny"; failed there is no "missing" in the workspace
        block
            always: guard asked, says block "not now"; failed read failed, and what it said is withheld: the hook guard blocks it: not now
        rewrite
            http, command: guard asked, failed closed, post_tool_failure does not take the decision "rewrite"; failed read failed, and what it said is withheld: the hook guard blocks it: it failed, post_tool_failure does not take the decision "rewrite"
            http open, command open: guard asked, failed open, post_tool_failure does not take the decision "rewrite"; failed there is no "missing" in the workspace
        a wrong rewrite
            http, command: guard asked, failed closed, post_tool_failure does not take the decision "rewrite"; failed read failed, and what it said is withheld: the hook guard blocks it: it failed, post_tool_failure does not take the decision "rewrite"
            http open, command open: guard asked, failed open, post_tool_failure does not take the decision "rewrite"; failed there is no "missing" in the workspace
        context
            always: guard asked, says continue ""; failed there is no "missing" in the workspace [mind the gap]
        garbage
            http, command: guard asked, failed closed, its answer is no JSON object; failed read failed, and what it said is withheld: the hook guard blocks it: it failed, its answer is no JSON object
            http open, command open: guard asked, failed open, its answer is no JSON object; failed there is no "missing" in the workspace
        failure
            http: guard asked, failed closed, it answered 500 Internal Server Error; failed read failed, and what it said is withheld: the hook guard blocks it: it failed, it answered 500 Internal Server Error
            command: guard asked, failed closed, it ended with the exit code 1: oops; failed read failed, and what it said is withheld: the hook guard blocks it: it failed, it ended with the exit code 1: oops
            http open: guard asked, failed open, it answered 500 Internal Server Error; failed there is no "missing" in the workspace
            command open: guard asked, failed open, it ended with the exit code 1: oops; failed there is no "missing" in the workspace
        flood
            http, command: guard asked, failed closed, its answer is larger than 1 MiB; failed read failed, and what it said is withheld: the hook guard blocks it: it failed, its answer is larger than 1 MiB
            http open, command open: guard asked, failed open, its answer is larger than 1 MiB; failed there is no "missing" in the workspace
        timeout
            http, command: guard asked, failed closed, it did not answer within 300 ms; failed read failed, and what it said is withheld: the hook guard blocks it: it failed, it did not answer within 300 ms
            http open, command open: guard asked, failed open, it did not answer within 300 ms; failed there is no "missing" in the workspace
        redirect or exit 2
            http: guard asked, failed closed, it answered 302 Found, and redirects are not followed; failed read failed, and what it said is withheld: the hook guard blocks it: it failed, it answered 302 Found, and redirects are not followed
            command, command open: guard asked, says block "no way"; failed read failed, and what it said is withheld: the hook guard blocks it: no way
            http open: guard asked, failed open, it answered 302 Found, and redirects are not followed; failed there is no "missing" in the workspace
    "#]]).await;
}

#[sqlx::test(migrations = false)]
async fn a_session_that_starts_is_told_or_blocked(db: PgPool) {
    let (world, receiver) = world(db).await;
    world.table(&receiver, "session_start", expect![[r#"
        nothing
            always: guard asked, says continue ""; goes on
        continue
            always: guard asked, says continue ""; goes on
        allow
            http, command: guard asked, failed closed, session_start does not take the decision "allow"; blocked: the hook guard blocks it: it failed, session_start does not take the decision "allow"
            http open, command open: guard asked, failed open, session_start does not take the decision "allow"; goes on
        deny
            http, command: guard asked, failed closed, session_start does not take the decision "deny"; blocked: the hook guard blocks it: it failed, session_start does not take the decision "deny"
            http open, command open: guard asked, failed open, session_start does not take the decision "deny"; goes on
        block
            always: guard asked, says block "not now"; blocked: the hook guard blocks it: not now
        rewrite
            http, command: guard asked, failed closed, session_start does not take the decision "rewrite"; blocked: the hook guard blocks it: it failed, session_start does not take the decision "rewrite"
            http open, command open: guard asked, failed open, session_start does not take the decision "rewrite"; goes on
        a wrong rewrite
            http, command: guard asked, failed closed, session_start does not take the decision "rewrite"; blocked: the hook guard blocks it: it failed, session_start does not take the decision "rewrite"
            http open, command open: guard asked, failed open, session_start does not take the decision "rewrite"; goes on
        context
            always: guard asked, says continue ""; goes on [mind the gap]
        garbage
            http, command: guard asked, failed closed, its answer is no JSON object; blocked: the hook guard blocks it: it failed, its answer is no JSON object
            http open, command open: guard asked, failed open, its answer is no JSON object; goes on
        failure
            http: guard asked, failed closed, it answered 500 Internal Server Error; blocked: the hook guard blocks it: it failed, it answered 500 Internal Server Error
            command: guard asked, failed closed, it ended with the exit code 1: oops; blocked: the hook guard blocks it: it failed, it ended with the exit code 1: oops
            http open: guard asked, failed open, it answered 500 Internal Server Error; goes on
            command open: guard asked, failed open, it ended with the exit code 1: oops; goes on
        flood
            http, command: guard asked, failed closed, its answer is larger than 1 MiB; blocked: the hook guard blocks it: it failed, its answer is larger than 1 MiB
            http open, command open: guard asked, failed open, its answer is larger than 1 MiB; goes on
        timeout
            http, command: guard asked, failed closed, it did not answer within 300 ms; blocked: the hook guard blocks it: it failed, it did not answer within 300 ms
            http open, command open: guard asked, failed open, it did not answer within 300 ms; goes on
        redirect or exit 2
            http: guard asked, failed closed, it answered 302 Found, and redirects are not followed; blocked: the hook guard blocks it: it failed, it answered 302 Found, and redirects are not followed
            command, command open: guard asked, says block "no way"; blocked: the hook guard blocks it: no way
            http open: guard asked, failed open, it answered 302 Found, and redirects are not followed; goes on
    "#]]).await;
}

#[sqlx::test(migrations = false)]
async fn a_prompt_is_added_to_or_blocked(db: PgPool) {
    let (world, receiver) = world(db).await;
    world.table(&receiver, "user_prompt_submit", expect![[r#"
        nothing
            always: guard asked, says continue ""; goes on
        continue
            always: guard asked, says continue ""; goes on
        allow
            http, command: guard asked, failed closed, user_prompt_submit does not take the decision "allow"; blocked: the hook guard blocks it: it failed, user_prompt_submit does not take the decision "allow"
            http open, command open: guard asked, failed open, user_prompt_submit does not take the decision "allow"; goes on
        deny
            http, command: guard asked, failed closed, user_prompt_submit does not take the decision "deny"; blocked: the hook guard blocks it: it failed, user_prompt_submit does not take the decision "deny"
            http open, command open: guard asked, failed open, user_prompt_submit does not take the decision "deny"; goes on
        block
            always: guard asked, says block "not now"; blocked: the hook guard blocks it: not now
        rewrite
            http, command: guard asked, failed closed, user_prompt_submit does not take the decision "rewrite"; blocked: the hook guard blocks it: it failed, user_prompt_submit does not take the decision "rewrite"
            http open, command open: guard asked, failed open, user_prompt_submit does not take the decision "rewrite"; goes on
        a wrong rewrite
            http, command: guard asked, failed closed, user_prompt_submit does not take the decision "rewrite"; blocked: the hook guard blocks it: it failed, user_prompt_submit does not take the decision "rewrite"
            http open, command open: guard asked, failed open, user_prompt_submit does not take the decision "rewrite"; goes on
        context
            always: guard asked, says continue ""; goes on [mind the gap]
        garbage
            http, command: guard asked, failed closed, its answer is no JSON object; blocked: the hook guard blocks it: it failed, its answer is no JSON object
            http open, command open: guard asked, failed open, its answer is no JSON object; goes on
        failure
            http: guard asked, failed closed, it answered 500 Internal Server Error; blocked: the hook guard blocks it: it failed, it answered 500 Internal Server Error
            command: guard asked, failed closed, it ended with the exit code 1: oops; blocked: the hook guard blocks it: it failed, it ended with the exit code 1: oops
            http open: guard asked, failed open, it answered 500 Internal Server Error; goes on
            command open: guard asked, failed open, it ended with the exit code 1: oops; goes on
        flood
            http, command: guard asked, failed closed, its answer is larger than 1 MiB; blocked: the hook guard blocks it: it failed, its answer is larger than 1 MiB
            http open, command open: guard asked, failed open, its answer is larger than 1 MiB; goes on
        timeout
            http, command: guard asked, failed closed, it did not answer within 300 ms; blocked: the hook guard blocks it: it failed, it did not answer within 300 ms
            http open, command open: guard asked, failed open, it did not answer within 300 ms; goes on
        redirect or exit 2
            http: guard asked, failed closed, it answered 302 Found, and redirects are not followed; blocked: the hook guard blocks it: it failed, it answered 302 Found, and redirects are not followed
            command, command open: guard asked, says block "no way"; blocked: the hook guard blocks it: no way
            http open: guard asked, failed open, it answered 302 Found, and redirects are not followed; goes on
    "#]]).await;
}

#[sqlx::test(migrations = false)]
async fn a_turn_that_stops_may_be_sent_on(db: PgPool) {
    let (world, receiver) = world(db).await;
    world.table(&receiver, "stop", expect![[r#"
        nothing
            always: guard asked, says continue ""; goes on
        continue
            always: guard asked, says continue ""; goes on
        allow
            http, command: guard asked, failed closed, stop does not take the decision "allow"; blocked: the hook guard blocks it: it failed, stop does not take the decision "allow"
            http open, command open: guard asked, failed open, stop does not take the decision "allow"; goes on
        deny
            http, command: guard asked, failed closed, stop does not take the decision "deny"; blocked: the hook guard blocks it: it failed, stop does not take the decision "deny"
            http open, command open: guard asked, failed open, stop does not take the decision "deny"; goes on
        block
            always: guard asked, says block "not now"; blocked: the hook guard blocks it: not now
        rewrite
            http, command: guard asked, failed closed, stop does not take the decision "rewrite"; blocked: the hook guard blocks it: it failed, stop does not take the decision "rewrite"
            http open, command open: guard asked, failed open, stop does not take the decision "rewrite"; goes on
        a wrong rewrite
            http, command: guard asked, failed closed, stop does not take the decision "rewrite"; blocked: the hook guard blocks it: it failed, stop does not take the decision "rewrite"
            http open, command open: guard asked, failed open, stop does not take the decision "rewrite"; goes on
        context
            http, command: guard asked, failed closed, stop does not take context; blocked: the hook guard blocks it: it failed, stop does not take context
            http open, command open: guard asked, failed open, stop does not take context; goes on
        garbage
            http, command: guard asked, failed closed, its answer is no JSON object; blocked: the hook guard blocks it: it failed, its answer is no JSON object
            http open, command open: guard asked, failed open, its answer is no JSON object; goes on
        failure
            http: guard asked, failed closed, it answered 500 Internal Server Error; blocked: the hook guard blocks it: it failed, it answered 500 Internal Server Error
            command: guard asked, failed closed, it ended with the exit code 1: oops; blocked: the hook guard blocks it: it failed, it ended with the exit code 1: oops
            http open: guard asked, failed open, it answered 500 Internal Server Error; goes on
            command open: guard asked, failed open, it ended with the exit code 1: oops; goes on
        flood
            http, command: guard asked, failed closed, its answer is larger than 1 MiB; blocked: the hook guard blocks it: it failed, its answer is larger than 1 MiB
            http open, command open: guard asked, failed open, its answer is larger than 1 MiB; goes on
        timeout
            http, command: guard asked, failed closed, it did not answer within 300 ms; blocked: the hook guard blocks it: it failed, it did not answer within 300 ms
            http open, command open: guard asked, failed open, it did not answer within 300 ms; goes on
        redirect or exit 2
            http: guard asked, failed closed, it answered 302 Found, and redirects are not followed; blocked: the hook guard blocks it: it failed, it answered 302 Found, and redirects are not followed
            command, command open: guard asked, says block "no way"; blocked: the hook guard blocks it: no way
            http open: guard asked, failed open, it answered 302 Found, and redirects are not followed; goes on
    "#]]).await;
}

#[sqlx::test(migrations = false)]
async fn a_hooks_allow_settles_an_ask_and_beats_no_deny(db: PgPool) {
    let (world, receiver) = world(db).await;
    let allow = receiver.says(r#"{"decision": "allow"}"#);
    for event in ["pre_tool_use", "permission_request"] {
        let hook = Hook { hook_id: event.replace('_', "-"), ..url(event, allow.clone()) };
        world.put_hook("", hook).await.unwrap();
    }
    let mut lines = String::new();
    let of = |source: Source, action| {
        let mut rule = rule("bash", "rm *", action);
        rule.set_source(source);
        rule
    };
    let mut permissions = vec![
        ("ask of the manifest", vec![of(Source::Manifest, Action::Ask)], Mode::Default),
        ("deny of the manifest", vec![of(Source::Manifest, Action::Deny)], Mode::Default),
        ("deny of the session", vec![of(Source::Session, Action::Deny)], Mode::Default),
        ("deny of the project", vec![of(Source::Project, Action::Deny)], Mode::Default),
        ("the mode plan", vec![of(Source::Manifest, Action::Allow)], Mode::Plan),
        ("the mode never ask", vec![of(Source::Manifest, Action::Ask)], Mode::NeverAsk),
        ("no rule", vec![], Mode::Default),
    ];
    permissions.push(("another tool's scope", vec![], Mode::Auto));
    for (name, rules, mode) in permissions {
        let tools = if name.ends_with("scope") { vec!["read".into()] } else { vec![] };
        let permissions = Permissions { rules, mode: mode.into(), tools, ..Default::default() };
        let call = Call { permissions: Some(permissions), ..world.bash("rm x") };
        let found = world.evaluate(call).await.unwrap();
        let asked = receiver.heard().len();
        let found = found.evaluation.unwrap();
        lines += &format!(
            "{name}: {} {}, {asked} asked: {}\n",
            found.decision, found.cause, found.reason
        );
    }
    expect![[r#"
        ask of the manifest: allow hook, 1 asked: the rule bash "rm *" of the manifest asks a person, and the hook pre-tool-use allows it
        deny of the manifest: deny rule, 0 asked: the rule bash "rm *" of the manifest denies it
        deny of the session: deny rule, 0 asked: the rule bash "rm *" of the session denies it
        deny of the project: deny rule, 0 asked: the rule bash "rm *" of the project denies it
        the mode plan: deny mode, 0 asked: "rm x" is not known to only read, and the mode is plan
        the mode never ask: deny mode, 0 asked: the rule bash "rm *" of the manifest asks a person, and nobody can be asked
        no rule: allow hook, 1 asked: "rm x" removes files, and no rule decides about it, and the hook pre-tool-use allows it
        another tool's scope: deny capability, 0 asked: this agent does not have the tool bash
    "#]].assert_eq(&lines);
}

#[sqlx::test(migrations = false)]
async fn what_a_hook_writes_is_evaluated_and_kept(db: PgPool) {
    let (world, receiver) = world(db).await;
    let rewrite = |input: Value| {
        receiver.says(&json!({ "decision": "rewrite", "updated_input": input }).to_string())
    };
    let first = Hook { order: 1, hook_id: "first".into(), ..url("pre_tool_use", String::new()) };
    let put = async |hook: Hook, answer: String| {
        world.put_hook("", Hook { target: Some(Target::Url(answer)), ..hook }).await.unwrap();
    };
    // An allow for another input does not count.
    let allow = receiver.says(r#"{"decision": "allow"}"#);
    put(Hook { hook_id: "zeroth".into(), order: 0, ..first.clone() }, allow.clone()).await;
    put(first.clone(), rewrite(json!({ "command": "rm -rf b" }))).await;
    let call = governed(
        world.bash("ls"),
        vec![rule("bash", "rm *", Action::Ask), rule("bash", "shred *", Action::Deny)],
    );
    let answer = world.evaluate(call.clone()).await.unwrap();
    assert_eq!(answer.evaluation.as_ref().unwrap().decision, "ask");
    assert_eq!(answer.input_json, r#"{"command":"rm -rf b"}"#);
    expect![[r#"the rule bash "rm *" of the manifest asks a person (of the input that the hook first wrote)"#]].assert_eq(&answer.evaluation.unwrap().reason);
    let heard = receiver.heard();
    assert_eq!(heard[1].body()["input"], json!({ "command": "ls" }));
    assert_eq!(heard[1].body()["permission"]["decision"], "allow");

    // What was written can be read by its ref.
    let completed = answer.facts.iter().rfind(|fact| fact.r#type == "hook.completed").unwrap();
    let Some(Payload::HookCompleted(hook)) = &completed.payload else { panic!() };
    assert_eq!(hook.updated_input_json, answer.input_json);
    let output_ref = completed.refs["updatedInputRef"].clone();
    assert_eq!(world.output(&output_ref).await, answer.input_json);

    // The next one sees what the one before wrote, and its allow counts.
    put(Hook { hook_id: "second".into(), order: 2, ..first.clone() }, allow).await;
    let answer = world.evaluate(call.clone()).await.unwrap();
    assert_eq!(receiver.heard()[2].body()["input"], json!({ "command": "rm -rf b" }));
    let found = answer.evaluation.unwrap();
    assert_eq!((found.decision.as_str(), found.cause.as_str()), ("allow", "hook"));
    let settled = Call { input_json: answer.input_json, ..call.clone() };
    assert_eq!(world.execute(settled.clone()).await.unwrap().error().0, "denied");
    let again = Call { tool_call_id: world.bash("ls").tool_call_id, ..settled };
    assert_eq!(world.execute_approved(again).await.unwrap().data()["exit_code"], 0);

    // What rules deny stays denied, and no further hook is asked.
    receiver.heard();
    put(first, rewrite(json!({ "command": "shred x" }))).await;
    let found = world.evaluate(call).await.unwrap().evaluation.unwrap();
    assert_eq!((found.decision.as_str(), found.cause.as_str()), ("deny", "rule"));
    assert_eq!(receiver.heard().len(), 2);
}

#[sqlx::test(migrations = false)]
async fn a_hook_hears_only_of_its_tools_its_project_and_its_tenant(db: PgPool) {
    let (mut world, receiver) = world(db).await;
    let block = receiver.says(r#"{"decision": "block"}"#);
    let call = world.call("read", json!({ "path": "a" }));
    let only = Hook { tools: "{read,glob}".into(), ..url("pre_tool_use", block) };
    world.put_hook(&call.workspace_id, only).await.unwrap();
    let decision = async |world: &World, call: Call| {
        world.evaluate(call).await.unwrap().evaluation.unwrap().decision
    };
    assert_eq!(decision(&world, call.clone()).await, "deny");
    let bash = Call { workspace_id: call.workspace_id.clone(), ..world.bash("ls") };
    assert_eq!(decision(&world, bash).await, "allow");
    let elsewhere = world.call("read", json!({ "path": "a" }));
    assert_eq!(decision(&world, elsewhere).await, "allow");
    assert_eq!(receiver.heard().len(), 1);
    world.caller.tenant = "other".parse().unwrap();
    assert_eq!(decision(&world, call).await, "allow");
    assert!(receiver.heard().is_empty());
}

#[sqlx::test(migrations = false)]
async fn whoever_is_called_can_tell_that_it_was_us(db: PgPool) {
    let (world, receiver) = world(db).await;
    let put = world.put_hook("p", url("stop", receiver.says("{}"))).await.unwrap();
    let key = put.signing_secret.strip_prefix("whsec_").unwrap();
    let key = data_encoding::BASE64.decode(key.as_bytes()).unwrap();
    let mut happened = world.happened("stop");
    world.put_hook(&happened.workspace_id, url("stop", receiver.says("{}"))).await.unwrap();
    let mine = world.put_hook(&happened.workspace_id, url("stop", receiver.says("{}"))).await;
    let mine = mine.unwrap().signing_secret;
    assert_ne!(mine, put.signing_secret, "each hook has a key of its own");
    let other = data_encoding::BASE64.decode(mine.strip_prefix("whsec_").unwrap().as_bytes());
    let other = other.unwrap();

    world.run_hooks(happened.clone()).await.unwrap();
    world.run_hooks(happened.clone()).await.unwrap();
    happened.stops = 1;
    world.run_hooks(happened.clone()).await.unwrap();
    let heard = receiver.heard();
    for heard in &heard {
        let (id, timestamp) = (heard.header("webhook-id"), heard.header("webhook-timestamp"));
        let signed = format!("{id}.{timestamp}.{}", heard.text);
        let mut mac = Hmac::<Sha256>::new_from_slice(&other).unwrap();
        mac.update(signed.as_bytes());
        let signature = data_encoding::BASE64.encode(&mac.finalize().into_bytes());
        assert_eq!(heard.header("webhook-signature"), format!("v1,{signature}"));
        assert_ne!(key, other);
    }
    let id = |index: usize| heard[index].header("webhook-id").to_owned();
    assert_eq!(id(0), id(1), "the same event is known again");
    assert_ne!(id(1), id(2));
    let body = heard[2].body();
    assert_eq!(
        body,
        json!({
            "event": "stop", "hook_id": "guard", "project": happened.workspace_id,
            "workspace_id": happened.workspace_id, "session_id": happened.session_id,
            "turn_id": "turn_1", "message": "hello", "stops": 1,
        })
    );
}

#[sqlx::test(migrations = false)]
async fn a_hook_is_not_called_where_the_operator_does_not_want_it(db: PgPool) {
    let receiver = Receiver::start().await;
    let strict = World::start(db.clone()).await;
    let status =
        strict.put_hook("", url("pre_tool_use", receiver.does("nothing"))).await.unwrap_err();
    assert_eq!(
        explain(&status),
        "InvalidArgument REASON_INVALID_FIELD: invalid hook.url: 127.0.0.1 is not a public address"
    );
    // A name is only known by what it resolves to, which may change.
    let port = receiver.address.rsplit_once(':').unwrap().1;
    let named = format!("http://localhost:{port}/nothing?token=secret");
    strict.put_hook("", url("pre_tool_use", named)).await.unwrap();
    let found = strict.evaluate(strict.bash("ls")).await.unwrap();
    let reason = found.evaluation.unwrap().reason;
    assert!(reason.contains("its host has no public address"), "{reason}");
    assert!(!reason.contains("secret"), "{reason}");
    assert!(receiver.heard().is_empty());
}

#[sqlx::test(migrations = false)]
async fn an_owner_that_lost_its_session_asks_no_hooks(db: PgPool) {
    let (world, receiver) = world(db).await;
    world.put_hook("", url("stop", receiver.says("{}"))).await.unwrap();
    let happened = world.happened("stop");
    world.raise_epoch(&happened.session_id, 2).await.unwrap();
    let status = world.run_hooks(happened.clone()).await.unwrap_err();
    assert!(explain(&status).contains("REASON_EPOCH_STALE"), "{status:?}");
    assert!(receiver.heard().is_empty());
    world.run_hooks(RunHooksRequest { epoch: 2, ..happened.clone() }).await.unwrap();
    assert_eq!(receiver.heard().len(), 1);
    for (field, wrong) in [
        ("event", RunHooksRequest { event: "pre_tool_use".into(), ..happened.clone() }),
        ("stops", RunHooksRequest { stops: -1, ..happened.clone() }),
        ("workspace_id", RunHooksRequest { workspace_id: "x".into(), ..happened }),
    ] {
        let status = world.run_hooks(wrong).await.unwrap_err();
        assert!(status.message().starts_with(&format!("invalid {field}")), "{status:?}");
    }
}

#[sqlx::test(migrations = false)]
async fn a_command_hook_works_in_the_workspace_and_nowhere_else(db: PgPool) {
    let (world, _) = world(db).await;
    let command = r#"cat > event.json
        test "$PWD" = /workspace || exit 2
        cat /proc/net/dev | grep -q eth && exit 2
        touch /usr/bin/mine 2> /dev/null && exit 2
        echo '{"decision": "continue"}'"#;
    world.put_hook("", hook("pre_tool_use", Target::Command(command.into()))).await.unwrap();
    let call = world.bash("ls");
    let answer = world.evaluate(call.clone()).await.unwrap();
    assert_eq!(answer.evaluation.unwrap().decision, "allow");
    let event: Value = serde_json::from_str(&world.read(&call, "event.json")).unwrap();
    assert_eq!(event["tool"], "bash");
    assert_eq!(event["input"], json!({ "command": "ls" }));
    assert_eq!(event["tool_call_id"], call.tool_call_id);
}
