use proto::{
    event::v1::{Event, Payload, PermissionEvaluated},
    session::v1::{Manifest, TurnView},
    tools::v1::{Permissions, Rule, permissions::Mode, rule::Action},
};
use tests::{Session, World};

/// Both want to write, one with a program and one without.
const SHELL: &str = r#"call bash {"command": "echo one > note"}"#;
const FILE: &str = r#"call write {"path": "note", "content": "two"}"#;
const LINK: &str = r#"call bash {"command": "ln -s /tmp out"}"#;
const OUTSIDE: &str = r#"call write {"path": "out/note", "content": "three"}"#;

#[tokio::test]
async fn permission_and_sandbox_fact() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let agent = async |name: &str, mode: Mode, rules: Vec<Rule>| {
        let permissions = Permissions { rules, mode: mode.into(), ..Permissions::default() };
        let manifest = Manifest {
            prompt: "You do what scripts say.".into(),
            model: "scripted/demo".into(),
            permissions: Some(permissions),
            ..Manifest::default()
        };
        client.put_manifest(name, manifest).await;
        client.create_session_with(name).await
    };

    // What is allowed runs after both facts, and in what the second one says.
    let session = agent("free", Mode::Auto, vec![]).await;
    for (script, tier, layer) in [(SHELL, "A", "seccomp"), (FILE, "", "workspace")] {
        let (seen, view) = run(&session, script).await;
        assert_eq!(view.status, "completed");
        let place = |name: &str| seen.iter().position(|event| event.r#type == name).unwrap();
        assert!(place("tool.args") < place("permission.evaluated"));
        assert!(place("permission.evaluated") < place("sandbox.applied"));
        assert!(place("sandbox.applied") < place("tool.result"));
        assert_eq!(view.permission_state.unwrap().decision, "allow");
        let sandbox = view.sandbox_profile.unwrap();
        assert_eq!((sandbox.tier.as_str(), sandbox.mode.as_str()), (tier, "strict"));
        assert!(sandbox.layers.iter().any(|known| known.name == layer && known.applied));
        assert!(!sandbox.writable.is_empty());
        assert_eq!(sandbox.network, ["none"]);
    }

    // What is not says why, and has not run.
    let deny = ["bash", "write"].map(|permission| Rule {
        permission: permission.into(),
        pattern: "*".into(),
        action: Action::Deny.into(),
        ..Rule::default()
    });
    let bound = agent("bound", Mode::Auto, deny.into()).await;
    let plan = agent("plan", Mode::Plan, vec![]).await;
    for script in [SHELL, FILE] {
        let state = denied(&bound, script).await;
        assert_eq!(state.cause, "rule");
        let rule = state.rule.unwrap();
        assert_eq!((rule.action.as_str(), rule.source.as_str()), ("deny", "manifest"));
        let state = denied(&plan, script).await;
        assert_eq!((state.cause.as_str(), state.mode.as_str()), ("mode", "plan"));
    }

    // What tries to get out is stopped, and that is a fact, too.
    run(&session, LINK).await;
    let (seen, _) = run(&session, OUTSIDE).await;
    let violation = seen.iter().find_map(|event| match &event.payload {
        Some(Payload::SandboxViolation(violation)) => Some(violation),
        _ => None,
    });
    assert_eq!(violation.unwrap().layer, "workspace");
    assert_eq!(failure(&seen), "sandbox");
}

/// Runs a call that must not happen, and returns what the read model says about it.
async fn denied(session: &Session, script: &str) -> PermissionEvaluated {
    let (seen, view) = run(session, script).await;
    assert_eq!(failure(&seen), "denied");
    assert!(!seen.iter().any(|event| event.r#type == "sandbox.applied"), "it ran");
    let state = view.permission_state.unwrap();
    assert_eq!(state.decision, "deny");
    assert!(!state.reason.is_empty() && !state.compared.is_empty(), "{state:?}");
    let fact = seen.iter().find_map(|event| match &event.payload {
        Some(Payload::PermissionEvaluated(evaluated)) => Some(evaluated),
        _ => None,
    });
    assert_eq!(Some(&state), fact);
    state
}

async fn run(session: &Session, script: &str) -> (Vec<Event>, TurnView) {
    session.run_and_view(&format!("{script}\n---\nsay Well.")).await
}

fn failure(events: &[Event]) -> &str {
    let failed = events.iter().find_map(|event| match &event.payload {
        Some(Payload::ToolFailed(failed)) => Some(failed.kind.as_str()),
        _ => None,
    });
    failed.unwrap()
}
