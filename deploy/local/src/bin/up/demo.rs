//! One turn with a tool call, made through the public API and shown as it happens.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use proto::{
    event::v1::event::Payload,
    session::v1::{
        CreateSessionRequest, InputPart, Manifest, PutAgentRequest, SubmitTurnRequest,
        SubscribeRequest, input_part::Content, subscribe_request::From, subscribe_response::Item,
    },
    tools::v1::{Permissions, Rule, rule::Action},
};
use tokio::time::timeout;

use crate::{client::Client, screen::Screen};

/// What the person says, and below the marker what the scripted model will do
/// about it: no provider, no key, the same path as with one.
const MESSAGE: &str = r#"Write a haiku about winches to haiku.txt and count its words.
#!script
pace 30ms
say I'll write it down and count.
call bash {"command": "printf 'rope around the drum\\none turn, and then another\\nthe anchor rises\\n' | tee haiku.txt; wc -w < haiku.txt"}
---
pace 30ms
say Done: haiku.txt is in the workspace. I was told {{tool_result}}
"#;

/// Long enough for a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn run(client: &Client) -> Result<()> {
    let session_id = create_session(client).await?;
    let mut screen = Screen::default();
    screen.title(&format!("A demo turn in {session_id}, through the public API"));

    // Submitted first and watched from the start: the log keeps what nobody saw.
    submit(client, &session_id).await?;
    screen.says("you", MESSAGE.lines().next().unwrap_or_default());
    timeout(PATIENCE, watch(client, &session_id, &mut screen))
        .await
        .context("the turn has not ended in time")?
}

async fn create_session(client: &Client) -> Result<String> {
    let allow = Rule {
        permission: "bash".into(),
        pattern: "*".into(),
        action: Action::Allow.into(),
        ..Rule::default()
    };
    let manifest = Manifest {
        description: "Shows what a turn looks like.".into(),
        prompt: "You are a demonstration.".into(),
        model: "scripted/demo".into(),
        permissions: Some(Permissions { rules: vec![allow], ..Permissions::default() }),
        ..Manifest::default()
    };
    let agent = PutAgentRequest { agent: "demo".into(), manifest: Some(manifest) };
    client.agents().put_agent(agent).await?;

    let session = CreateSessionRequest {
        request_id: request_id(),
        title: "Demo".into(),
        agent: "demo".into(),
        ..CreateSessionRequest::default()
    };
    let response = client.sessions().create_session(session).await?.into_inner();
    Ok(response.session.context("no session in the answer")?.session_id)
}

async fn submit(client: &Client, session_id: &str) -> Result<()> {
    let turn = SubmitTurnRequest {
        session_id: session_id.into(),
        request_id: request_id(),
        parts: vec![InputPart { content: Some(Content::Text(MESSAGE.into())) }],
        ..SubmitTurnRequest::default()
    };
    client.turns().submit_turn(turn).await?;
    Ok(())
}

/// Shows events until the turn is over.
async fn watch(client: &Client, session_id: &str, screen: &mut Screen) -> Result<()> {
    let request = SubscribeRequest {
        session_id: session_id.into(),
        from: Some(From::FromStart(true)),
        ..SubscribeRequest::default()
    };
    let mut events = client.streams().subscribe(request).await?.into_inner();
    while let Some(response) = events.message().await? {
        let Some(Item::Event(event)) = response.item else { continue };
        let Some(payload) = event.payload else { continue };
        screen.show(&payload);
        match payload {
            Payload::TurnCompleted(_) => return Ok(()),
            Payload::TurnFailed(failed) => bail!("{}: {}", failed.reason, failed.message),
            _ => {}
        }
    }
    bail!("the stream ended before the turn did")
}

fn request_id() -> String {
    format!("demo-{:016x}", rand::random::<u64>())
}
