use expect_test::expect;

use super::*;
use crate::{breaker::State, catalogue::Catalogue};

fn named(model: &str) -> Task {
    Task { model: Some(model.to_owned()), ..profile("chat") }
}

fn profile(profile: &str) -> Task {
    Task {
        model: None,
        profile: profile.to_owned(),
        capabilities: BTreeSet::new(),
        size: Size::counted(10),
        previous: None,
    }
}

fn route(task: Task) -> String {
    let catalogue = Catalogue::built_in().unwrap();
    told(&task, task.candidates(catalogue.everybody(), |_| Vitals::default()))
}

/// The decision, then those who could serve and those who could not.
fn told(task: &Task, found: Candidates<'_>) -> String {
    let Candidates { candidates, excluded } = found;
    let mut lines: Vec<_> = candidates.first().map(|chosen| task.why(chosen)).into_iter().collect();
    for Candidate { model, score, gap, .. } in candidates {
        lines.push(format!("+ {} {score:.1} lacks {gap:?}", model.name()));
    }
    for Exclusion { model, reason, detail, .. } in excluded {
        lines.push(format!("- {} {}: {detail}", model.name(), reason.as_str()));
    }
    lines.join("\n")
}

#[test]
fn a_model_that_is_named_is_the_only_candidate() {
    expect![[r#"
        scripted was asked for
        + scripted/demo 1.0 lacks []
        - scripted/small not_requested: another model was asked for"#]]
    .assert_eq(&route(named("scripted")));
}

#[test]
fn whoever_names_a_model_gets_it_with_its_gaps() {
    let capabilities = BTreeSet::from([Capability::Images]);
    expect![[r#"
        scripted/small was asked for
        + scripted/small 0.5 lacks [Images]
        - scripted/demo not_requested: another model was asked for"#]]
    .assert_eq(&route(Task { capabilities, ..named("scripted/small") }));
}

#[test]
fn a_profile_prefers_its_tier() {
    expect![[r#"
        best for chat: a balanced model, score 1.0
        + scripted/demo 1.0 lacks []
        + scripted/small 0.5 lacks []"#]]
    .assert_eq(&route(profile("chat")));
    expect![[r#"
        best for title: a cheap model, score 1.0
        + scripted/small 1.0 lacks []
        + scripted/demo 0.5 lacks []"#]]
    .assert_eq(&route(profile("title")));
    expect![[r#"
        best for code: a balanced model, score 0.5
        + scripted/demo 0.5 lacks []
        + scripted/small 0.0 lacks []"#]]
    .assert_eq(&route(profile("code")));
}

#[test]
fn a_model_that_cannot_serve_says_why() {
    let capabilities = BTreeSet::from([Capability::Images, Capability::Reasoning]);
    expect![[r#"
        best for title: a balanced model, score 0.5
        + scripted/demo 0.5 lacks []
        - scripted/small capability: lacks images, reasoning"#]]
    .assert_eq(&route(Task { capabilities, ..profile("title") }));
    let size = Size::counted(10_000);
    expect![[r#"
        best for title: a balanced model, score 0.5
        + scripted/demo 0.5 lacks []
        - scripted/small context: 10000 tokens do not fit into 8000"#]]
    .assert_eq(&route(Task { size, ..profile("title") }));
    expect![[r#"
        - scripted/demo not_requested: another model was asked for
        - scripted/small context: 10000 tokens do not fit into 8000"#]]
    .assert_eq(&route(Task { size, ..named("scripted/small") }));
}

/// Four equal models of four providers, in different places and at different prices.
fn many(tenant: &str) -> Catalogue {
    let model = |provider: &str, region: &str, micros: i64| {
        format!(
            r#"{{"provider": "{provider}", "model": "m", "tier": "balanced", "context_tokens": 1000,
            "output_tokens": 100, "capabilities": [], "regions": ["{region}"],
            "price": {{"currency": "USD", "input_micros": {micros}, "output_micros": {micros},
            "cache_read_micros": 0, "cache_write_micros": 0}}}}"#
        )
    };
    let provider = |name: &str| {
        format!(r#"{{"name": "{name}", "kind": "openai_chat", "base_url": "http://{name}"}}"#)
    };
    let text = format!(
        r#"{{"providers": [{}], "models": [{}], "tenants": {{"acme": {tenant}}}}}"#,
        ["a", "b", "c", "d"].map(provider).join(","),
        [model("a", "eu", 1), model("b", "us", 2), model("c", "eu", 3), model("d", "eu", 9)]
            .join(",")
    );
    text.parse().unwrap()
}

#[test]
fn a_tenants_policy_excludes_and_says_which_part_of_it() {
    let catalogue =
        many(r#"{"deny": ["a/*"], "regions": ["eu"], "price_ceiling": {"output_micros": 5}}"#);
    let task = profile("chat");
    expect![[r#"
        best for chat: a balanced model, score 1.0
        + c/m 1.0 lacks []
        - a/m policy: the tenant's policy denies it
        - b/m region: does not run in eu
        - d/m price: costs more than the tenant's ceiling"#]]
    .assert_eq(&told(&task, task.candidates(catalogue.of("acme"), |_| Vitals::default())));
    let catalogue = many(r#"{"allow": ["b/m", "d/*"]}"#);
    expect![[r#"
        best for chat: a balanced model, score 1.0
        + b/m 1.0 lacks []
        + d/m 1.0 lacks []
        - a/m policy: the tenant's policy does not allow it
        - c/m policy: the tenant's policy does not allow it"#]]
    .assert_eq(&told(&task, task.candidates(catalogue.of("acme"), |_| Vitals::default())));
}

#[test]
fn who_is_ill_or_asked_us_to_wait_is_left_alone() {
    let catalogue = many("{}");
    let task = profile("chat");
    let found = task.candidates(catalogue.of("acme"), |model| match model.provider.as_str() {
        "a" => Vitals {
            breaker: State::Open,
            rests: Some(Duration::from_secs(9)),
            ..Vitals::default()
        },
        "b" => Vitals { limited: Some(Duration::from_secs(4)), ..Vitals::default() },
        "c" => Vitals { first_token: Some(Duration::from_secs(8)), ..Vitals::default() },
        _ => Vitals { first_token: Some(Duration::from_secs(1)), ..Vitals::default() },
    });
    assert_eq!(found.back_first().unwrap().again_in, Some(Duration::from_secs(4)));
    expect![[r#"
        best for chat: a balanced model, score 1.0
        + d/m 1.0 lacks []
        + c/m 0.9 lacks []
        - a/m health: a failed too often, tried again in 9s
        - b/m limit: asked us to wait for 4s"#]]
    .assert_eq(&told(&task, found));
}

#[test]
fn who_answered_before_is_preferred_to_its_equals_and_to_nobody_else() {
    let catalogue = many("{}");
    let task = Task { previous: Some("d/m".to_owned()), ..profile("chat") };
    let found = task.candidates(catalogue.of("acme"), |_| Vitals::default());
    assert_eq!(
        task.why(&found.candidates[0]),
        "best for chat: a balanced model that answered before, score 1.2"
    );
    assert_eq!(found.candidates[0].model.name(), "d/m");

    let catalogue = Catalogue::built_in().unwrap();
    let task = Task { previous: Some("scripted/demo".to_owned()), ..profile("title") };
    let found = task.candidates(catalogue.everybody(), |_| Vitals::default());
    assert_eq!(found.candidates[0].model.name(), "scripted/small");
}

#[test]
fn what_follows_a_failure_depends_on_what_was_said() {
    let failures = [
        Failure::Transient(String::new()),
        Failure::RateLimited { retry_after: Duration::ZERO },
        Failure::Auth,
        Failure::Cut,
        Failure::Overflow,
        Failure::Refused,
        Failure::Invalid(String::new()),
    ];
    let silent = Said::default();
    let spoke = Said { text: "Hello".to_owned(), begun: true, called: false };
    let called = Said { called: true, ..spoke.clone() };
    let thought = Said { text: String::new(), ..spoke.clone() };
    let ends = Policy::default();
    let goes_on = Policy { after_first_token: AfterFirstToken::Continue, ..Policy::default() };
    let mut lines = String::new();
    for failure in &failures {
        let decide = |said, policy| format!("{:?}", fallback(failure, said, policy));
        lines += &format!(
            "{}: silent {}, spoke {} or {}, called {}, only thought {}\n",
            failure.kind(),
            decide(&silent, &ends),
            decide(&spoke, &ends),
            decide(&spoke, &goes_on),
            decide(&called, &goes_on),
            decide(&thought, &goes_on),
        );
    }
    expect![[r#"
        transient: silent Restart, spoke None or Continue, called None, only thought None
        rate_limit: silent Restart, spoke None or Continue, called None, only thought None
        auth: silent Restart, spoke None or Continue, called None, only thought None
        cut: silent Restart, spoke None or Continue, called None, only thought None
        context_overflow: silent None, spoke None or None, called None, only thought None
        refused: silent None, spoke None or None, called None, only thought None
        invalid: silent None, spoke None or None, called None, only thought None
    "#]]
    .assert_eq(&lines);
}
