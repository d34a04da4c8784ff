use local::Service;
use proto::{
    event::v1::{Answer, Payload},
    session::v1::{
        AnswerQuestionRequest, CloseSubagentRequest, SendSubagentInputRequest, message::Role,
        session::Status, subscribe_request::From,
    },
};
use serde_json::json;
use tests::{World, reason, request_id, text_of};

use super::{
    WORKER, about, came_to, children, ended, in_background, notes, put_worker, results, session_of,
    task, task_with, tool_uses,
};
use crate::{
    usage::billed_for,
    what_dies::{plan, soon},
};

const WONDER: &str = r#"call question {"questions": [{"prompt": "Who?", "free_text": true}]}"#;

#[tokio::test]
async fn task_tool_blocking() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    put_worker(&client).await;
    let session = client.create_session().await;

    // The child works where its parent works, and its last words are the result.
    let wrong = [task("nobody", "say no"), task("scripted", "say no")].join("\n");
    let work = task(WORKER, "call bash {\"command\": \"echo here > made\"}\n---\nsay found it");
    let seen = session
        .run(&format!(
            "{wrong}\n---\n{work}\n---\ncall read {{\"path\": \"made\"}}\n---\nsay Got it."
        ))
        .await;
    let results = came_to(&session).await;
    assert_eq!(results.len(), 4, "{results:?}");
    assert!(results[0].starts_with("there is no subagent \"nobody\"; there are: "), "{results:?}");
    assert!(results[0].contains("explore") && results[0].contains(WORKER), "{results:?}");
    assert!(results[1].contains("its mode is primary"), "{results:?}");
    assert_eq!(results[2], r#"{"output":"found it"}"#);
    assert!(results[3].contains("here"), "{results:?}");
    assert_eq!(text_of(&seen), "Got it.");

    // Both know each other, and the child is a session like any other.
    let turn = &seen.last().unwrap().turn_id;
    let children = children(&session).await;
    let [child] = &children[..] else { panic!("{children:?}") };
    assert_eq!((child.status.as_str(), child.output.as_str()), ("completed", "found it"));
    assert_eq!((child.depth, child.background, child.agent.as_str()), (1, false, WORKER));
    let inside = session_of(&session, child);
    let shown = inside.get().await;
    assert_eq!(shown.parent_session_id, session.id);
    let messages = session.messages().await;
    let asked = messages.iter().find(|said| said.turn_id == *turn && said.role() == Role::User);
    assert_eq!(shown.parent_message_id, asked.unwrap().message_id);
    assert_eq!(shown.workspace_id, session.get().await.workspace_id);
    assert_eq!((shown.status(), shown.subject.as_str()), (Status::Idle, "ann"));
    let log = inside.log().await;
    assert_eq!(log[0].r#type, "session.created");
    assert_eq!(text_of(&log), "found it");

    // What it spent counts for the tree of its root: four answers of the parent's and two of its own.
    let billed = async || (billed_for(&client, &session.id).await.1 == 6).then_some(());
    soon("everything is billed", session.eventually(billed)).await;

    // Who has finished is not entered again, by no way.
    let request = SendSubagentInputRequest {
        subagent_id: child.subagent_id.clone(),
        request_id: request_id(),
        text: "more".into(),
    };
    let error = client.subagents().send_subagent_input(request).await.unwrap_err();
    assert_eq!(reason(&error), "REASON_SUBAGENT_FINISHED");
    let error = client.turns().submit_turn(inside.turn("say more")).await.unwrap_err();
    assert_eq!(reason(&error), "REASON_SUBAGENT_FINISHED");
    assert_eq!(inside.log().await, log);

    // A child that fails is an error of the call, and the turn goes on.
    let seen = session.run(&format!("{}\n---\nsay Well.", task(WORKER, "fail auth"))).await;
    let results = super::results(&seen);
    assert!(results[0].starts_with("the subagent failed: "), "{results:?}");
    assert_eq!(text_of(&seen), "Well.");

    // A parent that waits holds nothing: nobody owns it.
    let waiting = task(WORKER, &format!("{WONDER}\n---\nsay Ann."));
    let turn = session.submit(&format!("{waiting}\n---\nsay {{{{tool_result}}}}")).await;
    let mut events = session.subscribe(From::FromStart(true)).await;
    events.until(|event| event.turn_id == turn.turn_id && event.r#type == "subagent.status").await;
    let shown = session.get().await;
    assert_eq!((shown.status(), shown.active_turn_id.as_str()), (Status::Busy, &*turn.turn_id));
    let thread = session.snapshot().await.snapshot.unwrap().threads.remove(0);
    assert_eq!(thread.native_status, "waiting_on_child");
    let child = super::children(&session).await.pop().unwrap();
    assert_eq!(child.status, "waiting");
    answer(&session_of(&session, &child)).await;
    let seen = events.until_ended(&turn.turn_id).await;
    assert!(text_of(&seen).ends_with(r#"{"output":"Ann."}"#), "{}", text_of(&seen));
}

#[tokio::test]
async fn task_tool_background() {
    let mut world = World::planned(plan()).await;
    let client = world.client("acme").await;
    put_worker(&client).await;
    let session = client.create_session().await;

    // The call is over at once, and its end starts no turn.
    let metadata = json!({ "background": true, "metadata": { "ticket": 7 } });
    let waits = task_with(WORKER, &format!("{WONDER}\n---\nsay found it"), metadata);
    let seen = session.run(&format!("{waits}\n---\nsay Later.")).await;
    assert_eq!(text_of(&seen), "Later.");
    let child = children(&session).await.remove(0);
    let handle: serde_json::Value = serde_json::from_str(&results(&seen)[0]).unwrap();
    assert_eq!(handle["session_id"], *child.session_id);
    let inside = session_of(&session, &child);
    assert_eq!(inside.get().await.metadata_json, r#"{"ticket":7}"#);
    assert_eq!(notes(&session).await, [json!(null); 0]);
    answer(&inside).await;
    assert_eq!(ended(&session, &child.subagent_id).await.status, "completed");
    let told = notes(&session).await;
    assert_eq!(told.len(), 1);
    assert_eq!((&told[0]["status"], &told[0]["output"]), (&json!("completed"), &json!("found it")));
    assert_eq!(session.get().await.status(), Status::Idle);
    let last = session.messages().await.pop().unwrap();
    assert!(last.synthetic && last.role() == Role::Assistant);
    let log = session.log().await;
    assert_eq!(log.iter().filter(|event| event.r#type == "turn.started").count(), 1);
    assert_eq!(about(&log, &child.subagent_id).last(), Some(&"subagent.completed"));

    // While a turn runs it hears of it between two steps.
    let wait_for = |file: &str| {
        format!(r#"call bash {{"command": "until [ -e {file} ]; do sleep 0.05; done"}}"#)
    };
    let child = in_background(WORKER, &format!("{}\n---\nsay quick", wait_for("end")));
    let script = format!("{child}\n---\n{}\n---\nsay Heard: {{{{user}}}}", wait_for("go"));
    let workspace = session.get().await.workspace_id;
    let workspace = world.fleet.dir().join("workspaces").join("acme").join(workspace);
    let mut events = session.subscribe(From::Live(true)).await;
    let turn = session.submit(&script).await;
    let spawned = events.until(|event| event.r#type == "subagent.spawned").await.pop().unwrap();
    // Whoever hears of a child finds it.
    let Some(Payload::SubagentSpawned(child)) = &spawned.payload else { panic!() };
    let id = child.child_session_id.clone();
    let child = tests::Session { client: session.client.clone(), id };
    assert_eq!(child.get().await.parent_session_id, session.id);
    events.until(|event| event.r#type == "sandbox.applied").await;
    std::fs::write(workspace.join("end"), "").unwrap();
    ended(&session, &spawned.subagent_id).await;
    assert_eq!(notes(&session).await.len(), 1, "not in the middle of a step");
    std::fs::write(workspace.join("go"), "").unwrap();
    let seen = events.until_ended(&turn.turn_id).await;
    assert!(text_of(&seen).contains("is done and says:\n\nquick"), "{}", text_of(&seen));
    assert_eq!(about(&seen, &spawned.subagent_id), ["subagent.completed"]);
    assert_eq!(notes(&session).await.len(), 2);

    // A child whose host dies has failed, and its parent is told the same way.
    let talks = in_background(WORKER, "pace 20ms\nrepeat 100000 \"word \"");
    session.run(&format!("{talks}\n---\nsay Off it goes.")).await;
    let child = children(&session).await.pop().unwrap();
    let mut said = session_of(&session, &child).subscribe(From::FromStart(true)).await;
    said.until(|event| event.r#type == "model.delta").await;
    world.fleet.add(Service::Session).await.unwrap();
    world.fleet.get(Service::Session).kill().await.unwrap();
    let other = client.at(&mut world.fleet, 1);
    let session = tests::Session { client: other, ..session };
    let failed = soon("the child has failed", ended(&session, &child.subagent_id)).await;
    assert_eq!(failed.status, "failed");
    assert!(failed.reason.contains("the host restarted"), "{}", failed.reason);
    let told = notes(&session).await;
    assert_eq!((told.len(), &told[2]["status"]), (3, &json!("failed")));
    assert_eq!(session.get().await.status(), Status::Idle);
}

#[tokio::test]
async fn subagent_delegation() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    put_worker(&client).await;
    let session = client.create_session().await;
    let scripts = [format!("{WONDER}\n---\nsay first"), "fail auth".to_owned(), "hang".to_owned()];
    let calls = scripts.map(|script| task(WORKER, &script)).join("\n");
    let mut events = session.subscribe(From::FromStart(true)).await;
    let turn = session.submit(&format!("{calls}\n---\nsay Done.")).await;
    let mut seen = events.until(|event| event.r#type == "subagent.status").await;
    let children = children(&session).await;
    let [asks, fails, hangs] = &children[..] else { panic!("{children:?}") };

    // Input is a turn of the child's, behind the one that waits.
    let inside = session_of(&session, asks);
    let request = SendSubagentInputRequest {
        subagent_id: asks.subagent_id.clone(),
        request_id: request_id(),
        text: "And?\n#!script\nsay second".into(),
    };
    let sent = client.subagents().send_subagent_input(request.clone()).await.unwrap().into_inner();
    assert_eq!(sent.subagent.unwrap().status, "waiting");
    client.subagents().send_subagent_input(request).await.unwrap();
    answer(&inside).await;
    assert_eq!(ended(&session, &asks.subagent_id).await.output, "second");
    assert_eq!(ended(&session, &fails.subagent_id).await.status, "failed");

    let close = CloseSubagentRequest {
        subagent_id: hangs.subagent_id.clone(),
        reason: "took too long".into(),
    };
    client.subagents().close_subagent(close.clone()).await.unwrap();
    let closed = ended(&session, &hangs.subagent_id).await;
    assert_eq!((closed.status.as_str(), closed.reason.as_str()), ("closed", "took too long"));
    client.subagents().close_subagent(close).await.unwrap();

    seen.extend(events.until_ended(&turn.turn_id).await);
    assert_eq!(text_of(&seen), "Done.");
    assert_eq!(
        about(&seen, &asks.subagent_id),
        [
            "subagent.spawned",
            "subagent.status",
            "subagent.input",
            "subagent.status",
            "subagent.completed"
        ]
    );
    assert_eq!(about(&seen, &fails.subagent_id), ["subagent.spawned", "subagent.failed"]);
    assert_eq!(about(&seen, &hangs.subagent_id), ["subagent.spawned", "subagent.closed"]);
    let statuses = seen.iter().filter_map(|event| match &event.payload {
        Some(Payload::SubagentStatus(status)) => Some(status.status.as_str()),
        _ => None,
    });
    assert_eq!(statuses.collect::<Vec<_>>(), ["waiting_on_user_input", "running"]);
    for child in &children {
        let of_child = |event: &&proto::event::v1::Event| event.subagent_id == child.subagent_id;
        for event in seen.iter().filter(of_child) {
            assert_eq!(event.tool_call_id, child.tool_call_id, "{event:?}");
            assert_eq!(event.turn_id, turn.turn_id);
        }
        let spawned = seen.iter().find(of_child).unwrap();
        let Some(Payload::SubagentSpawned(spawned)) = &spawned.payload else { panic!() };
        assert_eq!(spawned.child_session_id, child.session_id);
        assert_eq!(spawned.parent_session_id, session.id);
        assert_eq!(spawned.parent_message_id, turn.message_id);
        let created = session_of(&session, child).log().await.remove(0);
        let Some(Payload::SessionCreated(created)) = created.payload else { panic!() };
        assert_eq!(created.parent_session_id, session.id);
        assert_eq!(created.parent_message_id, turn.message_id);
    }
    let calls = tool_uses(&session).await;
    let errors: Vec<_> = calls.iter().map(|call| call.error_text.as_str()).collect();
    assert_eq!((errors[0], errors[2]), ("", "the subagent was closed: took too long"));
    assert!(errors[1].starts_with("the subagent failed: "), "{errors:?}");
}

/// Answers the one question that a session asks.
async fn answer(session: &tests::Session) {
    let action = soon("it asks", async {
        loop {
            if let Some(action) = session.actions().await.pop() {
                return action;
            }
        }
    });
    let answer = AnswerQuestionRequest {
        session_id: session.id.clone(),
        action_id: action.await.action_id,
        answers: vec![Answer { text: "Me.".into(), ..Answer::default() }],
    };
    session.client.turns().answer_question(answer).await.unwrap();
}
