use std::time::Duration;

use sqlx::PgPool;
use tokio::time::{sleep, timeout};

use super::*;
use crate::{
    bus::{
        Turn,
        tests::{bus, bus_at},
    },
    limit::Rules,
    request::ReplicaId,
    store::replicas,
};

const LEASE: Duration = Duration::from_secs(3);

fn tenant() -> Tenant {
    "acme".parse().unwrap()
}

/// A process that has a share of a tenant, because nobody listens where its Redis should be.
async fn sharing(db: &PgPool, done: &CancellationToken) -> Admission {
    let bus = bus_at("redis://127.0.0.1:1");
    let admission =
        Admission::start(db.clone(), bus, LEASE, Without::Share, 10, done).await.unwrap();
    while admission.0.bus.is_up() {
        sleep(Duration::from_millis(10)).await;
    }
    share(&admission).await;
    admission
}

async fn share(admission: &Admission) {
    let now = Moment::of(super::super::now());
    assert!(admission.share_of(&tenant(), &now).await.is_ok());
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_share_is_known_until_redis_has_heard_of_it(db: PgPool) {
    let done = CancellationToken::new();
    let _done = done.clone().drop_guard();
    let admission = sharing(&db, &done).await;
    let left = || lock(&admission.0.shares).get(&tenant()).map(|share| share.left);
    assert_eq!(left(), Some(false));
    assert!(admission.rules_changed(&tenant()).await.is_err());
    assert_eq!(left(), Some(true), "nobody has Redis count what was admitted");
    // Who calls next does so by the new rules.
    share(&admission).await;
    assert_eq!(left(), Some(false));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn who_stops_with_a_share_that_redis_never_heard_of_is_missed(db: PgPool) {
    let done = CancellationToken::new();
    let _done = done.clone().drop_guard();
    sharing(&db, &done).await.close().await;
    assert_eq!(replicas::all(&db).await.unwrap().len(), 1, "nobody can tell that it was there");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_somebody_admitted_without_redis_is_counted_when_they_are_gone(db: PgPool) {
    let done = CancellationToken::new();
    let _done = done.clone().drop_guard();
    let bus = bus();
    let tenant: Tenant = ReplicaId::new().to_string().try_into().unwrap();
    let limit = "insert into models.rule values ($1, 'tokens_per_day', 'tenant', '', 100, 0)";
    sqlx::query(limit).bind(tenant.as_str()).execute(&db).await.unwrap();
    let (now, rules) = (Moment::of(super::super::now()), Rules::default());
    assert_eq!(bus.begin(&tenant, "one").await.unwrap(), Turn::Yours);
    let built = bus.rebuild(&tenant, "one", &now, &rules, &Counters::default(), &[]).await;
    assert_eq!(built.unwrap(), Turn::Yours);
    let gone = ReplicaId::new();
    replicas::register(&db, gone).await.unwrap();
    assert!(replicas::give_up(&db, gone, 0).await.unwrap());

    let lease = Duration::from_millis(300);
    Admission::start(db.clone(), bus.clone(), lease, Without::Share, 10, &done).await.unwrap();
    let missed = async {
        while replicas::all(&db).await.unwrap().iter().any(|replica| replica.id == gone) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(15), missed).await.unwrap();
    assert_eq!(bus.begin(&tenant, "two").await.unwrap(), Turn::Yours);
}
