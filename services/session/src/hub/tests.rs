use chassis::Redis;
use futures::{StreamExt as _, future::join_all};
use proto::session::v1::{SubscribeSnapshot, subscribe_response::Item};
use sqlx::PgPool;
use tokio_util::sync::DropGuard;

use super::*;
use crate::{
    ids::ReplicaId,
    reader::{self, Opening},
    testing::World,
};

struct Running {
    world: World,
    bus: Bus,
    hub: Hub,
    stop: CancellationToken,
    _stop: DropGuard,
}

async fn running(db: PgPool, redis_url: &str) -> Running {
    let world = World::new(db).await;
    let stop = CancellationToken::new();
    let redis = Redis::new(&chassis::redis::Args { redis_url: redis_url.into() }).unwrap();
    let bus = Bus::start(redis.clone(), world.replica, stop.clone());
    // Readers here would not need Redis.
    let elsewhere = Bus::start(redis, ReplicaId::new(), stop.clone());
    let hub = Hub::start(&elsewhere, world.db.clone(), stop.clone());
    Running { world, bus, hub, _stop: stop.clone().drop_guard(), stop }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn readers_that_leave_at_the_same_time_leave_nothing_behind(db: PgPool) {
    let Running { hub, _stop, .. } = running(db, &std::env::var("REDIS_URL").unwrap()).await;
    let id = SessionId::new();
    for _ in 0..50 {
        let listeners = join_all((0..8).map(|_| hub.listen(id))).await;
        std::thread::scope(|scope| {
            for listener in listeners {
                scope.spawn(move || drop(listener));
            }
        });
        assert!(hub.readers.sessions().is_empty());
    }
}

/// Reads until a session has said this much, and returns the sequences.
async fn read(running: &Running, id: SessionId, after: i64, until: i64) -> Vec<i64> {
    let listener = running.hub.listen(id).await;
    let reached = running.world.state(id).await.next_seq - 1;
    let (db, stop) = (running.world.db.clone(), running.stop.clone());
    let opening =
        Opening { snapshot: SubscribeSnapshot::default(), repaired: None, after, reached };
    let events = reader::read(db, id, opening, listener, stop);
    let mut sequences = Vec::new();
    let mut events = std::pin::pin!(events);
    while sequences.last().is_none_or(|last| *last < until) {
        if let Some(Item::Event(event)) = events.next().await.unwrap().unwrap().item {
            sequences.push(event.sequence);
        }
    }
    sequences
}

/// Submits turns, and publishes only some of what happened, late and out of order.
async fn write(running: &Running, id: SessionId) {
    let mut late = Vec::new();
    for number in 0..60 {
        let text = format!("turn {number}");
        let turn = running.world.try_submit(id, &text, &text, |new| new.queue_limit = 1000).await;
        let events = turn.unwrap().events;
        match number % 4 {
            0 => running.bus.publish(&running.world.tenant, id, events, false),
            1 => {}
            2 => late.push(events),
            _ => {
                running.bus.publish(&running.world.tenant, id, events, false);
                late.drain(..).for_each(|events| {
                    running.bus.publish(&running.world.tenant, id, events, false)
                });
            }
        }
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_reader_sees_every_event_once_and_in_order(db: PgPool) {
    let running = running(db, &std::env::var("REDIS_URL").unwrap()).await;
    every_event_once(&running).await;
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn without_redis_a_reader_sees_every_event_too(db: PgPool) {
    let running = running(db, "redis://127.0.0.1:1").await;
    every_event_once(&running).await;
}

async fn every_event_once(running: &Running) {
    let id = running.world.session().await;
    // Two of `create`, one of the first turn, two of each other.
    let last = 2 + 1 + 59 * 2;
    let reading = async {
        tokio::join!(
            read(running, id, 0, last),
            read(running, id, 2, last),
            read(running, id, 1, last)
        )
    };
    let ((all, rest, most), ()) = tokio::join!(reading, write(running, id));
    assert_eq!(all, (1..=last).collect::<Vec<_>>());
    assert_eq!(rest, (3..=last).collect::<Vec<_>>());
    assert_eq!(most, (2..=last).collect::<Vec<_>>());
}
