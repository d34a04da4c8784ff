use std::time::Duration;

use local::Service;
use proto::{
    event::v1::{ContextResolved, Event, Payload},
    session::v1::{Manifest, message::Role},
};
use tests::{Session, World};
use tokio::time::sleep;

pub fn resolved(events: &[Event]) -> Vec<ContextResolved> {
    let resolved = events.iter().filter_map(|event| match &event.payload {
        Some(Payload::ContextResolved(resolved)) => Some(resolved.clone()),
        _ => None,
    });
    resolved.collect()
}

pub fn sections(resolved: &ContextResolved) -> Vec<(&str, &str)> {
    resolved.sections.iter().map(|one| (one.name.as_str(), one.digest.as_str())).collect()
}

/// The digests on the answers, in order.
async fn digests(session: &Session) -> Vec<String> {
    let messages = session.messages().await.into_iter();
    let answers = messages.filter(|message| message.role() == Role::Assistant);
    answers.map(|message| message.prompt_digest).collect()
}

const ORDER: [&str; 6] =
    ["manifest", "project_instructions", "skills", "memory", "environment", "tools"];

#[tokio::test]
async fn system_prompt_is_reproducible() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session_on("scripted/demo").await;

    // One per step, with what the model was told in it.
    let seen = session.run("call bash {\"command\": \"true\"}\n---\nsay Done.").await;
    let told = resolved(&seen);
    assert_eq!(told.len(), 2);
    assert_eq!(told[0].sections, told[1].sections);
    let names: Vec<_> = sections(&told[0]).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["manifest", "environment", "tools"]);
    assert!(names.is_sorted_by_key(|name| ORDER.iter().position(|other| other == name)));
    assert!(told[0].sections.iter().all(|section| section.tokens > 0));
    assert!(told[0].tokens > 0 && told[0].usable_tokens == 64_000, "{:?}", told[0]);
    let catalogues = |events: &[Event]| {
        events.iter().filter(|event| event.r#type == "tool.catalog.resolved").count()
    };
    assert_eq!(catalogues(&seen), 1);

    // The same on another server, which knows nothing but what is stored.
    world.fleet.get(Service::Session).terminate().await.unwrap();
    world.fleet.get(Service::Session).restart().await.unwrap();
    let seen = session.run("say Again.").await;
    assert_eq!(resolved(&seen)[0].prompt_digest, told[0].prompt_digest);
    assert_eq!(catalogues(&seen), 0, "the tools are the same");
    assert_eq!(digests(&session).await, vec![told[0].prompt_digest.clone(); 3]);

    // Another prompt has another digest, and only the section that changed has changed.
    let manifest = Manifest {
        prompt: "You are somebody else.".into(),
        model: "scripted/demo".into(),
        permissions: client.agent("scripted-demo").await.permissions,
        ..Manifest::default()
    };
    client.put_manifest("scripted-demo", manifest).await;
    let changed = resolved(&session.run("say Changed.").await).remove(0);
    assert_ne!(changed.prompt_digest, told[0].prompt_digest);
    let (before, after) = (sections(&told[0]), sections(&changed));
    assert_ne!(before[0], after[0]);
    assert_eq!(before[1..], after[1..]);
    assert_eq!(digests(&session).await.last(), Some(&changed.prompt_digest));
}

#[tokio::test]
async fn project_instructions_and_skills_come_from_the_workspace() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session_on("scripted/demo").await;
    let command = "printf 'Use tabs.' > AGENTS.md && mkdir -p .agents/skills/pdf && \
                   printf -- '---\\nname: pdf\\ndescription: Fills forms\\n---\\n' \
                   > .agents/skills/pdf/SKILL.md";
    let call = serde_json::json!({ "command": command });
    session.run(&format!("call bash {call}\n---\nsay Written.")).await;
    // What a workspace said is believed for a moment.
    for _ in 0..60 {
        let told = resolved(&session.run("say Hello.").await).remove(0);
        let names: Vec<_> = sections(&told).into_iter().map(|(name, _)| name).collect();
        if names == ["manifest", "project_instructions", "skills", "environment", "tools"] {
            return;
        }
        assert_eq!(names, ["manifest", "environment", "tools"]);
        sleep(Duration::from_millis(250)).await;
    }
    panic!("nobody reads what the workspace says");
}
