use proto::{
    event::v1::{Event, Payload},
    session::v1::{
        CreateSessionRequest, Manifest, PutAgentRequest, SubmitTurnRequest, message::Role,
        subscribe_request::From,
    },
    tools::v1::{Permissions, Rule, rule::Action},
};
use tests::{Client, Session, World, explain, request_id, text_of};

/// Tries the same in every step: what comes of it is the agent's to decide.
const SCRIPT: &str = r#"call bash {"command": "echo built"}
---
say I have a plan.
---
call bash {"command": "echo built"}
---
say It says {{tool_result}}
---
say Still here."#;

#[tokio::test]
async fn per_turn_agent_override() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    // Plan and build is two manifests and nothing else.
    put(&client, "plan", Action::Deny).await;
    put(&client, "build", Action::Allow).await;
    let request = CreateSessionRequest {
        request_id: request_id(),
        agent: "plan".into(),
        ..CreateSessionRequest::default()
    };
    let created = client.sessions().create_session(request).await.unwrap().into_inner();
    let session = Session { client, id: created.session.unwrap().session_id };

    let planned = run(&session, session.turn(SCRIPT)).await;
    assert_eq!(agent(&planned), ("plan", 1));
    assert_eq!(text_of(&planned), "I have a plan.");
    assert!(
        !planned.iter().any(|event| event.r#type == "sandbox.applied"),
        "the plan was carried out"
    );

    // "Approve and go": nothing but the switch.
    let go = SubmitTurnRequest { parts: vec![], agent: "build".into(), ..session.turn("") };
    let built = run(&session, go).await;
    assert_eq!(agent(&built), ("build", 1));
    assert!(text_of(&built).contains("built"), "{}", text_of(&built));
    assert!(built.iter().any(|event| event.r#type == "sandbox.applied"));

    // And onward.
    let onward = run(&session, session.turn("say Onward.")).await;
    assert_eq!(agent(&onward), ("build", 1));
    let back =
        run(&session, SubmitTurnRequest { agent: "plan".into(), ..session.turn("say Back.") })
            .await;
    assert_eq!(agent(&back), ("plan", 1));
    let stays = run(&session, session.turn("say Stays.")).await;
    assert_eq!(agent(&stays), ("plan", 1));

    // The session is still the one it was opened as; the messages say who spoke.
    assert_eq!(session.get().await.agent, "plan");
    let messages = session.messages().await;
    let switches = messages.iter().filter(|message| message.role() == Role::User);
    let switches: Vec<_> = switches.map(|message| message.agent.as_str()).collect();
    assert_eq!(switches, ["", "build", "", "plan", ""]);
    let empty = messages.iter().find(|message| message.agent == "build").unwrap();
    assert_eq!((empty.role(), empty.parts.len()), (Role::User, 0));

    // Only a switch may come without words, and only one to an agent that exists.
    let before = session.log().await;
    for (request, answer) in [
        (
            SubmitTurnRequest { parts: vec![], ..session.turn("") },
            "InvalidArgument REASON_INVALID_FIELD: invalid parts: \
             a message needs at least one part, or an agent or model to switch to",
        ),
        (
            SubmitTurnRequest { parts: vec![], agent: "nobody".into(), ..session.turn("") },
            "NotFound REASON_AGENT_NOT_FOUND: agent nobody not found",
        ),
    ] {
        let refused = session.client.turns().submit_turn(request).await.unwrap_err();
        assert_eq!(explain(&refused), answer);
    }
    assert_eq!(session.log().await, before);
}

async fn put(client: &Client, agent: &str, action: Action) {
    let rule = Rule {
        permission: "bash".into(),
        pattern: "*".into(),
        action: action.into(),
        ..Rule::default()
    };
    let manifest = Manifest {
        prompt: format!("You {agent}."),
        model: "scripted/demo".into(),
        permissions: Some(Permissions { rules: vec![rule], ..Permissions::default() }),
        ..Manifest::default()
    };
    let request = PutAgentRequest { agent: agent.into(), manifest: Some(manifest) };
    client.agents().put_agent(request).await.unwrap();
}

async fn run(session: &Session, request: SubmitTurnRequest) -> Vec<Event> {
    let mut events = session.subscribe(From::Live(true)).await;
    let response = session.client.turns().submit_turn(request).await.unwrap().into_inner();
    let seen = events.until_ended(&response.turn.unwrap().turn_id).await;
    assert_eq!(seen.last().unwrap().r#type, "turn.completed", "{:?}", seen.last());
    seen
}

/// Who ran the turn, in which version.
fn agent(events: &[Event]) -> (&str, i32) {
    let mut started = events.iter().filter_map(|event| match &event.payload {
        Some(Payload::TurnStarted(started)) => {
            Some((started.agent.as_str(), started.agent_version))
        }
        _ => None,
    });
    started.next().unwrap()
}
