//! Whether a call may happen, and why. Decides and touches nothing.

use proto::tools::v1::{
    Permissions, Rule,
    permissions::Mode,
    rule::{Action, Source},
};
use serde_json::Value;

use crate::{
    call::Call,
    catalog::{Catalog, Effect, Entry},
    outcome::{Failure, Kind},
    rules::{self, Command, Matched, NotUnderstood, Subject},
};

/// What was decided about a call.
pub struct Evaluation<'a> {
    pub verdict: Verdict<'a>,

    /// What decided: `schema`, `capability`, `host_policy`, `rule`, `mode` or `default`.
    pub cause: &'static str,

    /// The rule that won, also when a mode made something else of it.
    pub rule: Option<Rule>,

    /// What rules were compared with. Of an ask it is all that the call acts on, so that an
    /// allow for exactly that settles the next one.
    pub compared: String,

    pub destructive: bool,

    /// One sentence for a person.
    pub reason: String,
}

pub enum Verdict<'a> {
    Allow(Permit<'a>),

    /// It may happen if a person says so.
    Ask(Permit<'a>),
    Deny(Kind),
}

/// A tool that may be called, and its checked input. Only [`evaluate`] makes one, and nothing
/// runs without it.
pub struct Permit<'a> {
    pub entry: &'a Entry,
    pub input: Value,
}

impl<'a> Evaluation<'a> {
    /// What comes of it, given whether a person approved of the call.
    pub fn settle(self, approved: bool) -> Result<Permit<'a>, Failure> {
        match self.verdict {
            Verdict::Allow(permit) => Ok(permit),
            Verdict::Ask(permit) if approved => Ok(permit),
            Verdict::Ask(_) => {
                let text = format!("{}, and nobody has approved yet", self.reason);
                Err(Failure::new(Kind::Denied, text))
            }
            Verdict::Deny(kind) => Err(Failure::new(kind, self.reason)),
        }
    }
}

/// How many mistakes in an input are named. The rest mostly follows from the first.
const MISTAKES: usize = 5;

/// How much of a long command is worth repeating in a decision about it, in characters. It is
/// what fits into a pattern, and what is cut does not: a rule made of a beginning would be
/// about another command.
const LONGEST_COMPARED: usize = 1_000;

pub fn evaluate<'a>(catalog: &'a Catalog, call: &Call) -> Evaluation<'a> {
    let refuse = |kind, cause, reason| Evaluation {
        verdict: Verdict::Deny(kind),
        cause,
        rule: None,
        compared: call.tool.clone(),
        destructive: false,
        reason,
    };
    let Some(entry) = catalog.get(&call.tool) else {
        let reason = format!("there is no tool named {:?}", call.tool);
        return refuse(Kind::UnknownTool, "host_policy", reason);
    };
    let input = match check(entry, &call.input_json) {
        Ok(input) => input,
        Err(problem) => {
            let reason = format!("the input does not fit the schema of {}: {problem}", call.tool);
            return refuse(Kind::Schema, "schema", reason);
        }
    };
    let tools = &call.permissions.tools;
    if !tools.is_empty() && !tools.contains(&call.tool) {
        let reason = format!("this agent does not have the tool {}", call.tool);
        return refuse(Kind::Denied, "capability", reason);
    }
    if let Some(restriction) = not_enforced(entry, &call.permissions) {
        let reason = format!("this server cannot enforce {restriction} yet, so nothing is allowed");
        return refuse(Kind::Denied, "host_policy", reason);
    }
    decide(call, Permit { entry, input })
}

/// Rules first, then the mode, and then what is left.
fn decide<'a>(call: &Call, permit: Permit<'a>) -> Evaluation<'a> {
    let about = &permit.entry.about;
    let command = about.command.and_then(|field| permit.input[field].as_str());
    let subject = command.map_or(Subject::Tool, |text| Subject::Command(Command::new(text)));
    let (rule, compared, broken) =
        match rules::decide(&call.permissions.rules, &call.tool, &subject) {
            Ok(Some(Matched { rule, compared })) => (Some(rule), compared, None),
            Ok(None) => (None, command.unwrap_or(&call.tool), None),
            Err(NotUnderstood(rule)) => (None, command.unwrap_or(&call.tool), Some(rule)),
        };
    let (decision, cause, reason) = match (broken, rule) {
        (Some(rule), _) => {
            let rule = named(rule);
            (Action::Deny, "host_policy", format!("{rule} cannot be understood"))
        }
        (None, Some(rule)) => (rule.action(), "rule", format!("{} {}", named(rule), does(rule))),
        (None, None) => by_default(permit.entry, call.permissions.mode()),
    };
    let (decision, cause, reason) = by_mode(call, about.effect, (decision, cause, reason));
    let compared = match decision {
        Action::Ask => command.unwrap_or(&call.tool),
        Action::Allow | Action::Deny | Action::Unspecified => compared,
    };
    Evaluation {
        cause,
        rule: rule.cloned(),
        compared: shorten(compared),
        destructive: about.effect == Effect::Destroys,
        reason,
        verdict: match decision {
            Action::Allow => Verdict::Allow(permit),
            Action::Ask => Verdict::Ask(permit),
            Action::Deny | Action::Unspecified => Verdict::Deny(Kind::Denied),
        },
    }
}

fn shorten(compared: &str) -> String {
    match compared.char_indices().nth(LONGEST_COMPARED) {
        Some((end, _)) => format!("{}…", &compared[..end]),
        None => compared.to_owned(),
    }
}

type Decision = (Action, &'static str, String);

/// What no rule decides.
fn by_default(entry: &Entry, mode: Mode) -> Decision {
    let name = entry.about.name;
    let destroys = entry.about.effect == Effect::Destroys;
    match mode {
        Mode::Unspecified | Mode::Default | Mode::NeverAsk if destroys => {
            let reason = format!("{name} may destroy something and no rule decides about it");
            (Action::Ask, "default", reason)
        }
        Mode::Unspecified | Mode::Default | Mode::NeverAsk | Mode::Auto | Mode::Plan => {
            let place = match entry.tool {
                Some(_) => "runs in a strict sandbox",
                None => "reaches neither files nor hosts",
            };
            (Action::Allow, "default", format!("no rule decides, and {name} {place}"))
        }
    }
}

/// What the mode makes of a decision. It only ever makes it stricter.
fn by_mode(call: &Call, effect: Effect, decided: Decision) -> Decision {
    let mode = call.permissions.mode();
    match decided {
        (Action::Deny, ..) => decided,
        _ if mode == Mode::Plan && matches!(effect, Effect::Changes | Effect::Destroys) => {
            let reason = format!("{} may change something, and the mode is plan", call.tool);
            (Action::Deny, "mode", reason)
        }
        (Action::Ask, _, reason) if call.headless || mode == Mode::NeverAsk => {
            (Action::Deny, "mode", format!("{reason}, and nobody can be asked"))
        }
        decided => decided,
    }
}

fn check(entry: &Entry, input_json: &str) -> Result<Value, String> {
    let input: Value = serde_json::from_str(input_json).map_err(|error| error.to_string())?;
    let mistakes: Vec<String> = entry
        .validator
        .iter_errors(&input)
        .take(MISTAKES)
        .map(|error| match error.instance_path().as_str() {
            "" => error.to_string(),
            path => format!("{path}: {error}"),
        })
        .collect();
    match mistakes.is_empty() {
        true => Ok(input),
        false => Err(mistakes.join("; ")),
    }
}

/// A restriction that is not understood must not be ignored. Hosts are missing here: no
/// tool reaches any. What runs in the session service reaches no paths and commands either.
fn not_enforced(entry: &Entry, permissions: &Permissions) -> Option<&'static str> {
    if entry.tool.is_none() {
        None
    } else if !permissions.paths.is_empty() {
        Some("path scopes")
    } else if !permissions.commands.is_empty() {
        Some("command scopes")
    } else {
        None
    }
}

fn named(rule: &Rule) -> String {
    let source = source_name(rules::source(rule));
    format!("the rule {} {:?} of the {source}", rule.permission, rule.pattern)
}

fn does(rule: &Rule) -> &'static str {
    match rule.action() {
        Action::Allow => "allows it",
        Action::Ask => "asks a person",
        Action::Deny | Action::Unspecified => "denies it",
    }
}

pub fn action_name(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Ask => "ask",
        Action::Deny | Action::Unspecified => "deny",
    }
}

pub fn source_name(source: Source) -> &'static str {
    match source {
        Source::Parent => "parent",
        Source::Unspecified | Source::Manifest => "manifest",
        Source::Session => "session",
        Source::Project => "project",
    }
}

pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Unspecified | Mode::Default => "default",
        Mode::Plan => "plan",
        Mode::Auto => "auto",
        Mode::NeverAsk => "never_ask",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use expect_test::expect;
    use proptest::prelude::*;

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
            call("bash", good, Permissions { commands: vec!["ls".into()], ..none() }),
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
        let catalog = Catalog::built_in().unwrap();
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
            ask (default, make test): bash may destroy something and no rule decides about it
            ask (default, make test): bash may destroy something and no rule decides about it
            allow (default, make test): no rule decides, and bash runs in a strict sandbox
            denied (mode, make test): bash may destroy something and no rule decides about it, and nobody can be asked
            denied (mode, make test): bash may change something, and the mode is plan
            denied (mode, make test): bash may destroy something and no rule decides about it, and nobody can be asked
            allow (default, make test): no rule decides, and bash runs in a strict sandbox
            allow (rule, make test): the rule bash "*" of the manifest allows it
            ask (rule, make test): the rule bash "make *" of the manifest asks a person
            denied (rule, make test): the rule bash "*" of the project denies it
            denied (mode, make test): the rule bash "make *" of the session asks a person, and nobody can be asked
            denied (mode, make test): the rule bash "make *" of the session asks a person, and nobody can be asked
            allow (rule, make test): the rule bash "make *" of the session allows it
            denied (mode, make test): bash may change something, and the mode is plan
            denied (rule, make test): the rule bash "*" of the manifest denies it
            ask (rule, make test): the rule bash "make *" of the parent asks a person
            denied (host_policy, make test): the rule bash "[" of the project cannot be understood
            ask (default, make test): bash may destroy something and no rule decides about it
            denied (host_policy, make test): the rule bash "*" of the manifest cannot be understood
            denied (capability, bash): this agent does not have the tool bash
            denied (host_policy, bash): this server cannot enforce path scopes yet, so nothing is allowed
            denied (host_policy, bash): this server cannot enforce command scopes yet, so nothing is allowed
            allow (default, question): no rule decides, and question reaches neither files nor hosts
            allow (default, question): no rule decides, and question reaches neither files nor hosts
            allow (default, question): no rule decides, and question reaches neither files nor hosts
            denied (capability, question): this agent does not have the tool question
            denied (rule, question): the rule * "*" of the session denies it
            schema (schema, question): the input does not fit the schema of question: /questions: [] has less than 1 item
            allow (default, memory_list): no rule decides, and memory_list reaches neither files nor hosts
            allow (default, memory_delete): no rule decides, and memory_delete reaches neither files nor hosts
            denied (mode, memory_delete): memory_delete may change something, and the mode is plan
            unknown_tool (host_policy, bush): there is no tool named "bush"
            schema (schema, bash): the input does not fit the schema of bash: EOF while parsing a value at line 1 column 0
            schema (schema, bash): the input does not fit the schema of bash: [] is not of type "object"
            schema (schema, bash): the input does not fit the schema of bash: /command: "" is shorter than 1 character; /timeout_ms: 0.5 is not of type "integer"; /timeout_ms: 0.5 is less than the minimum of 1; Additional properties are not allowed ('shell' was unexpected)
        "#]].assert_eq(&lines);
    }

    #[test]
    fn an_approval_settles_an_ask_and_no_deny() {
        let catalog = Catalog::built_in().unwrap();
        let settle = |action, approved| {
            let rules = vec![rule("bash", "ls", action, Source::Session)];
            let call = call(
                "bash",
                r#"{"command": "ls"}"#,
                Permissions { rules, ..Permissions::default() },
            );
            let settled = evaluate(&catalog, &call).settle(approved);
            settled.map(|permit| permit.input["command"].clone()).map_err(|failure| failure.text)
        };
        assert_eq!(settle(Action::Ask, true).unwrap(), "ls");
        assert_eq!(settle(Action::Allow, false).unwrap(), "ls");
        expect![[
            r#"the rule bash "ls" of the session asks a person, and nobody has approved yet"#
        ]]
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
    static CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog::built_in().unwrap());

    fn decision(catalog: &Catalog, call: &Call) -> &'static str {
        match evaluate(catalog, call).verdict {
            Verdict::Allow(_) => "allow",
            Verdict::Ask(_) => "ask",
            Verdict::Deny(_) => "deny",
        }
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let permission = prop::sample::select(vec!["bash", "*", "b*", "question", ""]);
        let pattern = "(rm|ls|[a-z]|\\*| |\\[|;){0,4}";
        (permission, pattern, 0..4i32, 0..5i32).prop_map(|(permission, pattern, action, source)| {
            Rule { permission: permission.into(), pattern, action, source }
        })
    }

    proptest! {
        #[test]
        fn a_deny_of_the_manifest_only_makes_it_stricter(
            rules in prop::collection::vec(any_rule(), 0..6),
            extra in any_rule(),
            at in 0..6usize,
            command in "(rm|ls|[a-z]| |;|\"|\\$){1,8}",
            mode in 0..5i32,
            headless: bool,
        ) {
            let input = serde_json::json!({ "command": command }).to_string();
            let permissions = Permissions { rules, mode, ..Permissions::default() };
            let mut call = Call { headless, ..call("bash", &input, permissions) };
            let before = decision(&CATALOG, &call);
            let extra = Rule {
                action: Action::Deny.into(),
                source: Source::Manifest.into(),
                ..extra
            };
            let at = at.min(call.permissions.rules.len());
            call.permissions.rules.insert(at, extra);
            let after = decision(&CATALOG, &call);
            prop_assert!(after == before || after == "deny", "{before} became {after}");
        }
    }
}
