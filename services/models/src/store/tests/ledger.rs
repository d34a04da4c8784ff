//! Every request is paid once, whatever is repeated, and by whomever it is ended.

use sqlx::PgPool;

use crate::{
    bus::tests::row,
    counters::Counters,
    limit::{BudgetId, Governance, Limit, Name, Scope, Terms, Window},
    moment::Moment,
    request::{Basis, ReplicaId, Row, Status},
    store::{budgets, replicas, requests, rules},
    usage::Usage,
};

fn ended(row: &Row, cost_micros: i64) -> Row {
    let mut row = row.clone();
    row.status = Status::Completed;
    row.consume(Usage { input: 7, output: 3, ..Usage::default() }, cost_micros, Basis::Exact);
    row
}

async fn spent(db: &PgPool, id: BudgetId) -> (i64, i64) {
    let budget = budgets::get(db, &"acme".parse().unwrap(), id).await.unwrap().unwrap();
    (budget.spent_micros, budget.reserved_micros)
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn the_first_end_stands_and_is_paid_once(db: PgPool) {
    let tenant = "acme".parse().unwrap();
    let (id, _) =
        budgets::create(&db, &tenant, "ada", "r", "default", 1_000).await.unwrap().unwrap();
    let replica = ReplicaId::new();
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap();
    let began = || Row { budget_id: Some(id), ..row("acme", replica, now) };

    // One that begins and ends, each told twice and once more in the wrong order.
    let first = began();
    for _ in 0..2 {
        requests::write(&db, std::slice::from_ref(&first)).await.unwrap();
    }
    assert_eq!(spent(&db, id).await, (0, 90));
    for _ in 0..2 {
        requests::write(&db, &[ended(&first, 40)]).await.unwrap();
    }
    requests::write(&db, std::slice::from_ref(&first)).await.unwrap();
    requests::write(&db, &[ended(&first, 41)]).await.unwrap();
    assert_eq!(spent(&db, id).await, (40, 0));

    // One whose beginning never came, together with one that runs.
    let (second, third) = (began(), began());
    requests::write(&db, &[ended(&second, 5), third.clone()]).await.unwrap();
    assert_eq!(spent(&db, id).await, (45, 90));

    // The process dies, and what it had begun costs what it may have cost.
    replicas::register(&db, replica).await.unwrap();
    assert!(!replicas::give_up(&db, replica, 7).await.unwrap(), "it has counted since");
    assert!(replicas::give_up(&db, replica, 0).await.unwrap());
    assert!(!replicas::beat(&db, replica).await.unwrap());
    for tenants in [vec!["acme".to_owned()], vec![]] {
        assert_eq!(replicas::close(&db, replica).await.unwrap(), tenants);
    }
    requests::write(&db, &[ended(&third, 1)]).await.unwrap();
    assert_eq!(spent(&db, id).await, (135, 0));
    let rows = requests::list(&db, &tenant, "ses_1", "turn_1", None, 10).await.unwrap();
    let told: Vec<_> =
        rows.iter().map(|row| (row.id, row.status, row.basis, row.cost_micros)).collect();
    assert_eq!(
        told,
        [
            (third.id, Status::Cancelled, Basis::WorstCase, 90),
            (second.id, Status::Completed, Basis::Exact, 5),
            (first.id, Status::Completed, Basis::Exact, 40),
        ]
    );
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_is_on_record_is_counted(db: PgPool) {
    let tenant = "acme".parse().unwrap();
    let now = Moment::of(jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap());
    for (name, scope) in [
        (Name::ConcurrentStreams, Scope::Subject),
        (Name::RequestsPerMinute, Scope::Tenant),
        (Name::TokensPerMinute, Scope::Model),
        (Name::TokensPerDay, Scope::Provider),
        (Name::CostMicrosPerMonth, Scope::SessionTree),
    ] {
        let terms = Terms { value: 1_000, queue_ms: 0 };
        let limit = Limit { name, scope, key: String::new(), terms };
        assert!(rules::set(&db, &tenant, "ada", &limit).await.unwrap());
    }
    let here = ReplicaId::new();
    let first = row("acme", here, now.at);
    let stranger = row("another", here, now.at);
    requests::write(&db, &[ended(&first, 40), row("acme", here, now.at), stranger]).await.unwrap();

    let (rules, past) = requests::past(&db, &tenant, &now).await.unwrap();
    let counters = Counters::of(&Governance::from(&rules), &past, &now);
    let second = now.second();
    for (window, counter, used) in [
        (Window::Live, "concurrent_streams:subject:ada", 1),
        (Window::Minute, "requests_per_minute:tenant:", 2),
        (Window::Minute, "tokens_per_minute:model:scripted/demo", 10 + 30),
        (Window::Day, "tokens_per_day:provider:scripted", 10 + 30),
        (Window::Month, "cost_micros_per_month:session_tree:ses_1", 40 + 90),
    ] {
        assert_eq!(counters.used(window, counter, second), used, "{counter}");
    }
}
