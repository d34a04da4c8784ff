mod attacks;
mod inheritance;
mod properties;

use std::sync::LazyLock;

use expect_test::expect;
use proto::tools::v1::{Permissions, rule::Source};

use super::*;
use crate::call::{SessionId, ToolCallId, WorkspaceId};

fn call(tool: &str, input_json: &str, permissions: Permissions) -> Call {
    Call {
        tenant: "acme".parse().unwrap(),
        session_id: SessionId::new(),
        epoch: 1,
        turn_id: String::new(),
        step_id: String::new(),
        tool_call_id: ToolCallId::new(),
        tool: tool.into(),
        input_json: input_json.into(),
        workspace_id: WorkspaceId::new(),
        permissions,
        headless: false,
    }
}

fn rule(permission: &str, pattern: &str, action: Action, source: Source) -> Rule {
    Rule {
        permission: permission.into(),
        pattern: pattern.into(),
        action: action.into(),
        source: source.into(),
    }
}

/// Every kind of call against the rules, so that a new rule arrives as a diff.
#[test]
fn every_decision_has_a_cause_and_a_reason() {
    let good = r#"{"command": "make test"}"#;
    let bad = r#"{"command": "make test && rm -rf x"}"#;
    let ask = r#"{"questions": [{"prompt": "Tea or coffee?"}]}"#;
    let named = r#"{"scope": "user", "name": "likes-tea"}"#;
    let quiet = rule("*", "*", Action::Deny, Source::Session);
    let none = Permissions::default;
    let with = |pattern, action, source| {
        let rules = vec![rule("bash", pattern, action, source)];
        call("bash", good, Permissions { rules, ..none() })
    };
    let mode = |mode: Mode, call: Call| Call {
        permissions: Permissions { mode: mode.into(), ..call.permissions },
        ..call
    };
    let headless = |call| Call { headless: true, ..call };
    let cases = [
        call("bash", good, none()),
        call("bash", good, Permissions { tools: vec!["bash".into()], ..none() }),
        mode(Mode::Auto, call("bash", good, none())),
        mode(Mode::NeverAsk, call("bash", good, none())),
        mode(Mode::Plan, call("bash", good, none())),
        headless(call("bash", good, none())),
        headless(mode(Mode::Auto, call("bash", good, none()))),
        with("*", Action::Allow, Source::Unspecified),
        with("make *", Action::Ask, Source::Manifest),
        with("*", Action::Deny, Source::Project),
        headless(with("make *", Action::Ask, Source::Session)),
        mode(Mode::NeverAsk, with("make *", Action::Ask, Source::Session)),
        mode(Mode::NeverAsk, with("make *", Action::Allow, Source::Session)),
        mode(Mode::Plan, with("*", Action::Allow, Source::Manifest)),
        mode(Mode::Plan, with("*", Action::Deny, Source::Manifest)),
        mode(Mode::Auto, with("make *", Action::Ask, Source::Parent)),
        with("[", Action::Deny, Source::Project),
        with("[", Action::Allow, Source::Project),
        with("*", Action::Unspecified, Source::Manifest),
        call("bash", good, Permissions { tools: vec!["read".into()], ..none() }),
        call("bash", good, Permissions { paths: vec!["src/**".into()], ..none() }),
        call("bash", good, Permissions { paths: vec!["**".into()], ..none() }),
        call("bash", good, Permissions { commands: vec!["ls".into()], ..none() }),
        call("bash", good, Permissions { commands: vec!["make *".into()], ..none() }),
        call("bash", bad, Permissions { commands: vec!["make *".into()], ..none() }),
        call("bash", bad, none()),
        mode(Mode::Auto, call("bash", bad, none())),
        mode(Mode::NeverAsk, call("bash", bad, none())),
        headless(call("bash", bad, none())),
        mode(Mode::Plan, call("bash", r#"{"command": "git log | head -3"}"#, none())),
        mode(Mode::Plan, call("bash", r#"{"command": "git log > log"}"#, none())),
        mode(Mode::Plan, call("bash", r#"{"command": "git log $X"}"#, none())),
        call("question", ask, none()),
        mode(Mode::Plan, call("question", ask, none())),
        call("question", ask, Permissions { paths: vec!["src/**".into()], ..none() }),
        call("question", ask, Permissions { tools: vec!["bash".into()], ..none() }),
        call("question", ask, Permissions { rules: vec![quiet], ..none() }),
        call("question", r#"{"questions": []}"#, none()),
        mode(Mode::Plan, call("memory_list", "{}", none())),
        call("memory_delete", named, none()),
        mode(Mode::Plan, call("memory_delete", named, none())),
        call("bush", good, none()),
        call("bash", "", none()),
        call("bash", "[]", none()),
        call("bash", r#"{"command": "", "timeout_ms": 0.5, "shell": "zsh"}"#, none()),
    ];
    let catalog = Catalog::built_in(None).unwrap();
    let mut lines = String::new();
    for call in &cases {
        let evaluation = evaluate(&catalog, call);
        let verdict = match &evaluation.verdict {
            Verdict::Allow(_) => "allow",
            Verdict::Ask(_) => "ask",
            Verdict::Deny(kind) => kind.name(),
        };
        let Evaluation { cause, compared, reason, .. } = &evaluation;
        lines += &format!("{verdict} ({cause}, {compared}): {reason}\n");
    }
    expect![[r#"
        allow (default, make test): no rule decides, and bash runs in a sandbox
        allow (default, make test): no rule decides, and bash runs in a sandbox
        allow (default, make test): no rule decides, and bash runs in a sandbox
        allow (default, make test): no rule decides, and bash runs in a sandbox
        denied (mode, make test): "make test" is not known to only read, and the mode is plan
        allow (default, make test): no rule decides, and bash runs in a sandbox
        allow (default, make test): no rule decides, and bash runs in a sandbox
        allow (rule, make test): the rule bash "*" of the manifest allows it
        ask (rule, make test): the rule bash "make *" of the manifest asks a person
        denied (rule, make test): the rule bash "*" of the project denies it
        denied (mode, make test): the rule bash "make *" of the session asks a person, and nobody can be asked
        denied (mode, make test): the rule bash "make *" of the session asks a person, and nobody can be asked
        allow (rule, make test): the rule bash "make *" of the session allows it
        denied (mode, make test): "make test" is not known to only read, and the mode is plan
        denied (rule, make test): the rule bash "*" of the manifest denies it
        ask (rule, make test): the rule bash "make *" of the parent asks a person
        denied (host_policy, make test): the rule bash "[" of the project cannot be understood
        allow (default, make test): no rule decides, and bash runs in a sandbox
        denied (host_policy, make test): the rule bash "*" of the manifest cannot be understood
        denied (capability, bash): this agent does not have the tool bash
        denied (capability, bash): bash may touch any path, this agent only some
        allow (default, make test): no rule decides, and bash runs in a sandbox
        denied (capability, make test): this agent may not run "make test"
        allow (default, make test): no rule decides, and bash runs in a sandbox
        denied (capability, rm -rf x): this agent may not run "rm -rf x"
        ask (default, make test && rm -rf x): "rm -rf x" removes files, and no rule decides about it
        allow (default, make test): no rule decides, and bash runs in a sandbox
        denied (mode, rm -rf x): "rm -rf x" removes files, and no rule decides about it, and nobody can be asked
        denied (mode, rm -rf x): "rm -rf x" removes files, and no rule decides about it, and nobody can be asked
        allow (default, git log): no rule decides, and bash runs in a sandbox
        denied (mode, > log): "> log" is not known to only read, and the mode is plan
        denied (mode, git log $X): "git log $X" is not known to only read, and the mode is plan
        allow (default, question): no rule decides, and question runs in the session service
        allow (default, question): no rule decides, and question runs in the session service
        allow (default, question): no rule decides, and question runs in the session service
        denied (capability, question): this agent does not have the tool question
        denied (rule, question): the rule * "*" of the session denies it
        schema (schema, question): the input does not fit the schema of question: /questions: [] has less than 1 item
        allow (default, memory_list): no rule decides, and memory_list runs in the session service
        allow (default, memory_delete): no rule decides, and memory_delete runs in the session service
        denied (mode, memory_delete): memory_delete may change something, and the mode is plan
        unknown_tool (host_policy, bush): there is no tool named "bush"
        schema (schema, bash): the input does not fit the schema of bash: EOF while parsing a value at line 1 column 0
        schema (schema, bash): the input does not fit the schema of bash: [] is not of type "object"
        schema (schema, bash): the input does not fit the schema of bash: /command: "" is shorter than 1 character; /timeout_ms: 0.5 is not of type "integer"; /timeout_ms: 0.5 is less than the minimum of 1; Additional properties are not allowed ('shell' was unexpected)
    "#]].assert_eq(&lines);
}

#[test]
fn an_approval_settles_an_ask_and_no_deny() {
    let catalog = Catalog::built_in(None).unwrap();
    let settle = |action, approved| {
        let rules = vec![rule("bash", "ls", action, Source::Session)];
        let call =
            call("bash", r#"{"command": "ls"}"#, Permissions { rules, ..Permissions::default() });
        let settled = evaluate(&catalog, &call).settle(approved);
        settled.map(|permit| permit.input["command"].clone()).map_err(|failure| failure.text)
    };
    assert_eq!(settle(Action::Ask, true).unwrap(), "ls");
    assert_eq!(settle(Action::Allow, false).unwrap(), "ls");
    expect![[r#"the rule bash "ls" of the session asks a person, and nobody has approved yet"#]]
        .assert_eq(&settle(Action::Ask, false).unwrap_err());
    expect![[r#"the rule bash "ls" of the session denies it"#]]
        .assert_eq(&settle(Action::Deny, true).unwrap_err());
}

/// What the session service does when a person allows something for good.
#[test]
fn an_allow_of_what_was_compared_settles_an_ask() {
    let long = "x".repeat(1_000);
    let longer = "x".repeat(1_001);
    for (command, settled) in [
        ("rm x", true),
        ("cd a && rm x", true),
        (" rm x | wc; echo $HOME {a,b} \\* [!c]?\n", true),
        (&long, true),
        (&longer, false),
    ] {
        let input = serde_json::json!({ "command": command }).to_string();
        let asks = ["*", "rm *", "rm x"]
            .map(|pattern| rule("bash", pattern, Action::Ask, Source::Manifest));
        let permissions = Permissions { rules: asks.into(), ..Permissions::default() };
        let mut call = call("bash", &input, permissions);
        let asked = evaluate(&CATALOG, &call);
        assert!(matches!(asked.verdict, Verdict::Ask(_)));
        let mut pattern = String::new();
        for next in asked.compared.chars() {
            if "*?[]{}\\!".contains(next) {
                pattern.push('\\');
            }
            pattern.push(next);
        }
        call.permissions.rules.push(rule("bash", &pattern, Action::Allow, Source::Session));
        let decision = decision(&CATALOG, &call);
        assert_eq!(decision == "allow", settled, "{command}: {decision}");
    }
}

/// Compiling its schemas takes longer than all decisions.
static CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog::built_in(None).unwrap());

fn decision(catalog: &Catalog, call: &Call) -> &'static str {
    match evaluate(catalog, call).verdict {
        Verdict::Allow(_) => "allow",
        Verdict::Ask(_) => "ask",
        Verdict::Deny(_) => "deny",
    }
}
