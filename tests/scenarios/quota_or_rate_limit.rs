use std::collections::BTreeSet;

use local::Service;
use proto::{
    event::v1::{Event, Payload},
    models::v1::{
        Limit, ListLimitsRequest, ListModelRequestsRequest, PutBudgetRequest, PutLimitRequest,
    },
    session::v1::{session::Status, subscribe_request::From},
};
use tests::{Client, Session, World, request_id, text_of};

use crate::{usage::billed_for, what_dies::soon};

fn limit(limit: &str, value: i64) -> Limit {
    Limit { limit: limit.into(), scope: "tenant".into(), value, ..Limit::default() }
}

async fn put(client: &Client, limit: Limit) {
    client.limits().put_limit(PutLimitRequest { limit: Some(limit) }).await.unwrap();
}

fn has(events: &[Event], name: &str) -> bool {
    events.iter().any(|event| event.r#type == name)
}

/// How a turn failed.
fn failed(events: &[Event]) -> (&str, &str) {
    match &events.last().unwrap().payload {
        Some(Payload::TurnFailed(failed)) => (&failed.reason, &failed.message),
        other => panic!("{other:?}"),
    }
}

/// Where a rate limit was.
fn origins(events: &[Event]) -> Vec<&str> {
    let hits = events.iter().filter_map(|event| match &event.payload {
        Some(Payload::RateLimitHit(hit)) => Some(hit.origin.as_str()),
        _ => None,
    });
    hits.collect()
}

#[tokio::test]
async fn quota_or_rate_limit() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    // Answers are short, so that the worst case is not far from the real one.
    let mut manifest = client.agent("scripted").await;
    manifest.max_output_tokens = 1_000;
    client.put_manifest("scripted", manifest).await;
    let session = client.create_session().await;

    // The provider's: the turn waits as long as it says, and goes on.
    let seen = session.run("fail rate_limit 100ms 1\nsay Patience.").await;
    assert_eq!((origins(&seen), text_of(&seen).as_str()), (vec!["provider"], "Patience."));
    rows_join(&client, &seen, 2).await;

    a_limit_of_ours(&client, &session).await;
    a_quota(&client, &session).await;
    a_budget(&client, &session).await;

    // What the events say is what the ledger says.
    let told: i64 = session
        .log()
        .await
        .iter()
        .filter_map(|event| match &event.payload {
            Some(Payload::CostRecorded(cost)) => Some(cost.cost_micros),
            _ => None,
        })
        .sum();
    let same = async { while billed_for(&client, &session.id).await.0 != told {} };
    soon("the ledger says what the events say", same).await;
}

/// What a turn heard of limits that were changed: which, from what to what.
async fn changes(session: &Session) -> Vec<(String, i64, i64)> {
    let seen = session.run("say Heard.").await;
    let changes = seen.iter().filter_map(|event| match &event.payload {
        Some(Payload::LimitChanged(changed)) => {
            assert!(!changed.subject.is_empty() && changed.scope == "tenant", "{changed:?}");
            Some((changed.limit.clone(), changed.before, changed.after))
        }
        _ => None,
    });
    changes.collect()
}

#[tokio::test]
async fn a_session_says_once_that_its_limits_were_changed() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    put(&client, limit("tokens_per_day", 1_000_000)).await;
    let session = client.create_session().await;
    assert_eq!(changes(&session).await, [], "it has known no other");

    put(&client, limit("tokens_per_day", 2_000_000)).await;
    let others = Limit {
        scope: "subject".into(),
        key: "somebody else".into(),
        ..limit("tokens_per_day", 1)
    };
    put(&client, others).await;
    assert_eq!(changes(&session).await, [("tokens_per_day".into(), 1_000_000, 2_000_000)]);
    assert_eq!(changes(&session).await, []);
    let newer = client.create_session().await;
    assert_eq!(changes(&newer).await, []);

    // A process that knows nothing of it does not say it again.
    world.fleet.get(Service::Models).restart().await.unwrap();
    assert_eq!(changes(&session).await, []);
    put(&client, limit("tokens_per_day", 0)).await;
    for session in [&session, &newer] {
        assert_eq!(changes(session).await, [("tokens_per_day".into(), 2_000_000, 0)]);
    }
}

/// Whoever cannot be served now is served when there is room, and both are on record.
async fn a_limit_of_ours(client: &Client, session: &Session) {
    put(client, limit("concurrent_streams", 1)).await;
    let other = client.create_session().await;
    let mut others = other.subscribe(From::Live(true)).await;
    other.submit("say Mine.\nhang").await;
    others.until(|event| event.r#type == "model.delta").await;

    let mut events = session.subscribe(From::Live(true)).await;
    let turn = session.submit("say At last.").await;
    let mut seen = events.until(|event| event.r#type == "rate_limit.hit").await;
    other.interrupt("others wait").await;
    seen.extend(events.until_ended(&turn.turn_id).await);
    assert_eq!((origins(&seen)[0], text_of(&seen).as_str()), ("host", "At last."));
    rows_join(client, &seen, 1).await;
    put(client, limit("concurrent_streams", 0)).await;
}

/// It nears its end, then it is at it, and the turn says how to go on.
async fn a_quota(client: &Client, session: &Session) {
    put(client, limit("tokens_per_day", 1_000_000_000)).await;
    let limits = client.limits().list_limits(ListLimitsRequest::default()).await.unwrap();
    let used = limits.into_inner().limits[0].used;
    assert!(used > 0, "what was used before counts");
    put(client, limit("tokens_per_day", used + 40_000)).await;

    let seen = session.run("say One.\nusage input=28000 output=1").await;
    assert!(!has(&seen, "quota.low") && text_of(&seen) == "One.");
    let seen = session.run("say Two.\nusage input=10000 output=1").await;
    assert!(has(&seen, "quota.low") && text_of(&seen) == "Two.");
    let seen = session.run("say Never.").await;
    assert!(has(&seen, "quota.blocked"));
    let (reason, message) = failed(&seen);
    assert_eq!(reason, "limit");
    assert!(message.contains("have the limit raised"), "{message}");
    assert_eq!(session.get().await.status(), Status::Error);
    rows_join(client, &seen, 0).await;
    put(client, limit("tokens_per_day", 0)).await;
}

async fn a_budget(client: &Client, session: &Session) {
    let poor = PutBudgetRequest {
        request_id: request_id(),
        name: "default".into(),
        amount_micros: 10,
        ..PutBudgetRequest::default()
    };
    let budget = client.limits().put_budget(poor).await.unwrap().into_inner().budget.unwrap();
    let seen = session.run("say Never.").await;
    let (reason, message) = failed(&seen);
    assert_eq!(reason, "limit");
    assert!(message.contains("have the budget raised"), "{message}");

    let rich = PutBudgetRequest {
        budget_id: budget.budget_id.clone(),
        amount_micros: 1_000_000_000,
        ..PutBudgetRequest::default()
    };
    client.limits().put_budget(rich).await.unwrap();
    let seen = session.run("say Paid.").await;
    assert_eq!(text_of(&seen), "Paid.");
    let paid = seen.iter().find_map(|event| match &event.payload {
        Some(Payload::CostRecorded(cost)) => Some(cost.clone()),
        _ => None,
    });
    let paid = paid.unwrap();
    assert_eq!(paid.budget_id, budget.budget_id);
    assert_eq!(paid.remaining_micros, 1_000_000_000 - paid.cost_micros);
}

/// The rows of the request log that belong to a turn are the requests its events speak of.
async fn rows_join(client: &Client, events: &[Event], count: usize) {
    let turn_id = &events.last().unwrap().turn_id;
    let request = ListModelRequestsRequest {
        turn_id: turn_id.clone(),
        ..ListModelRequestsRequest::default()
    };
    let mut rows = Vec::new();
    let all = async {
        while rows.len() != count
            || rows.iter().any(|row: &proto::models::v1::ModelRequest| row.status == "running")
        {
            rows = client
                .usage()
                .list_model_requests(request.clone())
                .await
                .unwrap()
                .into_inner()
                .model_requests;
        }
    };
    soon("the log has every request of the turn", all).await;
    let told: BTreeSet<_> = events.iter().map(|event| event.model_request_id.as_str()).collect();
    for row in &rows {
        assert!(told.contains(row.model_request_id.as_str()), "{row:?}");
        assert!(events.iter().any(|event| event.step_id == row.step_id));
    }
}
