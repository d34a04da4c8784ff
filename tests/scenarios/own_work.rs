use std::time::Duration;

use proto::{
    session::v1::{Manifest, message::Role, part::Content},
    tools::v1::{Permissions, permissions::Mode},
};
use serde_json::{Value, json};
use tests::{Client, Session, World};
use tokio::time::{Instant, sleep};

async fn create_session(client: &Client) -> Session {
    let manifest = Manifest {
        prompt: "You do what scripts say.".into(),
        model: "scripted/demo".into(),
        permissions: Some(Permissions { mode: Mode::Auto.into(), ..Permissions::default() }),
        ..Manifest::default()
    };
    client.put_manifest("worker", manifest).await;
    client.create_session_with("worker").await
}

/// What the calls of a tool answered, in order, as far as messages are visible.
async fn answers(session: &Session, name: &str) -> Vec<Result<Value, String>> {
    let parts = session.messages().await.into_iter().flat_map(|message| message.parts);
    let tools = parts.filter_map(|part| match part.content {
        Some(Content::Tool(tool)) if tool.tool == name => Some(tool),
        _ => None,
    });
    tools
        .map(|tool| match tool.state.as_str() {
            "output-available" => Ok(serde_json::from_str(&tool.output_json).unwrap()),
            _ => Err(tool.error_text),
        })
        .collect()
}

#[tokio::test]
async fn what_is_to_do_is_what_the_last_visible_call_says() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = create_session(&client).await;
    let list = |statuses: &[&str]| -> Value {
        let item = |(number, status): (usize, &&str)| json!({ "text": format!("Do {number}"), "status": status });
        json!({ "items": statuses.iter().enumerate().map(item).collect::<Vec<_>>() })
    };
    let lists = [&["in_progress", "pending"][..], &["completed", "in_progress"], &["completed"; 2]];
    for statuses in &lists[..2] {
        session.run(&format!("call todo {}\n---\nsay Noted.", list(statuses))).await;
    }
    let seen = answers(&session, "todo").await;
    assert_eq!(seen.len(), 2);
    let last = seen.last().unwrap().as_ref().unwrap();
    assert_eq!(last["items"], list(lists[1])["items"]);
    assert_eq!(last["left"], 1);

    // Whoever goes back, goes back to what was to do then.
    let messages = session.messages().await;
    let asked = messages.iter().filter(|message| message.role() == Role::User);
    let second = asked.last().unwrap().message_id.clone();
    session.rewind(&second).await.unwrap();
    let back = answers(&session, "todo").await;
    assert_eq!(back.last().unwrap().as_ref().unwrap()["items"], list(lists[0])["items"]);
    session.run(&format!("call todo {}\n---\nsay Noted.", list(lists[2]))).await;
    let now = answers(&session, "todo").await;
    assert_eq!((now.len(), &now[1].as_ref().unwrap()["left"]), (2, &json!(0)));

    session.run(r#"call todo {"items": [{"text": "a", "status": "done"}]}"#).await;
    let refused = answers(&session, "todo").await.pop().unwrap().unwrap_err();
    assert!(refused.contains("/items/0/status"), "{refused}");
}

#[tokio::test]
async fn a_skill_is_loaded_by_its_name() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = create_session(&client).await;
    let command = "mkdir -p .agents/skills/pdf/scripts && cd .agents/skills/pdf && \
                   printf -- '---\\nname: forms\\ndescription: Fills forms\\n---\\nFirst look.' > SKILL.md && \
                   echo more > more.md";
    let call = json!({ "command": command });
    session
        .run(&format!(
            "call skill {{\"name\": \"forms\"}}\n---\ncall bash {call}\n---\nsay Written."
        ))
        .await;
    let none = answers(&session, "skill").await;
    assert_eq!(none, [Err("this workspace has no skills".to_owned())]);

    // What a workspace said is believed for a moment.
    let deadline = Instant::now() + Duration::from_secs(20);
    let skill = loop {
        session.run("call skill {\"name\": \"forms\"}\n---\nsay Read.").await;
        match answers(&session, "skill").await.pop().unwrap() {
            Ok(skill) => break skill,
            Err(why) => assert!(Instant::now() < deadline, "{why}"),
        }
        sleep(Duration::from_millis(200)).await;
    };
    let folder = ".agents/skills/pdf";
    assert_eq!(
        skill,
        json!({
            "name": "forms",
            "path": format!("{folder}/SKILL.md"),
            "content": "---\nname: forms\ndescription: Fills forms\n---\nFirst look.",
            "files": [format!("{folder}/more.md"), format!("{folder}/scripts/")],
        })
    );
    session.run("call skill {\"name\": \"../../etc\"}\n---\nsay No.").await;
    let wrong = answers(&session, "skill").await.pop().unwrap().unwrap_err();
    assert_eq!(wrong, "there is no skill \"../../etc\"; there are: forms");
}
