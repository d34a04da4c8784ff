use expect_test::expect;

use super::*;

fn limit(name: Name, scope: Scope, key: &str, value: i64) -> Limit {
    Limit { name, scope, key: key.to_owned(), terms: Terms { value, queue_ms: 0 } }
}

fn call(subject: &str) -> Subject {
    Subject {
        subject: subject.to_owned(),
        root_session_id: "ses_1".to_owned(),
        provider: "scripted".to_owned(),
        model: "scripted/demo".to_owned(),
    }
}

fn checks(rules: &Rules, call: &Subject, named: Option<BudgetId>) -> String {
    let governance = Governance::from(rules);
    let budget = governance.budget(named).unwrap();
    let checks = governance.checks(call, Worst { tokens: 500, micros: 20 }, budget);
    let line = |check: Check| {
        let counter = match check.window {
            Window::Budget => "a budget",
            _ => &check.counter,
        };
        format!("{counter}: {} of {}\n", check.need, check.limit)
    };
    checks.into_iter().map(line).collect()
}

#[test]
fn a_limit_for_one_takes_the_place_of_the_limit_for_each() {
    let limits = vec![
        limit(Name::RequestsPerMinute, Scope::Tenant, "", 100),
        limit(Name::RequestsPerMinute, Scope::Subject, "", 10),
        limit(Name::RequestsPerMinute, Scope::Subject, "ada", 50),
        limit(Name::ConcurrentStreams, Scope::Provider, "other", 1),
        limit(Name::CostMicrosPerMonth, Scope::Model, "scripted/demo", 1_000),
        limit(Name::TokensPerDay, Scope::SessionTree, "", 600),
    ];
    let rules = Rules { limits, ..Rules::default() };
    expect![[r#"
        requests_per_minute:tenant:: 1 of 100
        requests_per_minute:subject:ada: 1 of 50
        tokens_per_day:session_tree:ses_1: 500 of 600
        cost_micros_per_month:model:scripted/demo: 20 of 1000
    "#]]
    .assert_eq(&checks(&rules, &call("ada"), None));
    expect![[r#"
        requests_per_minute:tenant:: 1 of 100
        requests_per_minute:subject:bob: 1 of 10
        tokens_per_day:session_tree:ses_1: 500 of 600
        cost_micros_per_month:model:scripted/demo: 20 of 1000
    "#]]
    .assert_eq(&checks(&rules, &call("bob"), None));
}

#[test]
fn what_no_minute_holds_waits_for_an_empty_one() {
    let limits = vec![
        limit(Name::TokensPerMinute, Scope::Tenant, "", 100),
        limit(Name::TokensPerDay, Scope::Tenant, "", 100),
    ];
    expect![[r#"
        tokens_per_minute:tenant:: 100 of 100
        tokens_per_day:tenant:: 500 of 100
    "#]]
    .assert_eq(&checks(&Rules { limits, ..Rules::default() }, &call("ada"), None));
}

#[test]
fn the_default_budget_pays_unless_another_is_named() {
    let purse = |name: &str, amount_micros| Purse {
        id: BudgetId::new(),
        name: name.to_owned(),
        amount_micros,
    };
    let (default, project) = (purse(DEFAULT_BUDGET, 70), purse("project", 7));
    let named = project.id;
    let rules = Rules { budgets: vec![default, project], ..Rules::default() };
    assert_eq!(checks(&rules, &call("ada"), None), "a budget: 20 of 70\n");
    assert_eq!(checks(&rules, &call("ada"), Some(named)), "a budget: 20 of 7\n");
    let unknown = BudgetId::new();
    assert_eq!(Governance::from(&rules).budget(Some(unknown)), Err(unknown));

    let none = Rules { budgets: rules.budgets[1..].to_vec(), ..rules };
    assert_eq!(checks(&none, &call("ada"), None), "");
}

#[test]
fn every_name_is_read_as_it_is_written() {
    for name in Name::ALL {
        assert_eq!(name.as_str().parse(), Ok(name));
        assert_eq!(serde_json::to_value(name).unwrap(), name.as_str());
    }
    for scope in Scope::ALL {
        assert_eq!(scope.as_str().parse(), Ok(scope));
        assert_eq!(serde_json::to_value(scope).unwrap(), scope.as_str());
    }
}

#[test]
fn a_change_is_news_to_those_it_governs() {
    let budget = BudgetId::new();
    let change = |name: &str, scope: &str, key: &str| Change {
        id: 0,
        name: name.to_owned(),
        scope: scope.to_owned(),
        key: key.to_owned(),
        before: 1,
        after: 2,
        subject: "grace".to_owned(),
        changed_at: Timestamp::UNIX_EPOCH,
    };
    let changes = vec![
        change("tokens_per_day", "tenant", ""),
        change("requests_per_minute", "subject", ""),
        change("requests_per_minute", "subject", "ada"),
        change("concurrent_streams", "model", "scripted/demo"),
        change("concurrent_streams", "model", "scripted/other"),
        change(BUDGET, &budget.to_string(), ""),
    ];
    let limits = vec![limit(Name::RequestsPerMinute, Scope::Subject, "ada", 2)];
    let governance = Governance::from(&Rules { limits, changes, ..Rules::default() });
    let told = |subject: &str, budget: Option<BudgetId>| {
        let call = call(subject);
        let changes = governance.changes(&call, budget);
        changes.map(|change| format!("{}:{}", change.name, change.key)).collect::<Vec<_>>()
    };
    let (tenant, model) = ("tokens_per_day:", "concurrent_streams:scripted/demo");
    assert_eq!(told("ada", None), [tenant, "requests_per_minute:ada", model]);
    assert_eq!(told("bob", None), [tenant, "requests_per_minute:", model]);
    assert_eq!(told("bob", Some(budget)), [tenant, "requests_per_minute:", model, "budget:"]);
    assert_eq!(told("bob", Some(BudgetId::new())), [tenant, "requests_per_minute:", model]);
}
