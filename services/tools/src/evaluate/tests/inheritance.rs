//! No descendant may ever do what an ancestor may not, judged by the evaluator that judges calls.

use proptest::{prelude::*, sample::select};

use super::*;
use crate::host::Host;

fn any_rule() -> impl Strategy<Value = Rule> {
    let permission = select(vec!["bash", "*", "write", "read", "web_fetch", "task", "[", "w*"]);
    let pattern = select(vec![
        "*", "rm *", "rm x", "ls", "ls *", "git *", "src/*", "src/a", "a", "a.com", "*.com",
        "task", "[", "",
    ]);
    (permission, pattern, 0..4i32, 0..5i32).prop_map(|(permission, pattern, action, source)| Rule {
        permission: permission.into(),
        pattern: pattern.into(),
        action,
        source,
    })
}

fn some_of(texts: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    // Mostly no restriction, because two lists that share nothing leave nothing to compare.
    let listed = prop::collection::vec(select(texts), 1..4);
    let listed = listed.prop_map(|list| list.into_iter().map(str::to_owned).collect::<Vec<_>>());
    prop_oneof![3 => Just(vec![]), 2 => listed]
}

fn any_permissions() -> impl Strategy<Value = Permissions> {
    (
        prop::collection::vec(any_rule(), 0..5),
        some_of(&["bash", "read", "write", "web_fetch", "task", "edit", "question"]),
        some_of(&["**", "src/*", "src/**", "a", "docs/**", "["]),
        some_of(&[
            "a.com",
            "*.a.com",
            "b.a.com:443",
            "*.com",
            "A.com.",
            "127.0.0.1",
            "*.0.0.1",
            "*",
        ]),
        some_of(&["*", "ls*", "git *", "rm *", "rm x", "["]),
        0..5i32,
    )
        .prop_map(|(rules, tools, paths, hosts, commands, mode)| Permissions {
            rules,
            tools,
            paths,
            hosts,
            commands,
            mode,
            within: vec![],
        })
}

fn any_call() -> impl Strategy<Value = (&'static str, Value)> {
    let line = select(vec![
        "ls",
        "rm x",
        "rm -rf /",
        "git log; rm x",
        "git push",
        "$(echo rm) x",
        "ls > src/a",
        "eval $x",
    ]);
    let path = select(vec!["src/a", "a", "docs/b/c", ".", "src/../a"]);
    let url = select(vec![
        "https://a.com",
        "https://b.a.com",
        "http://b.a.com",
        "https://c.com",
        "http://127.0.0.1",
        "http://0x7f.1",
    ]);
    prop_oneof![
        line.prop_map(|line| ("bash", serde_json::json!({ "command": line }))),
        path.clone().prop_map(|path| ("read", serde_json::json!({ "path": path }))),
        path.prop_map(|path| ("write", serde_json::json!({ "path": path, "content": "" }))),
        url.prop_map(|url| ("web_fetch", serde_json::json!({ "url": url }))),
        Just(("task", serde_json::json!({ "subagent_type": "explore", "prompt": "look" }))),
        Just(("question", serde_json::json!({ "questions": [{ "prompt": "?" }] }))),
    ]
}

fn strictness(called: &(&str, Value), permissions: &Permissions, headless: bool) -> u8 {
    let (tool, input) = called;
    let call = Call { headless, ..call(tool, &input.to_string(), permissions.clone()) };
    evaluate(&CATALOG, &call).verdict.strictness()
}

/// Every session of a tree with the permissions it has, behind its ancestors. `parents` says
/// whose child each one is.
fn tree(manifests: Vec<Permissions>, parents: &[usize]) -> Vec<(Vec<usize>, Permissions)> {
    let mut nodes: Vec<(Vec<usize>, Permissions)> = vec![];
    for (index, manifest) in manifests.into_iter().enumerate() {
        let node = match index {
            0 => (vec![], manifest),
            _ => {
                let parent = parents[index - 1] % index;
                let (above, effective) = &nodes[parent];
                let above = above.iter().copied().chain([parent]).collect();
                (above, manifest.of_child(effective))
            }
        };
        nodes.push(node);
    }
    nodes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_descendant_may_do_what_an_ancestor_may_not(
        manifests in prop::collection::vec(any_permissions(), 2..7),
        parents in prop::collection::vec(any::<usize>(), 6),
        calls in prop::collection::vec(any_call(), 1..12),
        headless: bool,
    ) {
        let alone = manifests.clone();
        let nodes = tree(manifests, &parents);
        for called in &calls {
            for (index, (above, effective)) in nodes.iter().enumerate() {
                let child = strictness(called, effective, headless);
                for ancestor in above {
                    let parent = strictness(called, &nodes[*ancestor].1, headless);
                    prop_assert!(child >= parent, "{called:?}: {parent} became {child}");
                }
                // And never what it does not have itself.
                let own = strictness(called, &alone[index], headless);
                prop_assert!(child >= own, "{called:?}: {own} became {child}");
            }
        }
    }

    /// What people decide for a child settles what is asked, and never what a parent is denied.
    #[test]
    fn no_decision_for_a_child_beats_a_parents_deny(
        child in any_permissions(),
        parent in any_permissions(),
        decided in any_rule(),
        called in any_call(),
    ) {
        // Who is never asked is not denied: there is nobody to decide.
        let mode = if parent.mode() == Mode::NeverAsk { Mode::Default } else { parent.mode() };
        let parent = Permissions { mode: mode.into(), ..parent };
        let denied = strictness(&called, &parent, false) == 2;
        let mut effective = child.of_child(&parent);
        let decided = Rule { action: Action::Allow.into(), source: Source::Session.into(), ..decided };
        for rules in effective.all_rules_mut() {
            rules.push(decided.clone());
        }
        prop_assert!(!denied || strictness(&called, &effective, false) == 2);
    }

    /// The proxy of a sandbox knows one list of hosts and nothing of ancestors.
    #[test]
    fn a_child_is_granted_no_host_that_its_parent_is_not(
        child in any_permissions(),
        parent in any_permissions(),
        name in "(a|b|1|127|0x7f|www)(\\.(a|com|0|1)){0,3}",
        port in select(vec![80u16, 443]),
    ) {
        let effective = child.clone().of_child(&parent);
        if let Some(host) = Host::new(&name, port) {
            let granted = |hosts: &[String]| hosts.iter().any(|grant| host.is_in(grant));
            let both = granted(&child.hosts) && granted(&parent.hosts);
            prop_assert!(!granted(&effective.hosts) || both, "{host} in {:?}", effective.hosts);
        }
    }
}

#[test]
fn a_denial_says_that_it_is_the_parents() {
    let quiet = Permissions { mode: Mode::Plan.into(), ..Permissions::default() };
    let child = Permissions::default().of_child(&quiet);
    let evaluation = evaluate(&CATALOG, &call("write", r#"{"path": "a", "content": ""}"#, child));
    expect![
        "the agent that called this one is bound: write may change something, and the mode is plan"
    ]
    .assert_eq(&evaluation.reason);
    assert_eq!(evaluation.cause, "mode");
}
