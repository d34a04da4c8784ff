//! Facts of the tools service: each is in the log once, in order, and not without a session.

use std::time::Duration;

use expect_test::expect;
use proto::event::v1::{Event, RareIds};
use serde_json::value::RawValue;
use sqlx::PgPool;

use crate::{
    ids::SessionId,
    store::{
        admin,
        facts::{Fact, append, ended, told},
    },
    testing::World,
};

fn fact(number: i64) -> Fact {
    let ids = RareIds { process_id: "proc_1".into(), ..RareIds::default() };
    let payload = format!(r#"{{"text": "fact {number}"}}"#);
    let payload = RawValue::from_string(payload).unwrap();
    Fact { number, r#type: "process.output".into(), ids, payload }
}

impl World {
    async fn append(&self, id: SessionId, numbers: impl IntoIterator<Item = i64>) -> Vec<Event> {
        let facts: Vec<_> = numbers.into_iter().map(fact).collect();
        append(&self.db, &self.tenant, id, &facts, self.replica).await.unwrap()
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn facts_that_come_again_are_known(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    let new = world.append(id, 1..=2).await;
    assert_eq!(new.len(), 2);
    assert!(new.iter().all(|event| event.process_id == "proc_1"), "{new:?}");
    // Whoever took them did not get around to saying so.
    let sequences =
        |events: &[Event]| events.iter().map(|event| event.sequence).collect::<Vec<_>>();
    let more = world.append(id, 1..=3).await;
    assert_eq!(sequences(&more), [new[1].sequence + 1]);
    assert!(world.append(id, 2..=3).await.is_empty());
    assert!(world.append(id, []).await.is_empty());
    expect![[r#"
        1 session.created
        2 thread.started
        3 process.output fact 1
        4 process.output fact 2
        5 process.output fact 3
    "#]]
    .assert_eq(&world.log(id).await);
    assert_eq!(world.state(id).await.next_seq, 6);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn facts_find_only_their_own_tenants_session(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    let other = "other".parse().unwrap();
    let events = append(&world.db, &other, id, &[fact(1)], world.replica).await.unwrap();
    assert!(events.is_empty());
    assert!(world.append(SessionId::new(), 1..=1).await.is_empty());
    assert_eq!(world.append(id, 1..=1).await.len(), 1);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_session_that_is_gone_is_told_of_until_somebody_has_heard(db: PgPool) {
    let world = World::new(db).await;
    let (id, other) = (world.session().await, world.session().await);
    admin::delete(&world.db, &world.tenant, id).await.unwrap();
    let all = |lease| ended(&world.db, 10, lease);
    assert_eq!(all(Duration::ZERO).await.unwrap(), [(world.tenant.clone(), id)]);
    // Nobody said that it was told: it is told again, by one at a time.
    assert_eq!(all(Duration::from_secs(60)).await.unwrap().len(), 1);
    assert!(all(Duration::ZERO).await.unwrap().is_empty());
    told(&world.db, id).await.unwrap();
    sqlx::query("update session.ended set leased_until = '-infinity'")
        .execute(&world.db)
        .await
        .unwrap();
    assert!(all(Duration::ZERO).await.unwrap().is_empty());
    assert_eq!(world.append(other, 1..=1).await.len(), 1);
}
