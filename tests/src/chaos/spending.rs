//! What models cost: by the logs, by the ledger, and by the budget that paid for it.

use std::{collections::BTreeMap, time::Duration};

use proto::{
    event::v1::{Event, Payload},
    models::v1::{
        Budget, GetBudgetRequest, Limit, ListModelRequestsRequest, ModelRequest, PutBudgetRequest,
        PutLimitRequest,
    },
};
use redis::AsyncCommands as _;
use tokio::time::{Instant, sleep};

use super::{TENANT, Tally};
use crate::{Client, request_id};

/// More than anybody here can spend.
const PLENTY: i64 = 1_000_000_000_000;

/// How long it may take until what the dead had reserved is settled.
const PATIENCE: Duration = Duration::from_secs(60);

/// Everything that governs a call, so high that it never stands in the way.
pub async fn put_limits(client: &Client) -> Budget {
    for limit in ["requests_per_minute", "concurrent_streams", "tokens_per_day"] {
        let limit = Limit {
            limit: limit.into(),
            scope: "tenant".into(),
            value: PLENTY,
            ..Limit::default()
        };
        client.limits().put_limit(PutLimitRequest { limit: Some(limit) }).await.unwrap();
    }
    let request = PutBudgetRequest {
        request_id: request_id(),
        name: "default".into(),
        amount_micros: PLENTY,
        ..PutBudgetRequest::default()
    };
    client.limits().put_budget(request).await.unwrap().into_inner().budget.unwrap()
}

/// What a log says that requests cost.
pub fn costs(log: &[Event]) -> impl Iterator<Item = (String, i64)> {
    log.iter().filter_map(|event| match &event.payload {
        Some(Payload::CostRecorded(cost)) => {
            Some((event.model_request_id.clone(), cost.cost_micros))
        }
        _ => None,
    })
}

/// How many requests may end at a process of models while it dies and before it has committed that,
/// which is some milliseconds later.
const AT_ONCE: usize = 2;

/// Nothing is reserved any more, the budget paid for what is in the ledger, and the ledger has
/// what is in the logs.
///
/// `kills` is how often somebody died who had part in settling.
pub async fn adds_up(
    client: &Client,
    budget: &Budget,
    redis_url: &str,
    kills: usize,
    tally: &mut Tally,
) {
    let begun = Instant::now();
    let (shown, rows) = loop {
        let rows = ledger(client).await;
        let running = rows.iter().find(|row| row.status == "running");
        let request = GetBudgetRequest { budget_id: budget.budget_id.clone() };
        let shown = client.limits().get_budget(request).await.unwrap().into_inner();
        let shown = shown.budget.unwrap();
        let held = held(redis_url).await;
        if running.is_none() && shown.reserved_micros == 0 && held.is_empty() {
            break (shown, rows);
        }
        assert!(begun.elapsed() < PATIENCE, "reserved for ever: {running:?} {shown:?} {held:?}");
        sleep(Duration::from_millis(200)).await;
    };
    let spent: i64 = rows.iter().map(|row| row.cost_micros).sum();
    assert_eq!(shown.spent_micros, spent, "the budget paid for something else");

    let rows: BTreeMap<&str, &ModelRequest> =
        rows.iter().map(|row| (row.model_request_id.as_str(), row)).collect();
    let mut heard = 0;
    for (id, cost) in &tally.costs {
        match rows.get(id.as_str()) {
            Some(row) if row.basis == "worst_case" => {
                assert!(row.cost_micros >= *cost, "less than the worst case was paid: {row:?}");
                tally.unsettled += 1;
            }
            Some(row) => {
                assert_eq!(row.cost_micros, *cost, "the log says otherwise than {row:?}");
                heard += 1;
            }
            None => tally.missing += 1,
        }
    }
    tally.unheard = rows.len() - heard;
    let (lost, most) = (tally.unsettled + tally.missing, kills * AT_ONCE);
    assert!(lost <= most, "the ledger does not know what {lost} requests cost, at most {most}");
}

/// The whole request log.
async fn ledger(client: &Client) -> Vec<ModelRequest> {
    let mut request =
        ListModelRequestsRequest { page_size: 500, ..ListModelRequestsRequest::default() };
    let mut rows = Vec::new();
    loop {
        let page = client.usage().list_model_requests(request.clone()).await.unwrap().into_inner();
        rows.extend(page.model_requests);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return rows;
        }
    }
}

/// What Redis still holds for calls: reservations, streams that count as open, money.
async fn held(redis_url: &str) -> Vec<(String, String)> {
    let prefix = format!("windlass:models:{{{TENANT}}}:");
    let client = redis::Client::open(redis_url).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let mut all = Vec::new();
    let reserved: Vec<(String, String)> = redis.hgetall(format!("{prefix}held")).await.unwrap();
    all.extend(reserved);
    for (key, counts) in [("live", ""), ("budgets", ":held")] {
        let counters: Vec<(String, String)> =
            redis.hgetall(format!("{prefix}{key}")).await.unwrap();
        let open = |(name, value): &(String, String)| name.ends_with(counts) && value != "0";
        all.extend(counters.into_iter().filter(open));
    }
    all
}
