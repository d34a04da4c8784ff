//! What is limited, what it costs, and how that looks from outside.

use std::time::Duration;

use expect_test::expect;
use proto::models::v1 as pb;
use sqlx::PgPool;
use tokio::time::{Instant, sleep, timeout};

use crate::world::{World, explain, script};

fn limit(limit: &str, scope: &str, value: i64) -> pb::Limit {
    pb::Limit { limit: limit.into(), scope: scope.into(), value, ..pb::Limit::default() }
}

/// A request whose answer has at most so many tokens, at four millionths each.
fn short(max_output_tokens: i32, text: &str) -> pb::GenerateRequest {
    let options = pb::Options { max_output_tokens, ..pb::Options::default() };
    pb::GenerateRequest { options: Some(options), ..script(text) }
}

/// The answer from what it may cost on.
fn from_cost(answer: &str) -> &str {
    &answer[answer.find("cost.estimated").unwrap()..]
}

#[sqlx::test(migrations = false)]
async fn a_request_too_many_is_refused_with_the_wait(db: PgPool) {
    let world = World::start(db).await;
    world.put_limit(limit("requests_per_minute", "subject", 2)).await.unwrap();
    for _ in 0..2 {
        assert!(world.play("say hi").await.contains("finished stop"));
    }
    let refused = world.play("say hi").await;
    assert!(refused.contains("rate_limit.hit {\"origin\":\"host\",\"limit\":\"requests_per_minute\",\"scope\":\"subject\""), "{refused}");
    let (_, error) = refused.split_once("error ").unwrap();
    assert!(error.starts_with("ResourceExhausted REASON_RATE_LIMITED: requests_per_minute for this subject is 2, and that is in use [limit: requests_per_minute] [scope: subject] (again in "), "{error}");

    // It was never made, so it is not in the log; and the other two are.
    assert_eq!(world.log(2).await.len(), 2);
    let limits = world.list_limits().await;
    assert_eq!((limits[0].used, limits[0].value), (2, 2));

    // Without the limit it goes on at once.
    world.put_limit(limit("requests_per_minute", "subject", 0)).await.unwrap();
    assert_eq!(world.list_limits().await, []);
    assert!(world.play("say hi").await.contains("finished stop"));
}

#[sqlx::test(migrations = false)]
async fn a_quota_blocks_until_it_is_renewed_and_says_so_before(db: PgPool) {
    let world = World::start(db).await;
    world.put_limit(limit("tokens_per_day", "tenant", 1_000)).await.unwrap();
    let first = world.generate(short(500, "say hi\nusage input=400 output=300")).await;
    assert!(!first.contains("quota.low"), "{first}");
    let second = world.generate(short(150, "say hi\nusage input=100 output=100")).await;
    assert!(
        second.contains("quota.low {\"quota\":\"tokens_per_day\",\"scope\":\"tenant\""),
        "{second}"
    );
    assert!(second.contains("finished stop"), "{second}");
    let third = world.generate(short(150, "say hi")).await;
    assert!(third.contains("quota.blocked {\"quota\":\"tokens_per_day\",\"scope\":\"tenant\",\"used\":\"900\",\"limit\":\"1000\""), "{third}");
    assert!(third.contains("error ResourceExhausted REASON_QUOTA_BLOCKED: the quota tokens_per_day for this tenant is 1000, of which 900 is used, and this call may take"), "{third}");
    assert!(third.contains("[quota: tokens_per_day] [resets_at: "), "{third}");
    // Fewer tokens still fit.
    assert!(world.generate(short(10, "say hi")).await.contains("finished stop"));
}

#[sqlx::test(migrations = false)]
async fn a_budget_reserves_the_worst_case_and_pays_the_real_one(db: PgPool) {
    let mut world = World::start(db).await;
    let budget = world.put_budget("default", 1_000).await.unwrap();
    assert_eq!(world.put_budget("default", 1_000).await.unwrap(), budget);
    let id = budget.budget_id.as_str();

    let answer = world.generate(short(100, "say hi\nusage input=20 output=5")).await;
    let answer = from_cost(&answer).replace(id, "bud_1");
    expect![[r#"
        cost.estimated {"worstCaseMicros":"413","currency":"USD","budgetId":"bud_1","remainingMicros":"587"}
        text "hi"
        cost.recorded {"usage":{"input":20,"output":5},"costMicros":"40","currency":"USD","basis":"exact","budgetId":"bud_1","remainingMicros":"960"}
        finished stop scripted/demo 40 {"input":20,"output":5}
    "#]]
    .assert_eq(&answer);
    world.log(1).await;
    let shown = world.budget(id).await.unwrap();
    assert_eq!((shown.spent_micros, shown.reserved_micros), (40, 0));

    // Two at once may cost more than is left, so the second has to wait for the first.
    let mut open = world.begin(short(200, "say hi\nhang")).await;
    world.until_text(&mut open).await;
    let refused = world.generate(short(100, "say hi")).await.replace(id, "bud_1");
    expect![[r#"
        cost.estimated {"worstCaseMicros":"405","currency":"USD"}
        quota.blocked {"quota":"budget","scope":"bud_1","used":"847","limit":"1000"}
        error ResourceExhausted REASON_BUDGET_EXCEEDED: budget bud_1 has 153 millionths left and this call may cost 405: have the budget raised, ask for fewer tokens with max_output_tokens, or use a cheaper model [budget_id: bud_1] [needed_micros: 405] [remaining_micros: 153]
    "#]]
    .assert_eq(from_cost(&refused));

    // Whoever hangs up pays for what was streamed.
    drop(open);
    let rows = world.log(2).await;
    assert_eq!((rows[0].status.as_str(), rows[0].cost_micros), ("cancelled", 5 + 4));
    let shown = world.budget(id).await.unwrap();
    assert_eq!((shown.spent_micros, shown.reserved_micros), (49, 0));
    assert!(world.generate(short(100, "say hi")).await.contains("finished stop"));

    // More money is more money at once.
    let request = pb::PutBudgetRequest {
        budget_id: id.to_owned(),
        amount_micros: 1_000_000,
        ..pb::PutBudgetRequest::default()
    };
    world.limits().put_budget(world.as_caller(request)).await.unwrap();
    assert!(world.play("say hi").await.contains("finished stop"));
}

#[sqlx::test(migrations = false)]
async fn whoever_may_wait_is_served_when_there_is_room(db: PgPool) {
    let mut world = World::start(db).await;
    let queued = pb::Limit { queue_ms: 20_000, ..limit("concurrent_streams", "session_tree", 1) };
    world.put_limit(queued).await.unwrap();
    let mut open = world.begin(script("say hi\nhang")).await;
    world.until_text(&mut open).await;

    // Of another tree it is none of this one's business.
    let other = pb::GenerateRequest { root_session_id: "ses_2".into(), ..script("say hi") };
    assert!(world.generate(other).await.contains("finished stop"));

    let waiting = {
        let request = world.as_caller(script("say hi"));
        let mut client = world.client.clone();
        tokio::spawn(async move {
            World::rest(client.generate(request).await.unwrap().into_inner()).await
        })
    };
    sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    drop(open);
    let answer = timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    assert!(answer.contains("finished stop"), "{answer}");

    // And refused when its time is up.
    world
        .put_limit(pb::Limit { queue_ms: 200, ..limit("concurrent_streams", "session_tree", 1) })
        .await
        .unwrap();
    let mut open = world.begin(script("say hi\nhang")).await;
    world.until_text(&mut open).await;
    let asked = Instant::now();
    let refused = world.play("say hi").await;
    assert!(
        refused.contains("REASON_RATE_LIMITED: concurrent_streams for this session_tree is 1"),
        "{refused}"
    );
    assert!(asked.elapsed() >= Duration::from_millis(200));
}

#[sqlx::test(migrations = false)]
async fn the_log_joins_to_turns_and_sums_to_the_bill(db: PgPool) {
    let world = World::start(db).await;
    let of_turn =
        |turn: &str, text: &str| pb::GenerateRequest { turn_id: turn.into(), ..script(text) };
    // `World` checks that facts are of turn 1.
    world
        .generate(of_turn(
            "turn_1",
            "say hi\nusage input=10 output=5 reasoning=2 cache_read=3 cache_write=4",
        ))
        .await;
    world.generate(of_turn("turn_1", "say hi\nusage input=100 output=50")).await;
    world.generate(of_turn("turn_1", "fail auth")).await;
    world.generate(of_turn("turn_1", "say hi\ncut")).await;
    let rows = world.log(4).await;
    let told: Vec<_> = rows
        .iter()
        .rev()
        .map(|row| {
            format!(
                "{} {} {} {} {}",
                row.turn_id, row.model, row.status, row.error_kind, row.cost_micros
            )
        })
        .collect();
    expect![[r#"
        [
            "turn_1 demo completed  36",
            "turn_1 demo completed  300",
            "turn_1 demo failed auth 0",
            "turn_1 demo failed cut 9",
        ]
    "#]]
    .assert_debug_eq(&told);
    assert!(rows[3].first_token_ms > 0 && rows[3].duration_ms >= rows[3].first_token_ms);

    let time = |seconds| Some(pbjson_types::Timestamp { seconds, nanos: 0 });
    let now = rows[0].start_time.as_ref().unwrap().seconds;
    let query = pb::QueryUsageRequest {
        start_time: time(now - 1_000),
        end_time: time(now + 1_000),
        group_by: vec!["model".into(), "subject".into()],
        ..pb::QueryUsageRequest::default()
    };
    let answer =
        world.usage().query_usage(world.as_caller(query.clone())).await.unwrap().into_inner();
    assert_eq!(answer.rows.len(), 1);
    let row = &answer.rows[0];
    assert_eq!(
        (row.group["model"].as_str(), row.group["subject"].as_str()),
        ("scripted/demo", "ada")
    );
    assert_eq!((row.requests, row.cost_micros), (4, 36 + 300 + 9));
    assert_eq!((row.reasoning, row.cache_read, row.cache_write), (2, 3, 4));
    let of = |root: &str| pb::QueryUsageRequest { root_session_id: root.into(), ..query.clone() };
    for (root, found) in [("ses_1", 1), ("ses_2", 0)] {
        let answer = world.usage().query_usage(world.as_caller(of(root))).await.unwrap();
        assert_eq!(answer.into_inner().rows.len(), found);
    }
}

#[sqlx::test(migrations = false)]
async fn bad_limits_and_budgets_name_their_field(db: PgPool) {
    let world = World::start(db).await;
    let good = limit("requests_per_minute", "tenant", 1);
    let mut errors = String::new();
    for bad in [
        pb::Limit { limit: "wishes".into(), ..good.clone() },
        pb::Limit { scope: "planet".into(), ..good.clone() },
        pb::Limit { key: "another".into(), ..good.clone() },
        pb::Limit { value: -1, ..good.clone() },
        pb::Limit { queue_ms: 60_001, ..good.clone() },
    ] {
        errors += &format!("{}\n", explain(&world.put_limit(bad).await.unwrap_err()));
    }
    world.put_budget("default", 5).await.unwrap();
    let reused = pb::PutBudgetRequest {
        request_id: "request-default".into(),
        name: "default".into(),
        amount_micros: 6,
        ..pb::PutBudgetRequest::default()
    };
    let taken = pb::PutBudgetRequest { request_id: "new".into(), ..reused.clone() };
    let unknown = pb::PutBudgetRequest { budget_id: "bud_1".into(), ..reused.clone() };
    let poor = pb::PutBudgetRequest { amount_micros: -1, ..reused.clone() };
    for bad in [reused, taken, unknown, poor] {
        let error = world.limits().put_budget(world.as_caller(bad)).await.unwrap_err();
        errors += &format!("{}\n", explain(&error));
    }
    errors += &format!("{}\n", explain(&world.budget("bud_1").await.unwrap_err()));
    for bad in [
        pb::QueryUsageRequest::default(),
        pb::QueryUsageRequest { page_size: 1_001, ..pb::QueryUsageRequest::default() },
        pb::QueryUsageRequest { page_token: "x".into(), ..pb::QueryUsageRequest::default() },
    ] {
        let error = world.usage().query_usage(world.as_caller(bad)).await.unwrap_err();
        errors += &format!("{}\n", explain(&error));
    }
    expect![[r#"
        InvalidArgument REASON_INVALID_FIELD: invalid limit.limit: expected requests_per_minute, tokens_per_minute, concurrent_streams, tokens_per_day, cost_micros_per_day or cost_micros_per_month [field: limit.limit]
        InvalidArgument REASON_INVALID_FIELD: invalid limit.scope: expected tenant, subject, session_tree, provider or model [field: limit.scope]
        InvalidArgument REASON_INVALID_FIELD: invalid limit.key: must be empty: a tenant limits itself [field: limit.key]
        InvalidArgument REASON_INVALID_FIELD: invalid limit.value: must be from 0, which removes the limit, to 10^15 [field: limit.value]
        InvalidArgument REASON_INVALID_FIELD: invalid limit.queue_ms: must be from 0 to 60,000 [field: limit.queue_ms]
        AlreadyExists REASON_REQUEST_ID_REUSED: request_id request-default was used before for another budget [request_id: request-default]
        InvalidArgument REASON_INVALID_FIELD: invalid name: there is a budget default, change that one by its budget_id [field: name]
        NotFound REASON_BUDGET_NOT_FOUND: budget bud_1 not found [budget_id: bud_1]
        InvalidArgument REASON_INVALID_FIELD: invalid amount_micros: must be from 0 to 10^15 [field: amount_micros]
        NotFound REASON_BUDGET_NOT_FOUND: budget bud_1 not found [budget_id: bud_1]
        InvalidArgument REASON_INVALID_FIELD: invalid start_time: is missing or no time [field: start_time]
        InvalidArgument REASON_INVALID_FIELD: invalid page_size: must be from 0 to 1000 [field: page_size]
        InvalidArgument REASON_INVALID_CURSOR: page_token is not one of ours [field: page_token]
    "#]]
    .assert_eq(&errors);
}

/// A request that any model may answer.
fn anybody(text: &str) -> pb::GenerateRequest {
    let target = pb::Target { profile: "chat".into(), ..pb::Target::default() };
    pb::GenerateRequest { target: Some(target), ..short(100, text) }
}

#[sqlx::test(migrations = false)]
async fn a_limit_of_a_model_leads_to_the_next_and_a_limit_of_the_caller_to_none(db: PgPool) {
    let world = World::start(db).await;
    let of_demo = pb::Limit { key: "scripted/demo".into(), ..limit("tokens_per_day", "model", 1) };
    world.put_limit(of_demo).await.unwrap();
    let answer = world.generate(anybody("say hi\nusage input=1 output=1")).await;
    let answer = from_cost(&answer);
    for told in [
        "quota.blocked {\"quota\":\"tokens_per_day\",\"scope\":\"model\"",
        "routing.fallback.applied {\"fromProvider\":\"scripted\",\"fromModel\":\"demo\",\"toProvider\":\"scripted\",\"toModel\":\"small\",\"reason\":\"limit: the quota tokens_per_day for this model is 1",
        "finished stop scripted/small",
    ] {
        assert!(answer.contains(told), "{answer}");
    }
    // Only the one that was asked is in the log.
    assert_eq!(world.log(1).await[0].model, "small");

    // A limit of the caller's is in the way of everybody.
    world.put_limit(limit("tokens_per_day", "subject", 2)).await.unwrap();
    let answer = world.generate(anybody("say hi")).await;
    assert!(!answer.contains("routing.fallback.applied"), "{answer}");
    assert!(answer.contains("REASON_QUOTA_BLOCKED"), "{answer}");
    assert_eq!(world.log(1).await.len(), 1);

    // And so is a budget, whatever else there is.
    world.put_limit(limit("tokens_per_day", "subject", 0)).await.unwrap();
    world.put_budget("default", 1).await.unwrap();
    let answer = world.generate(anybody("say hi")).await;
    assert!(!answer.contains("routing.fallback.applied"), "{answer}");
    assert!(answer.contains("REASON_BUDGET_EXCEEDED"), "{answer}");
}

/// What is left is divided by the processes there are: here one that stopped and one that cannot
/// reach Redis.
#[sqlx::test(migrations = false)]
async fn without_redis_calls_are_refused_or_kept_within_a_share(db: PgPool) {
    let mut world = World::start(db).await;
    world.put_limit(limit("tokens_per_day", "tenant", 1_000)).await.unwrap();
    let used = "say hi\nusage input=100 output=100";
    assert!(world.generate(short(150, used)).await.contains("finished stop"));
    world.log(1).await;
    world.stop().await;

    let closed = world.without_redis("closed").await;
    let refused = closed.generate(short(150, used)).await;
    assert!(refused.contains("Unavailable REASON_DEPENDENCY_UNAVAILABLE"), "{refused}");

    let mut share = world.without_redis("share").await;
    let mut admitted = 0;
    let refused = loop {
        let answer = share.generate(short(150, used)).await;
        match answer.contains("finished stop") {
            true => admitted += 1,
            false => break answer,
        }
        assert!(admitted <= 4, "800 were left, and 200 were used each time");
    };
    assert!(admitted >= 1, "nothing was left: {refused}");
    assert!(refused.contains("quota.blocked"), "{refused}");
    assert!(refused.contains("ResourceExhausted REASON_QUOTA_BLOCKED"), "{refused}");
    // Nothing of it is lost to those who count with Redis again.
    share.log(1 + admitted).await;
    share.stop().await;
}
