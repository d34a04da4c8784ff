use proptest::prelude::*;

use super::*;

fn any_rule() -> impl Strategy<Value = Rule> {
    let permission = prop::sample::select(vec!["bash", "*", "b*", "question", ""]);
    let pattern = "(rm|ls|[a-z]|\\*| |\\[|;){0,4}";
    (permission, pattern, 0..4i32, 0..5i32).prop_map(|(permission, pattern, action, source)| Rule {
        permission: permission.into(),
        pattern,
        action,
        source,
    })
}

/// A rule that is about parts of a line and never about exactly one line.
fn rule_with_wildcard() -> impl Strategy<Value = Rule> {
    any_rule().prop_map(|rule| Rule { pattern: format!("{}*", rule.pattern), ..rule })
}

fn any_line() -> impl Strategy<Value = String> {
    "(rm|ls|git|[a-z]| |;|\"|\\$|'|\\(|\\)|>|&|\\||x=){1,10}"
}

/// What does not depend on what is around it.
fn whole_line() -> impl Strategy<Value = String> {
    let words =
        "(rm -rf|ls|git log|git push|cat|mv|find|env|timeout 5|sudo|kill)( [a-z./$*-]{1,4}){0,3}";
    words.prop_filter("it ends by itself", |line| !line.ends_with('\\'))
}

fn strictness(line: &str, permissions: &Permissions, headless: bool) -> u8 {
    let input = serde_json::json!({ "command": line }).to_string();
    let call = Call { headless, ..call("bash", &input, permissions.clone()) };
    match decision(&CATALOG, &call) {
        "allow" => 0,
        "ask" => 1,
        _ => 2,
    }
}

proptest! {
    #[test]
    fn a_deny_only_makes_it_stricter(
        rules in prop::collection::vec(any_rule(), 0..6),
        extra in any_rule(),
        at in 0..6usize,
        line in any_line(),
        mode in 0..5i32,
        headless: bool,
    ) {
        let mut permissions = Permissions { rules, mode, ..Permissions::default() };
        let before = strictness(&line, &permissions, headless);
        let extra = Rule { action: Action::Deny.into(), ..extra };
        permissions.rules.insert(at.min(permissions.rules.len()), extra);
        prop_assert!(strictness(&line, &permissions, headless) >= before);
    }

    #[test]
    fn a_scope_only_makes_it_stricter(
        rules in prop::collection::vec(any_rule(), 0..4),
        commands in prop::collection::vec("(rm|ls|[a-z]|\\*| |\\[){0,3}", 0..3),
        line in any_line(),
        mode in 0..5i32,
    ) {
        let open = Permissions { rules, mode, ..Permissions::default() };
        let scoped = Permissions { commands, ..open.clone() };
        prop_assert!(strictness(&line, &scoped, false) >= strictness(&line, &open, false));
    }

    #[test]
    fn a_line_is_as_bad_as_its_worst_part(
        rules in prop::collection::vec(rule_with_wildcard(), 0..6),
        lines in prop::collection::vec(whole_line(), 1..4),
        separator in prop::sample::select(vec!["; ", " && ", " || ", " | ", "\n", " & "]),
        around in prop::sample::select(vec![("", ""), ("(", ")"), ("echo $(", ")"), ("bash -c '", "'")]),
        mode in 0..5i32,
        headless: bool,
    ) {
        let permissions = Permissions { rules, mode, ..Permissions::default() };
        let line = format!("{}{}{}", around.0, lines.join(separator), around.1);
        let together = strictness(&line, &permissions, headless);
        for part in &lines {
            let alone = strictness(part, &permissions, headless);
            prop_assert!(together >= alone, "{part:?} in {line:?}: {alone} became {together}");
        }
    }

    #[test]
    fn quotes_do_not_change_the_verdict(
        rules in prop::collection::vec(rule_with_wildcard(), 0..6),
        words in prop::collection::vec("(rm|ls|git|push|-f|-rf|[a-z]{1,3})", 1..4),
        mode in 0..5i32,
    ) {
        // A keyword is one only without quotes, and rules also see the line as it is written.
        prop_assume!(!["if", "fi", "do", "in"].contains(&words[0].as_str()));
        let rules = rules.into_iter().filter(|rule| !rule.pattern.starts_with(['*', '['])).collect();
        let permissions = Permissions { rules, mode, ..Permissions::default() };
        let plain = strictness(&words.join(" "), &permissions, false);
        for quote in ["'", "\""] {
            let quoted: Vec<String> = words.iter().map(|word| format!("{quote}{word}{quote}")).collect();
            prop_assert_eq!(strictness(&quoted.join("  "), &permissions, false), plain);
        }
    }
}
