use std::time::Duration;

use sqlx::PgPool;
use tokio::time::sleep;

use super::*;
use crate::bus::tests::bus_at;

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
