//! A process of the models service dies in the middle of an answer: what it had reserved is charged
//! and freed.

use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    models::v1::{
        GetBudgetRequest, Limit, ListModelRequestsRequest, ModelRequest, PutBudgetRequest,
        PutLimitRequest,
    },
    session::v1::subscribe_request::From,
};
use tests::{World, request_id, text_of};

use crate::what_dies::soon;

const SLOW: &str = "pace 50ms\nrepeat 1000 \"word \"";

fn worst_case(events: &[Event]) -> Option<i64> {
    events.iter().find_map(|event| match &event.payload {
        Some(Payload::CostEstimated(cost)) => Some(cost.worst_case_micros),
        _ => None,
    })
}

#[tokio::test]
async fn what_a_dead_process_had_reserved_is_charged_and_freed() {
    let plan = Fleet::plan().env_of(Service::Models, "LEASE", "1");
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let one = Limit {
        limit: "concurrent_streams".into(),
        scope: "tenant".into(),
        value: 1,
        ..Limit::default()
    };
    client.limits().put_limit(PutLimitRequest { limit: Some(one) }).await.unwrap();
    let budget = PutBudgetRequest {
        request_id: request_id(),
        name: "default".into(),
        amount_micros: 10_000_000,
        ..PutBudgetRequest::default()
    };
    let budget = client.limits().put_budget(budget).await.unwrap().into_inner().budget.unwrap();

    let session = client.create_session().await;
    let mut events = session.subscribe(From::Live(true)).await;
    let turn = session.submit(SLOW).await;
    let mut seen = events.until(|event| event.r#type == "model.delta").await;
    world.fleet.get(Service::Models).kill().await.unwrap();
    seen.extend(events.until_ended(&turn.turn_id).await);
    world.fleet.get(Service::Models).restart().await.unwrap();

    // The row says that nobody knows how far it came, and that it is paid for.
    let worst = worst_case(&seen).unwrap();
    let request = ListModelRequestsRequest { turn_id: turn.turn_id.clone(), ..Default::default() };
    let closed = async {
        loop {
            let rows = client.usage().list_model_requests(request.clone()).await;
            let rows: Vec<ModelRequest> = rows.unwrap().into_inner().model_requests;
            if let [row] = rows.as_slice()
                && row.status != "running"
            {
                return row.clone();
            }
        }
    };
    let row = soon("the request is closed", closed).await;
    assert_eq!((row.status.as_str(), row.cost_micros), ("cancelled", worst));
    assert!(seen.iter().any(|event| event.model_request_id == row.model_request_id));
    let shown = client
        .limits()
        .get_budget(GetBudgetRequest { budget_id: budget.budget_id })
        .await
        .unwrap()
        .into_inner()
        .budget
        .unwrap();
    assert_eq!((shown.spent_micros, shown.reserved_micros), (worst, 0));

    // Its place is free again: turns wait and repeat until it is.
    let next = session.run("say Back.").await;
    assert_eq!(text_of(&next), "Back.");
}
