use expect_test::expect;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn payload() -> Value {
    json!({
        "payload": {
            "action": "opened",
            "number": 7,
            "draft": false,
            "body": null,
            "pull_request": { "title": "Fix the <pump>", "labels": [{ "name": "bug" }, { "name": "urgent" }] },
            "commits": ["a", "b", "c"],
        },
        "headers": { "x-github-event": "pull_request" },
    })
}

fn rendered(template: &str) -> String {
    match Template::parse(template) {
        Ok(template) => match template.render(&payload()) {
            Ok(text) => format!("{text:?}"),
            Err(failure) => format!("fails: {failure}"),
        },
        Err(problem) => format!("refused: {problem}"),
    }
}

#[test]
fn a_template_says_what_its_payload_has() {
    let mut lines = String::new();
    for template in [
        "plain",
        "#{{ payload.number }}: {{ payload.pull_request.title }}",
        "{{ headers['x-github-event'] }} {{ payload.commits[1] }} {{ payload.commits.2 }}",
        "{% for label in payload.pull_request.labels %}[{{ label.name }}]{% endfor %}",
        "{% for key in payload.pull_request %}{{ key }} {% endfor %}",
        "{% if payload.draft %}draft{% elif payload.number > 5 %}large{% else %}small{% endif %}",
        "a {#- hidden #} b {{- payload.number -}}   c",
        "{{ payload.body | default('nothing') }} {{ payload.nowhere | default(1) }}",
        "{{ payload.commits | join(', ') | upper }} {{ payload.commits | length }}",
        "{{ payload.pull_request.title | truncate(3) }} {{ payload.commits | first }}{{ payload.commits | last }}",
        "{{ 'a-b-c' | replace('-', '+') }} {{ payload.pull_request.labels | json }}",
        "{{ payload.draft }} {{ payload.body }} {{ -1.5 }} {{ 'it\\'s\\n' }}",
        "{{ payload.nowhere }}",
        "{{ payload.nowhere.deeper }}",
        "{{ nowhere }}",
        "{{ payload.number | upper }}",
        "{{ payload.number < 'a' }}",
        "{% for x in payload.number %}{% endfor %}",
        "{{ payload.number",
        "{{ }}",
        "{% if %}{% endif %}",
        "{% if true %}",
        "{% endif %}",
        "{% include 'x' %}",
        "one\ntwo {{ payload | exec }}",
        "{{ payload.number + 1 }}",
        "{{ range(1000000) }}",
        "{{ a b }}",
        "{{ 'open }}",
        "{{ payload | truncate }}",
        "{% for in in payload %}{% endfor %}",
    ] {
        lines += &format!("{template:?}\n    {}\n", rendered(template));
    }
    expect![[r##"
        "plain"
            "plain"
        "#{{ payload.number }}: {{ payload.pull_request.title }}"
            "#7: Fix the <pump>"
        "{{ headers['x-github-event'] }} {{ payload.commits[1] }} {{ payload.commits.2 }}"
            "pull_request b c"
        "{% for label in payload.pull_request.labels %}[{{ label.name }}]{% endfor %}"
            "[bug][urgent]"
        "{% for key in payload.pull_request %}{{ key }} {% endfor %}"
            "labels title "
        "{% if payload.draft %}draft{% elif payload.number > 5 %}large{% else %}small{% endif %}"
            "large"
        "a {#- hidden #} b {{- payload.number -}}   c"
            "a b7c"
        "{{ payload.body | default('nothing') }} {{ payload.nowhere | default(1) }}"
            "nothing 1"
        "{{ payload.commits | join(', ') | upper }} {{ payload.commits | length }}"
            "A, B, C 3"
        "{{ payload.pull_request.title | truncate(3) }} {{ payload.commits | first }}{{ payload.commits | last }}"
            "Fix… ac"
        "{{ 'a-b-c' | replace('-', '+') }} {{ payload.pull_request.labels | json }}"
            "a+b+c [{\"name\":\"bug\"},{\"name\":\"urgent\"}]"
        "{{ payload.draft }} {{ payload.body }} {{ -1.5 }} {{ 'it\\'s\\n' }}"
            "false null -1.5 it's\n"
        "{{ payload.nowhere }}"
            fails: nowhere is not defined
        "{{ payload.nowhere.deeper }}"
            fails: nowhere is not defined
        "{{ nowhere }}"
            fails: nowhere is not defined
        "{{ payload.number | upper }}"
            fails: `upper` cannot be done to a number
        "{{ payload.number < 'a' }}"
            fails: a number cannot be compared with a text
        "{% for x in payload.number %}{% endfor %}"
            fails: a number is no list
        "{{ payload.number"
            refused: line 1: `{{` has no `}}`
        "{{ }}"
            refused: line 1: an expression is missing
        "{% if %}{% endif %}"
            refused: line 1: an expression is missing
        "{% if true %}"
            refused: line 1: this block has no `endif`
        "{% endif %}"
            refused: line 1: `endif` belongs to nothing
        "{% include 'x' %}"
            refused: line 1: there is no tag `include`
        "one\ntwo {{ payload | exec }}"
            refused: line 2: there is no filter `exec`, only default, ends_with, first, join, json, last, length, lower, replace, starts_with, trim, truncate, upper
        "{{ payload.number + 1 }}"
            refused: line 1: `+` means nothing here
        "{{ range(1000000) }}"
            refused: line 1: `(` was not expected
        "{{ a b }}"
            refused: line 1: `b` was not expected
        "{{ 'open }}"
            refused: line 1: a text has no closing `'`
        "{{ payload | truncate }}"
            refused: line 1: the filter `truncate` takes 1, and not 0
        "{% for in in payload %}{% endfor %}"
            refused: line 1: expected `for name in list`
    "##]].assert_eq(&lines);
}

#[test]
fn a_filter_says_which_deliveries_count() {
    let mut lines = String::new();
    for text in [
        "payload.action == 'opened'",
        "payload.action in ['opened', 'reopened'] and not payload.draft",
        "payload.action not in ['closed']",
        "payload.number >= 7 and payload.number < 7.5",
        "payload.number == 7.0",
        "'pump' in payload.pull_request.title",
        "'title' in payload.pull_request",
        "payload.pull_request.title | lower | starts_with('fix')",
        "payload.merged is defined or payload.body is not defined",
        "payload.body",
        "payload.merged",
        "payload.merged == true or true",
        "headers['x-github-event'] == 'push'",
        "payload.number in 7",
        "",
        "payload.action = 'opened'",
        "((payload.draft",
    ] {
        let said = match Expression::parse(text) {
            Ok(expression) => match expression.holds(&payload()) {
                Ok(holds) => holds.to_string(),
                Err(failure) => format!("fails: {failure}"),
            },
            Err(problem) => format!("refused: {problem}"),
        };
        lines += &format!("{text:?}\n    {said}\n");
    }
    expect![[r#"
        "payload.action == 'opened'"
            true
        "payload.action in ['opened', 'reopened'] and not payload.draft"
            true
        "payload.action not in ['closed']"
            true
        "payload.number >= 7 and payload.number < 7.5"
            true
        "payload.number == 7.0"
            true
        "'pump' in payload.pull_request.title"
            true
        "'title' in payload.pull_request"
            true
        "payload.pull_request.title | lower | starts_with('fix')"
            true
        "payload.merged is defined or payload.body is not defined"
            false
        "payload.body"
            false
        "payload.merged"
            fails: merged is not defined
        "payload.merged == true or true"
            fails: merged is not defined
        "headers['x-github-event'] == 'push'"
            false
        "payload.number in 7"
            fails: a number cannot be compared with a number
        ""
            refused: line 1: an expression is missing
        "payload.action = 'opened'"
            refused: line 1: `=` means nothing here
        "((payload.draft"
            refused: line 1: `(` has no `)`
    "#]]
    .assert_eq(&lines);
}

/// The page that people read has examples that work, and names every filter.
#[test]
fn the_manual_is_right() {
    let manual = include_str!("../../../../docs/triggers.md");
    let (_, rest) = manual.split_once("```jinja\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let commit = |message: &str| json!({ "message": message, "author": { "name": "Ann" } });
    let scope = json!({ "payload": {
        "repository": { "full_name": "acme/pumps" },
        "commits": [commit("Fix the pump"), { "message": "Oil it" }],
    } });
    expect![[r#"
        acme/pumps got 2 commits:
        - Fix the pump (Ann)
        - Oil it
    "#]]
    .assert_eq(&Template::parse(example).unwrap().render(&scope).unwrap());
    let filters = manual.lines().find(|line| line.starts_with("Filters are ")).unwrap();
    for name in filter::Filter::names() {
        assert!(filters.contains(&format!("`{name}")), "{name} is not in the manual");
    }
    let (_, rest) = manual.split_once(r#""filter": ""#).unwrap();
    let (text, _) = rest.split_once(r#"" },"#).unwrap();
    assert_eq!(Expression::parse(&text.replace('\\', "")).unwrap().holds(&payload()), Ok(true));
    let (_, rest) = manual.split_once(r#""template": ""#).unwrap();
    let (text, _) = rest.split_once("\"\n").unwrap();
    let said = Template::parse(text).unwrap().render(&payload()).unwrap();
    assert_eq!(said, "Review pull request 7: Fix the <pump>");
}

#[test]
fn whatever_grows_stops_growing() {
    // Each would be larger than any memory, or take longer than anybody lives.
    let nested = |depth: usize, inner: &str| {
        let open: String = (0..depth).map(|_| "{% for a in [[a, a]] %}").collect();
        let close = "{% endfor %}".repeat(depth);
        format!("{{% for a in ['x'] %}}{open}{inner}{close}{{% endfor %}}")
    };
    let everyone = |depth: usize| {
        let open: String = (0..depth).map(|_| "{% for a in payload.list %}").collect();
        format!("{open}x{}", "{% endfor %}".repeat(depth))
    };
    let replaced =
        format!("{{{{ payload.text {} | length }}}}", "| replace('x', 'xxxxxxxxxx')".repeat(60));
    let list: Vec<Value> = (0..1_000).map(Value::from).collect();
    let scope = json!({ "payload": { "list": list, "text": "x".repeat(100) } });
    for (template, expected) in [
        (nested(30, "{{ a }}"), Failure::OutOfFuel),
        (nested(30, "{% if a == a %}x{% endif %}"), Failure::OutOfFuel),
        (everyone(30), Failure::OutOfFuel),
        (everyone(2), Failure::TooLong),
        (replaced, Failure::TooLong),
    ] {
        let rendered = Template::parse(&template).unwrap().render(&scope);
        assert!(rendered.is_err(), "{template} is {} bytes", rendered.unwrap().len());
        assert!(matches!(rendered, Err(Failure::OutOfFuel | Failure::TooLong)), "{expected:?}");
    }
}

#[test]
fn what_is_too_deep_to_read_is_refused() {
    for template in [
        format!("{{{{ {}1{} }}}}", "(".repeat(1_000), ")".repeat(1_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(200), "]".repeat(200)),
        format!("{{{{ a{} }}}}", ".a".repeat(5_000)),
        format!("{{{{ a{} }}}}", "|trim".repeat(3_000)),
        format!("{{{{ a{} }}}}", " or a".repeat(3_000)),
        format!("{{{{ {}a }}}}", "not ".repeat(4_000)),
        "{% if 1 %}".repeat(1_000),
        "x".repeat(LONGEST_TEMPLATE + 1),
    ] {
        assert!(Template::parse(&template).is_err());
    }
}

proptest! {
    #[test]
    fn no_text_breaks_the_reader(text in r"([{}%#|.,()\[\]'\\=!<>a-z0-9 \n-]|\{\{|\}\}|\{% if |\{% endif %\}|\{% for a in |payload|é){0,40}") {
        if let Ok(template) = Template::parse(&text) {
            let _ = template.render(&payload());
        }
        if let Ok(expression) = Expression::parse(&text) {
            let _ = expression.holds(&payload());
        }
    }

    #[test]
    fn text_without_braces_is_itself(text in "[^{]{0,200}") {
        prop_assert_eq!(Template::parse(&text).unwrap().render(&payload()).unwrap(), text);
    }
}
