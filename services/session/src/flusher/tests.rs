use std::time::Duration;

use chassis::Redis;
use proto::event::v1::{Event, Payload, ToolProgress};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::*;
use crate::{
    hub::Hub,
    ids::{MessageId, ReplicaId},
    readers::Notice,
    store::turns::Interrupt,
    store::{events, replicas},
    testing::{World, completed, delta, pending, started, step, texts},
    time,
    turn::Ending,
};

struct Running {
    world: World,
    flusher: Flusher,
    bus: Bus,
    stop: CancellationToken,
    _stop: DropGuard,
}

/// A flusher with one shard, so that all sessions share its batches.
async fn running(db: PgPool, redis_url: &str) -> Running {
    let world = World::new(db).await;
    let stop = CancellationToken::new();
    let redis = Redis::new(&redis_args(redis_url)).unwrap();
    let bus = Bus::start(redis, world.replica, stop.clone());
    let flusher = Flusher::start(&world.db, &bus, world.replica, 1, Duration::from_secs(20), &stop);
    Running { world, flusher, bus, _stop: stop.clone().drop_guard(), stop }
}

fn redis_args(url: &str) -> chassis::redis::Args {
    chassis::redis::Args { redis_url: url.into() }
}

/// Redis is away: nothing here needs it.
async fn alone(db: PgPool) -> Running {
    running(db, "redis://127.0.0.1:1").await
}

fn add(writer: &Writer, event: Event) {
    writer.add(|pending| {
        pending.append(event, time::now());
    });
}

fn end(writer: &Writer) {
    writer.add(|pending| {
        pending.append(completed(), time::now());
        pending.end(Ending::Completed);
    });
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn who_waits_is_told_after_the_commit(db: PgPool) {
    let Running { world, flusher, _stop, .. } = alone(db).await;
    let claim = world.claimed().await;
    let writer = flusher.writer(&claim);
    writer.flush().await.unwrap();

    let mut holder = world.db.begin().await.unwrap();
    sqlx::query("select from session.run_state for update").execute(&mut *holder).await.unwrap();
    add(&writer, started());
    let waiting = timeout(Duration::from_millis(100), writer.flush());
    assert!(waiting.await.is_err(), "told before the commit");
    holder.commit().await.unwrap();
    writer.flush().await.unwrap();
    assert!(world.log(claim.session_id).await.ends_with("4 turn.started\n"));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn deltas_that_wait_for_a_commit_are_one(db: PgPool) {
    let Running { world, flusher, _stop, .. } = alone(db).await;
    let claim = world.claimed().await;
    let (writer, message_id) = (flusher.writer(&claim), MessageId::new());
    let mut holder = world.db.begin().await.unwrap();
    sqlx::query("select from session.run_state for update").execute(&mut *holder).await.unwrap();
    add(&writer, started());
    sleep(Duration::from_millis(50)).await;
    for word in ["one ", "two ", "three"] {
        add(&writer, delta(message_id, word));
    }
    holder.commit().await.unwrap();
    writer.flush().await.unwrap();
    assert!(
        world
            .log(claim.session_id)
            .await
            .ends_with("4 turn.started\n5 model.delta one two three\n")
    );
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn many_sessions_write_side_by_side_and_in_order(db: PgPool) {
    let Running { world, flusher, _stop, .. } = alone(db).await;
    let mut writing = Vec::new();
    for _ in 0..8 {
        let claim = world.claimed().await;
        let (writer, message_id) = (flusher.writer(&claim), MessageId::new());
        writing.push(tokio::spawn(async move {
            writer.add(|pending| {
                let now = time::now();
                pending.append(started(), now);
                pending.save_message(claim.turn_id, &step(message_id, ""), now);
                pending.save_part(&step(message_id, ""), 0);
            });
            for word in 0..100 {
                add(&writer, delta(message_id, &format!("{word} ")));
                tokio::task::yield_now().await;
            }
            end(&writer);
            writer.flush().await.unwrap();
            claim.session_id
        }));
    }
    let said: String = (0..100).map(|word| format!("{word} ")).collect();
    for session in writing {
        let id = session.await.unwrap();
        let state = world.state(id).await;
        assert_eq!((state.status.as_str(), state.owner), ("idle", None));
        assert_eq!(world.log(id).await.lines().count() as i64, state.next_seq - 1);
        assert_eq!(texts(&world.db, id).await, ["hello", &said]);
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_flush_that_was_committed_before_the_connection_broke_is_recognised(db: PgPool) {
    let Running { world, flusher, _stop, .. } = alone(db).await;
    let claim = world.claimed().await;
    let first = pending(|pending, now| {
        pending.append(started(), now);
    });
    world.flush(&Owner::from(&claim), &first).await.unwrap();

    let writer = flusher.writer(&claim);
    add(&writer, started());
    writer.flush().await.unwrap();
    add(&writer, completed());
    writer.flush().await.unwrap();
    assert!(
        world
            .log(claim.session_id)
            .await
            .ends_with("3 turn.submitted accepted\n4 turn.started\n5 turn.completed\n")
    );
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn who_lost_the_session_is_told_and_writes_nothing(db: PgPool) {
    let Running { world, flusher, _stop, .. } = alone(db).await;
    let claim = world.claimed().await;
    let writer = flusher.writer(&claim);
    let judge = world.another_replica().await;
    replicas::leave(&world.db, world.replica).await.unwrap();
    replicas::adopt(&world.db, judge, claim.session_id, world.replica).await.unwrap();

    let log = world.log(claim.session_id).await;
    add(&writer, started());
    assert_eq!(writer.flush().await, Err(Stopped::Lost));
    assert_eq!(*writer.signals().borrow(), Signal::Stopped);
    add(&writer, started());
    assert_eq!(writer.flush().await, Err(Stopped::Lost));
    assert_eq!(world.log(claim.session_id).await, log);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn bad_data_stops_its_own_session_alone(db: PgPool) {
    let Running { world, flusher, _stop, .. } = alone(db).await;
    let mut writers = Vec::new();
    for _ in 0..5 {
        let claim = world.claimed().await;
        writers.push((claim.session_id, flusher.writer(&claim)));
    }
    // All in one batch, because they wait for one row.
    let mut holder = world.db.begin().await.unwrap();
    sqlx::query("select from session.run_state for update").execute(&mut *holder).await.unwrap();
    for (index, (_, writer)) in writers.iter().enumerate() {
        let text = if index == 3 { "a NUL: \0" } else { "fine" };
        let progress = ToolProgress { text: text.into(), ..ToolProgress::default() };
        add(writer, Event::fact(Payload::ToolProgress(progress)));
    }
    sleep(Duration::from_millis(50)).await;
    holder.commit().await.unwrap();

    for (index, (id, writer)) in writers.iter().enumerate() {
        let flushed = writer.flush().await;
        match index {
            3 => assert!(matches!(flushed, Err(Stopped::Refused(_))), "{flushed:?}"),
            _ => assert_eq!(flushed, Ok(())),
        }
        let last = if index == 3 { "accepted\n" } else { "fine\n" };
        assert!(world.log(*id).await.ends_with(last), "{index}");
    }
    // Without what was refused, the end can still be told.
    let (id, writer) = &writers[3];
    writer.discard();
    end(writer);
    writer.flush().await.unwrap();
    assert_eq!(world.state(*id).await.status, "idle");
}

/// Has Postgres take too long for the first commits; what a sequence counted stays counted.
async fn late(world: &World, times: i64) {
    let body = format!(
        "create sequence session.tried;
         create function session.take_too_long() returns trigger language plpgsql as $$
         begin
             if nextval('session.tried') <= {times} then
                 raise exception using errcode = '57014', message = 'canceling statement due to statement timeout';
             end if;
             return null;
         end $$;
         create trigger take_too_long before insert on session.event
             for each statement execute function session.take_too_long()"
    );
    sqlx::raw_sql(AssertSqlSafe(body)).execute(&world.db).await.unwrap();
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_commit_that_took_too_long_is_tried_again(db: PgPool) {
    let Running { world, flusher, _stop, .. } = alone(db).await;
    let claim = world.claimed().await;
    let writer = flusher.writer(&claim);
    late(&world, 3).await;
    add(&writer, started());
    assert_eq!(writer.flush().await, Ok(()));
    assert!(world.log(claim.session_id).await.ends_with("4 turn.started\n"));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_commit_that_always_takes_too_long_is_refused(db: PgPool) {
    let Running { world, flusher, _stop, .. } = alone(db).await;
    let claim = world.claimed().await;
    let writer = flusher.writer(&claim);
    late(&world, 1000).await;
    add(&writer, started());
    let refused = timeout(Duration::from_secs(10), writer.flush()).await.unwrap();
    assert!(matches!(refused, Err(Stopped::Refused(_))), "{refused:?}");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn an_interrupt_comes_back_with_the_next_flush(db: PgPool) {
    let Running { world, flusher, _stop, .. } = alone(db).await;
    let claim = world.claimed().await;
    let writer = flusher.writer(&claim);
    sqlx::query("update session.run_state set interrupt_turn = active_turn")
        .execute(&world.db)
        .await
        .unwrap();
    add(&writer, started());
    writer.flush().await.unwrap();
    let interrupt =
        Interrupt { turn_id: claim.turn_id, subject: String::new(), reason: String::new() };
    assert_eq!(*writer.signals().borrow(), Signal::Interrupt(interrupt));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_is_committed_is_published_as_a_reload_shows_it(db: PgPool) {
    let redis_url = std::env::var("REDIS_URL").unwrap();
    let Running { world, flusher, bus, stop, _stop } = running(db, &redis_url).await;
    let claim = world.claimed().await;
    let id = claim.session_id;
    world.submit(id, "second").await;
    let redis = Redis::new(&redis_args(&redis_url)).unwrap();
    let elsewhere = Bus::start(redis, ReplicaId::new(), stop.clone());
    let hubs = [bus, elsewhere].map(|bus| Hub::start(&bus, world.db.clone(), stop.clone()));
    let mut listeners = [hubs[0].listen(id).await, hubs[1].listen(id).await];

    let writer = flusher.writer(&claim);
    end(&writer);
    writer.flush().await.unwrap();
    for listener in &mut listeners {
        let published = loop {
            let notice = timeout(Duration::from_secs(10), listener.notices.recv()).await.unwrap();
            if let Notice::Events(events) = notice.unwrap() {
                break events;
            }
        };
        // The end, and that the next turn goes.
        assert_eq!(published.len(), 2);
        assert_eq!(*published, *events::after(&world.db, id, 5, 10).await.unwrap());
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn everything_that_was_added_is_committed(db: PgPool) {
    let Running { world, flusher, _stop, .. } = alone(db).await;
    let claim = world.claimed().await;
    let writer = flusher.writer(&claim);
    writer.add(|pending| pending.spend(&Default::default(), 7));
    writer.flush().await.unwrap();
    writer.add(|pending| pending.show("retrying", "in a moment".into()));
    writer.flush().await.unwrap();
    let session =
        crate::store::sessions::get(&world.db, &world.tenant, claim.session_id).await.unwrap();
    assert_eq!((session.cost_micros, session.status.as_str()), (7, "retrying"));
    assert_eq!(session.status_message, "in a moment");
}
