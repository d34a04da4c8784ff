use local::{Fleet, Service};
use proto::session::v1::{ListSessionsRequest, ReplayTurnRequest, evidence_scope::Scope};
use serde_json::json;
use tests::{Client, Session, Upstream, World, reason, request_id};

use crate::{
    local_server::{CALL, answer, catalogue},
    seals::sql,
    turn_hooks::{Listener, put_hook},
};

const WORK: &str = r#"think Hm.
say I look.
call bash {"command": "cat /proc/sys/kernel/random/uuid; echo counted >> count.txt; wc -l < count.txt"}
---
say It says {{tool_result}}"#;

fn turn_of(seen: &[proto::event::v1::Event]) -> String {
    seen.last().unwrap().turn_id.clone()
}

#[tokio::test]
async fn a_turn_is_replayed_and_what_differs_is_told() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    session.run("say Before.").await;
    let seen = session.run(WORK).await;
    let turn_id = turn_of(&seen);
    session.run("say After.").await;
    let messages = session.messages().await;

    // With recorded results nothing differs, and no tool ran.
    let request = ReplayTurnRequest {
        turn_id: turn_id.clone(),
        request_id: request_id(),
        recorded_tools: true,
    };
    let replay = client.evidence().replay_turn(request.clone()).await.unwrap().into_inner();
    assert_eq!(replay.differences, [""; 0]);
    let again = client.evidence().replay_turn(request).await.unwrap().into_inner();
    assert_eq!(again, replay, "the same request is the same replay");
    let copy = Session { client: client.clone(), id: replay.session_id.clone() };
    let log = copy.log().await;
    assert!(log.iter().any(|event| event.r#type == "tool.result"));
    assert!(!log.iter().any(|event| event.r#type == "sandbox.applied"), "a tool ran");
    assert_eq!(count(&session).await, "2", "a tool ran");

    // It is a session of its own, hidden like a sidecar, and leaves the original alone.
    assert!(!listed(&client).await.contains(&replay.session_id));
    assert_eq!(session.messages().await[..messages.len()], messages);
    let last = copy.messages().await.pop().unwrap();
    assert_eq!(copy.messages().await.len(), 2 + 3, "what came before, and the turn: {last:?}");

    // With tools that run, what they print differs, and so does what the model makes of it.
    let live = client.replay(&turn_id, false).await;
    let differences = live.differences.join("\n");
    assert!(differences.contains("step 1, part 3 (bash), output: recorded"), "{differences}");
    assert!(differences.contains("step 2, part 1 (text): recorded"), "{differences}");
    assert_eq!(count(&session).await, "3", "the files of the original changed");

    // A turn that was rewound can be replayed all the same.
    let asked = messages.iter().find(|message| message.turn_id == turn_id).unwrap();
    session.rewind(&asked.message_id).await.unwrap();
    assert_eq!(client.replay(&turn_id, true).await.differences, [""; 0]);

    // A record that was altered is not what a replay comes to.
    let alter = format!(
        "update session.chat_parts set data_json = jsonb_set(data_json, '{{text}}', '\"I lie.\"')
         where session_id = '{}' and data_json ->> 'text' = 'I look.'",
        session.id
    );
    sql(&world, &alter).await;
    let altered = client.replay(&turn_id, true).await;
    assert_eq!(
        altered.differences,
        [r#"step 1, part 2 (text): recorded "I lie.", replayed "I look.""#]
    );

    let unknown = ReplayTurnRequest {
        turn_id: "turn_00000000000000000000000000".into(),
        request_id: request_id(),
        recorded_tools: true,
    };
    let refused = client.evidence().replay_turn(unknown).await.unwrap_err();
    assert_eq!(reason(&refused), "REASON_EVIDENCE_NOT_FOUND");
    let running = session.submit("say Wait.\nhang").await;
    let early = ReplayTurnRequest {
        turn_id: running.turn_id,
        request_id: request_id(),
        recorded_tools: true,
    };
    let refused = client.evidence().replay_turn(early).await.unwrap_err();
    assert_eq!(reason(&refused), "REASON_SESSION_BUSY");
}

/// How often the command ran in this workspace, by its own account, this time included.
async fn count(session: &Session) -> String {
    let seen =
        session.run(r#"call bash {"command": "echo again >> count.txt; wc -l < count.txt"}"#).await;
    let result = seen.iter().find_map(|event| match &event.payload {
        Some(proto::event::v1::Payload::ToolResult(result)) => Some(result.data_json.clone()),
        _ => None,
    });
    let result: serde_json::Value = serde_json::from_str(&result.unwrap()).unwrap();
    result["output"].as_str().unwrap().trim().to_owned()
}

async fn listed(client: &Client) -> Vec<String> {
    let request = ListSessionsRequest::default();
    let sessions = client.sessions().list_sessions(request).await.unwrap().into_inner().sessions;
    sessions.into_iter().map(|session| session.session_id).collect()
}

#[tokio::test]
async fn a_script_and_an_agent_that_changed_are_told_by_a_replay() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let script = "say One.\ncall bash {\"command\": \"echo a\"}\n---\nsay Two.";
    let turn_id = turn_of(&session.run(script).await);
    assert_eq!(client.replay(&turn_id, true).await.differences, [""; 0]);

    // What is asked of the model is not what was: it calls something that is not in the record.
    let alter = format!(
        "update session.chat_parts
         set data_json = replace(replace(data_json::text, 'echo a', 'echo b'), 'Two', 'Three')::jsonb
         where session_id = '{}' and data_json ->> 'text' like '%#!script%'",
        session.id
    );
    sql(&world, &alter).await;
    let told = client.replay(&turn_id, true).await.differences.join("\n");
    assert!(told.contains("step 1, part 2 (bash), input: recorded"), "{told}");
    assert!(told.contains("no tool is run"), "{told}");
    let text = "step 2, part 1 (text): recorded \"Two.\", replayed \"Three.\"";
    assert!(told.contains(text), "{told}");

    // A turn that failed fails again in the same way.
    let seen = session.run("say Well.\nfail auth").await;
    let turn_id = turn_of(&seen);
    assert_eq!(client.replay(&turn_id, true).await.differences, [""; 0]);

    // An agent that changed is another one, and so is its prompt.
    let mut manifest = client.agent("scripted").await;
    manifest.prompt.push_str(" Do it well.");
    client.put_manifest("scripted", manifest).await;
    let differences = client.replay(&turn_id, true).await.differences;
    let told = differences.join("\n");
    let agent = "turn, agent: recorded \"scripted (version 1)\", replayed \"scripted (version 2)\"";
    assert_eq!(differences[0], agent);
    assert!(told.contains("step 1, prompt: recorded \"sha256:"), "{told}");
}

#[tokio::test]
async fn what_a_model_saw_and_said_is_exported_for_a_replay() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::planned(Fleet::plan().env_of(Service::Session, "SWEEP", "0.2")).await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    session.run("say Before.").await;
    let seen = session.run(WORK).await;
    let turn_id = turn_of(&seen);
    let pack = client.replay_pack_of(Scope::TurnId(turn_id.clone())).await.unwrap();

    let [turn] = pack.section("turns")[..] else { panic!("{pack:?}") };
    assert_eq!((&turn["turnId"], &turn["agent"]), (&json!(turn_id), &json!("scripted")));
    assert_eq!(turn["manifest"]["model"], "scripted/demo");
    let [prompt] = pack.section("prompts")[..] else { panic!("{pack:?}") };
    assert!(prompt["body"].as_str().unwrap().starts_with("You do what scripts say."));
    let tools: Vec<_> = prompt["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert!(tools.contains(&"bash"), "{tools:?}");

    // As the model saw it: what was said before, and then what its tool said.
    let [first, second] = pack.section("messages")[..] else { panic!("{pack:?}") };
    let roles = |step: &serde_json::Value| -> Vec<String> {
        let messages = step["messages"].as_array().unwrap().iter();
        messages.map(|message| message["role"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(roles(first), ["ROLE_USER", "ROLE_ASSISTANT", "ROLE_USER"]);
    assert_eq!(
        (&second["keeps"], roles(second)),
        (&json!(3), vec!["ROLE_ASSISTANT".into(), "ROLE_TOOL".into()])
    );

    let answers = pack.section("answers");
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0]["metadata"]["model"], "scripted/demo");
    assert_eq!(answers[0]["metadata"]["prompt_digest"], prompt["digest"]);
    let [result] = pack.section("results")[..] else { panic!("{pack:?}") };
    assert_eq!(
        (&result["tool"], &result["call"]["state"]),
        (&json!("bash"), &json!("output-available"))
    );
    let checked = pack.check(dir.path(), None).await;
    assert_eq!(checked.code, 4, "{}", checked.said);
}

#[tokio::test]
async fn a_turn_of_any_other_model_is_replayed_from_its_record() {
    let upstream = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalogue.json");
    std::fs::write(&path, catalogue(&upstream.url)).unwrap();
    let plan = Fleet::plan().env_of(Service::Models, "CATALOGUE", path.to_string_lossy()).env_of(
        Service::Tools,
        "EGRESS_ALLOW_PRIVATE",
        "127.0.0.1",
    );
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let hooks = Listener::default();
    let url = hooks.start().await;
    for event in ["session_start", "stop"] {
        put_hook(&client, event, &url).await;
    }
    let session = client.create_session_on("local/qwen3").await;
    upstream.answer(answer(CALL, "tool_calls"));
    upstream.answer(answer(r#"{"role":"assistant","content":"I am halfway."}"#, "stop"));
    upstream.answer(answer(r#"{"role":"assistant","content":"It is 42."}"#, "stop"));
    let seen = session.run("this is no script here").await;
    assert_eq!(seen.last().unwrap().r#type, "turn.completed", "{:?}", seen.last());
    assert_eq!(upstream.heard().len(), 3);
    assert_eq!(hooks.heard(), ["session_start", "stop", "stop"]);

    // Nobody is asked again, and nothing is spent: the record speaks for all of them.
    let replay = client.replay(&turn_of(&seen), true).await;
    assert_eq!(replay.differences, [""; 0]);
    assert_eq!(upstream.heard().len(), 3);
    assert_eq!(hooks.heard(), [""; 0]);
    let copy = Session { client, id: replay.session_id };
    assert_eq!(copy.texts().await.last().unwrap(), "It is 42.");
    assert_eq!(copy.get().await.cost_micros, 0);
}
