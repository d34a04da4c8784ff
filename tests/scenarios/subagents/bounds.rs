use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    session::v1::{
        GetSessionRequest, Manifest, manifest::Limits, session::Status, subscribe_request::From,
    },
    tools::v1::{Permissions, permissions, rule::Action},
};
use serde_json::{Value, json};
use tests::{Client, Session, Witness, World, reason, text_of};

use super::{
    WORKER, came_to, children, ended, in_background, list, notes, put_worker, results, rule,
    session_of, task, tool_uses, worker,
};
use crate::what_dies::soon;

/// Everything that an agent can be given.
fn wide() -> Permissions {
    Permissions {
        rules: vec![rule("*", "*", Action::Allow)],
        hosts: vec!["*.example.com".into(), "evil.net".into()],
        mode: permissions::Mode::Auto.into(),
        ..Permissions::default()
    }
}

async fn session_with(client: &Client, agent: &str, permissions: Permissions) -> Session {
    let manifest = Manifest {
        prompt: "You do what scripts say.".into(),
        model: "scripted/demo".into(),
        permissions: Some(permissions),
        ..Manifest::default()
    };
    client.put_manifest(agent, manifest).await;
    client.create_session_with(agent).await
}

/// What the calls of a child came to, in order.
async fn outcomes(session: &Session, agent: &str, calls: &[&str]) -> Vec<String> {
    let script = format!("{}\n---\nsay Done.", calls.join("\n"));
    session.run(&format!("{}\n---\nsay Done.", task(agent, &script))).await;
    let child = children(session).await.pop().unwrap();
    came_to(&session_of(session, &child)).await
}

fn list_of(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test]
async fn permission_intersection() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let manifest = |permissions| Manifest { permissions: Some(permissions), ..worker() };
    client.put_manifest("wide", manifest(wide())).await;
    let narrow = Permissions { tools: list_of(&["read", "task"]), ..wide() };
    client.put_manifest("narrow", manifest(narrow)).await;
    let confined = Permissions {
        tools: list_of(&["read", "write", "task", "web_fetch"]),
        paths: list_of(&["docs/**"]),
        hosts: list_of(&["a.example.com", "b.org"]),
        rules: vec![rule("write", "docs/secret*", Action::Deny)],
        ..Permissions::default()
    };
    let session = session_with(&client, "confined", confined).await;

    // Tools, paths, hosts and denials of the parent bind a child that has everything.
    let write = |path: &str| format!("call write {}", json!({ "path": path, "content": "x" }));
    let calls = [
        &*write("docs/a"),
        &*write("src/a"),
        &*write("docs/secret-plan"),
        r#"call bash {"command": "echo no"}"#,
        r#"call web_fetch {"url": "https://evil.net/"}"#,
    ];
    let came_to = outcomes(&session, "wide", &calls).await;
    assert!(came_to[0].contains(r#""created":true"#), "{came_to:?}");
    assert!(came_to[1].contains(r#"this agent may not touch "src/a""#), "{came_to:?}");
    assert!(
        came_to[2].contains("the rule write \"docs/secret*\" of the parent denies it"),
        "{came_to:?}"
    );
    assert!(came_to[3].contains("this agent does not have the tool bash"), "{came_to:?}");
    assert!(came_to[4].contains(r#"this agent may not reach "evil.net""#), "{came_to:?}");

    // The set is on record where the child was spawned, and its own.
    let child = children(&session).await.pop().unwrap();
    let log = session.log().await;
    let recorded = spawned(&log, &child.subagent_id);
    assert_eq!(recorded, child.effective_permissions_json);
    let recorded: Value = serde_json::from_str(&recorded).unwrap();
    assert_eq!(recorded["tools"], json!(["read", "write", "task", "web_fetch"]));
    assert_eq!(recorded["hosts"], json!(["a.example.com"]));
    assert_eq!(recorded["paths"], json!(["docs/**"]));
    assert_eq!(recorded["within"][0]["rules"][0]["source"], json!("SOURCE_PARENT"));

    // A grandchild is bound by its parent, also where the root is not.
    let deeper = task("wide", &format!("{}\n---\nsay Done.", write("docs/b")));
    let came_to = outcomes(&session, "narrow", &[&deeper, &write("docs/c")]).await;
    assert_eq!(came_to[0], r#"{"output":"Done."}"#);
    assert!(came_to[1].contains("this agent does not have the tool write"), "{came_to:?}");
    let grandchild = list(&session, true).await.into_iter().find(|child| child.depth == 2).unwrap();
    let came_to = super::came_to(&session_of(&session, &grandchild)).await;
    assert!(came_to[0].contains("this agent does not have the tool write"), "{came_to:?}");
    let recorded: Value = serde_json::from_str(&grandchild.effective_permissions_json).unwrap();
    assert_eq!(recorded["tools"], json!(["read", "task"]));
    assert_eq!(recorded["within"].as_array().unwrap().len(), 2);

    // Commands and the mode.
    let git = Permissions { commands: list_of(&["git *"]), ..wide() };
    let session = session_with(&client, "git-only", git).await;
    let calls = [r#"call bash {"command": "ls"}"#, r#"call bash {"command": "git --version"}"#];
    let came_to = outcomes(&session, "wide", &calls).await;
    assert!(came_to[0].contains(r#"this agent may not run "ls""#), "{came_to:?}");
    assert!(!came_to[1].contains("may not"), "{came_to:?}");
    let planning = Permissions { mode: permissions::Mode::Plan.into(), ..wide() };
    let session = session_with(&client, "planning", planning).await;
    let came_to = outcomes(&session, "wide", &[&write("a")]).await;
    assert!(came_to[0].contains("the mode is plan"), "{came_to:?}");

    // Who has no `task` has no children.
    let alone = Permissions { tools: list_of(&["read"]), ..wide() };
    let session = session_with(&client, "alone", alone).await;
    let seen = session.run(&format!("{}\n---\nsay Alone.", task("wide", "say no"))).await;
    assert!(results(&seen)[0].contains("does not have the tool task"), "{:?}", results(&seen));
    assert_eq!(children(&session).await, []);
}

fn spawned(log: &[Event], subagent_id: &str) -> String {
    let mut spawned = log.iter().filter_map(|event| match &event.payload {
        Some(Payload::SubagentSpawned(spawned)) if event.subagent_id == subagent_id => {
            Some(spawned)
        }
        _ => None,
    });
    spawned.next().unwrap().effective_permissions_json.clone()
}

#[tokio::test]
async fn recursion_depth_limit() {
    let plan = Fleet::plan().env_of(Service::Session, "MAX_CHILDREN", "3");
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    put_worker(&client).await;
    for background in [false, true] {
        let session = client.create_session().await;
        let call = if background { in_background } else { task };
        let mut script = "say Too deep.".to_owned();
        for _ in 0..6 {
            script = format!("{}\n---\nsay Up.", call(WORKER, &script));
        }
        session.run(&script).await;
        let all = soon("everybody is done", async {
            loop {
                let all = list(&session, true).await;
                if all.len() == 5 && all.iter().all(|child| child.status == "completed") {
                    return all;
                }
            }
        })
        .await;
        let mut depths: Vec<_> = all.iter().map(|child| child.depth).collect();
        depths.sort_unstable();
        assert_eq!(depths, [1, 2, 3, 4, 5]);
        assert!(all.iter().all(|child| child.background == background));
        let deepest = all.iter().find(|child| child.depth == 5).unwrap();
        let log = session_of(&session, deepest).log().await;
        let refused = "subagents may nest 5 deep and this would be number 6; do it yourself";
        assert_eq!(results(&log), [refused]);
        assert_eq!(text_of(&log), "Up.", "the turn goes on");
    }

    // An agent may say less, and what it was left with binds those below.
    let limits = Some(Limits { depth: 1, ..Limits::default() });
    client.put_manifest("shallow", Manifest { limits, ..client.agent("scripted").await }).await;
    let session = client.create_session_with("shallow").await;
    let deeper = format!("{}\n---\nsay Up.", task(WORKER, "say Too deep."));
    session.run(&format!("{}\n---\nsay Done.", task(WORKER, &deeper))).await;
    let all = list(&session, true).await;
    assert_eq!(all.len(), 1);
    let log = session_of(&session, &all[0]).log().await;
    assert!(results(&log)[0].starts_with("subagents may nest 1 deep"), "{:?}", results(&log));

    // Nor may one have any number of them at once.
    let session = client.create_session().await;
    let calls = (0..4).map(|_| in_background(WORKER, "hang")).collect::<Vec<_>>().join("\n");
    let seen = session.run(&format!("{calls}\n---\nsay Done.")).await;
    let came_to = results(&seen);
    let refused = came_to.iter().filter(|text| text.starts_with("3 subagents run already"));
    assert_eq!((came_to.len(), refused.count()), (4, 1), "{came_to:?}");
    assert_eq!(children(&session).await.len(), 3);
}

#[tokio::test]
async fn parent_abort_cascades() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    put_worker(&client).await;
    let session = client.create_session().await;
    let witness = Witness::of(&world, "acme", &session).await;

    // One in the background, and one that has another in the background and is busy itself.
    let busy =
        r#"call bash {"command": "echo begun >> witness; sleep 600; echo ended >> witness"}"#;
    let below = format!("{}\n---\n{busy}", in_background(WORKER, "hang"));
    let calls = [in_background(WORKER, "hang"), task(WORKER, &below)].join("\n");
    let mut events = session.subscribe(From::Live(true)).await;
    let turn = session.submit(&format!("{calls}\n---\nsay Never.")).await;
    witness.says("begun").await;
    let all = list(&session, true).await;
    assert_eq!(all.len(), 3, "{all:?}");
    session.interrupt("enough").await;
    let seen = events.until_ended(&turn.turn_id).await;
    assert_eq!(seen.last().unwrap().r#type, "turn.failed");

    for child in &all {
        let child = soon("it ends", ended(&session, &child.subagent_id)).await;
        assert_eq!((child.status.as_str(), child.reason.as_str()), ("closed", "aborted by parent"));
        let inside = session_of(&session, &child);
        assert_eq!(inside.get().await.status(), Status::Idle);
        let log = inside.log().await;
        let failed = log.iter().rev().find_map(|event| match &event.payload {
            Some(Payload::TurnFailed(failed)) => Some(failed.clone()),
            _ => None,
        });
        assert_eq!(failed.unwrap().status, "cancelled");
    }
    let calls = tool_uses(&session).await;
    assert_eq!(calls[1].error_text, "aborted by parent");
    let inside = all.iter().find(|child| child.depth == 1 && !child.background).unwrap();
    let calls = tool_uses(&session_of(&session, inside)).await;
    assert_eq!(calls[1].error_text, "aborted by parent");
    assert_eq!(witness.lines(), ["begun"]);
    let told = notes(&session).await;
    assert_eq!((told.len(), &told[0]["status"]), (1, &json!("closed")));
    // The session is as any other after an interrupt.
    assert_eq!(text_of(&session.run("say Again.").await), "Again.");

    // Whoever deletes a session at rest deletes its children, also those that still run.
    session.run(&format!("{}\n---\nsay Off it goes.", in_background(WORKER, "hang"))).await;
    let running = children(&session).await.pop().unwrap();
    assert_eq!(running.status, "running");
    session.delete().await.unwrap();
    for child in all.iter().chain([&running]) {
        let request = GetSessionRequest { session_id: child.session_id.clone() };
        let error = client.sessions().get_session(request).await.unwrap_err();
        assert_eq!(reason(&error), "REASON_SESSION_NOT_FOUND");
    }
}
