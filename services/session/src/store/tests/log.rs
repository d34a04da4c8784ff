//! What becomes of a log: seals, retention, channels.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use sqlx::PgPool;

use crate::{
    error::Error,
    ids::{MessageId, SessionId},
    keeper,
    message::Part,
    pending::Owner,
    seal::{Seal, digest},
    store::{
        channels::{self, Connection, NewConnection, Start},
        events,
        messages::{self, Window},
        replicas, seals, sessions,
    },
    testing::{World, completed, delta, pending, stamp, started, step},
    time,
    turn::Ending,
};

/// Runs a turn that says these words, each in a flush of its own.
async fn a_turn(world: &World, id: SessionId, request: &str, words: &[&str]) {
    world.submit(id, request).await;
    let claim = world.claim(id).await;
    let mut owner = Owner::from(&claim);
    let message_id = MessageId::new();
    let rows = pending(|pending, now| {
        pending.append(started(), now);
    });
    world.flush(&owner, &rows).await.unwrap();
    for word in words {
        owner.flush_no += 1;
        let rows = pending(|pending, now| {
            pending.append(delta(message_id, word), now);
        });
        world.flush(&owner, &rows).await.unwrap();
    }
    owner.flush_no += 1;
    let view = proto::session::v1::TurnView { status: "completed".into(), ..Default::default() };
    let rows = pending(|pending, now| {
        pending.save_message(claim.turn_id, &step(message_id, &words.concat()), now);
        pending.append(completed(), now);
        pending.save_turn(claim.turn_id, &view);
        pending.end(Ending::Completed);
    });
    world.flush(&owner, &rows).await.unwrap();
}

/// A moment from which everything is old.
fn later() -> Timestamp {
    time::now() + SignedDuration::from_hours(1)
}

/// Checks the whole chain, as `VerifyLog` does; returns how many events were joined away.
async fn verify(world: &World, id: SessionId) -> Result<i64, i64> {
    let first = seals::first_sequence(&world.db, id).await.unwrap();
    let (mut before, mut joined): (Option<Seal>, i64) = (None, 0);
    for seal in seals::after(&world.db, id, 0, 1000).await.unwrap() {
        let (after, through) = (seal.first_sequence - 1, seal.through_sequence);
        let rows = events::rows(&world.db, id, after, through, 10_000, i64::MAX).await.unwrap();
        let found: Vec<_> = rows
            .into_iter()
            .map(|row| (row.seq, digest(row.into_envelope().unwrap().get()).unwrap()))
            .collect();
        joined += seal.check(before.as_ref(), &found, first).map_err(|broken| broken.sequence)?;
        before = Some(seal);
    }
    Ok(joined)
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn sealing_at_once_makes_one_chain(db: PgPool) {
    let world = Arc::new(World::new(db).await);
    let id = world.session().await;
    for turn in 0..5 {
        a_turn(&world, id, &format!("turn-{turn}"), &["one ", "two"]).await;
        let sealing = (0..4).map(|_| {
            let world = world.clone();
            tokio::spawn(async move { keeper::seal_session(&world.db, id).await.unwrap() })
        });
        for sealed in sealing.collect::<Vec<_>>() {
            sealed.await.unwrap();
        }
    }
    assert_eq!(seals::unsealed(&world.db, 10).await.unwrap(), []);
    let chain = seals::after(&world.db, id, 0, 100).await.unwrap();
    assert_eq!(chain.iter().map(|seal| seal.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let last = sessions::get(&world.db, &world.tenant, id).await.unwrap().last_sequence;
    assert_eq!(chain.last().unwrap().through_sequence, last);
    assert_eq!(verify(&world, id).await, Ok(0));

    sqlx::query("update session.event set payload = payload || '{\"text\": \"ona \"}' where session_id = $1 and seq = 5")
        .bind(id)
        .execute(&world.db)
        .await
        .unwrap();
    assert_eq!(verify(&world, id).await, Err(5));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn joined_deltas_say_the_same_and_cursors_between_them_expire(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    // 1 created, 2 thread, 3 submitted, 4 started, 5 to 7 deltas, 8 completed.
    a_turn(&world, id, "turn", &["one ", "two ", "three"]).await;
    keeper::seal_session(&world.db, id).await.unwrap();
    keeper::join(&world.db, later()).await.unwrap();
    keeper::join(&world.db, later()).await.unwrap();

    let left = events::after(&world.db, id, 0, 100).await.unwrap();
    let places: Vec<_> =
        left.iter().map(|event| (events::first_of(event), event.sequence)).collect();
    assert_eq!(places, [(1, 1), (2, 2), (3, 3), (4, 4), (5, 7), (8, 8)]);
    assert!(world.log(id).await.contains("7 model.delta one two three\n"));
    assert_eq!(verify(&world, id).await, Ok(2));

    for (after, gap) in [(0, None), (4, None), (5, Some(7)), (6, Some(7)), (7, None), (8, None)] {
        assert_eq!(events::gap_after(&world.db, id, after, 8).await.unwrap(), gap, "{after}");
    }
    sqlx::query("update session.event set payload = payload || '{\"text\": \"other\"}' where session_id = $1 and seq = 7")
        .bind(id)
        .execute(&world.db)
        .await
        .unwrap();
    assert_eq!(verify(&world, id).await, Err(7));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn old_logs_are_cut_where_a_turn_ended(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    a_turn(&world, id, "turn-1", &["one"]).await;
    keeper::seal_session(&world.db, id).await.unwrap();
    let between = time::now();
    a_turn(&world, id, "turn-2", &["two"]).await;
    keeper::seal_session(&world.db, id).await.unwrap();
    let last = sessions::get(&world.db, &world.tenant, id).await.unwrap().last_sequence;

    keeper::expire(&world.db, between).await.unwrap();
    assert_eq!(seals::first_sequence(&world.db, id).await.unwrap(), 7);
    assert_eq!(events::after(&world.db, id, 0, 100).await.unwrap()[0].sequence, 7);
    assert_eq!(verify(&world, id).await, Ok(0));
    assert_eq!(events::gap_after(&world.db, id, 5, last).await.unwrap(), Some(7));
    assert_eq!(events::gap_after(&world.db, id, 6, last).await.unwrap(), None);

    keeper::expire(&world.db, later()).await.unwrap();
    assert_eq!(events::after(&world.db, id, 0, 100).await.unwrap(), []);
    assert_eq!(events::gap_after(&world.db, id, 5, last).await.unwrap(), Some(last + 1));
    assert_eq!(events::gap_after(&world.db, id, last, last).await.unwrap(), None);
    // The next turn's seal follows from what was removed.
    a_turn(&world, id, "turn-3", &["three"]).await;
    keeper::seal_session(&world.db, id).await.unwrap();
    assert_eq!(verify(&world, id).await, Ok(0));
    // What somebody removes who is not policy is missed.
    sqlx::query("delete from session.event where session_id = $1 and seq = $2")
        .bind(id)
        .bind(last + 2)
        .execute(&world.db)
        .await
        .unwrap();
    assert_eq!(verify(&world, id).await, Err(last + 2));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_log_without_gaps_is_told_from_one_with(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    a_turn(&world, id, "turn", &["one"]).await;
    assert_eq!(seals::missing(&world.db, id, 0, 6).await.unwrap(), None);
    assert_eq!(seals::missing(&world.db, id, 0, 7).await.unwrap(), Some(7));
    sqlx::query("delete from session.event where session_id = $1 and seq = 4")
        .bind(id)
        .execute(&world.db)
        .await
        .unwrap();
    assert_eq!(seals::missing(&world.db, id, 0, 6).await.unwrap(), Some(4));
    assert_eq!(seals::missing(&world.db, id, 4, 6).await.unwrap(), None);
}

async fn connect(world: &World, id: SessionId, start: Start) -> Result<(Connection, i64), Error> {
    let new = NewConnection {
        tenant: &world.tenant,
        session_id: id,
        name: "phone",
        subject: "alice",
        client: "test",
        start,
    };
    let stamp = stamp(world.replica);
    let (connection, after, events) =
        channels::connect(&world.db, new, world.replica, &stamp).await?;
    assert!(events.iter().all(|event| event.channel_id.starts_with("chn_")));
    Ok((connection, after))
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_channel_belongs_to_one_reader_and_remembers_what_arrived(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    let stamp = stamp(world.replica);
    let (first, after) = connect(&world, id, Start::Acknowledged).await.unwrap();
    assert_eq!(after, 0);
    let acknowledge =
        |sequence| channels::acknowledge(&world.db, &world.tenant, id, "phone", sequence);
    assert_eq!(acknowledge(3).await.unwrap(), 3);
    assert_eq!(acknowledge(2).await.unwrap(), 3);
    assert!(matches!(acknowledge(4).await, Err(Error::CursorAhead { last: 3, .. })));

    // Another one takes the name; the first has nothing to say any more.
    let (second, after) = connect(&world, id, Start::Acknowledged).await.unwrap();
    assert_eq!(after, 3);
    let events = channels::disconnect(&world.db, &first, "closed", &stamp).await.unwrap();
    assert_eq!(events, []);
    let events = channels::disconnect(&world.db, &second, "closed", &stamp).await.unwrap();
    assert_eq!(events.len(), 1);
    assert!(matches!(
        connect(&world, id, Start::After(100)).await,
        Err(Error::CursorAhead { after: 100, last: 6, .. })
    ));

    // A replica that dies leaves its readers to whoever looks.
    connect(&world, id, Start::Live).await.unwrap();
    assert!(channels::lost(&world.db, 10).await.unwrap().is_empty());
    replicas::leave(&world.db, world.replica).await.unwrap();
    let lost = channels::lost(&world.db, 10).await.unwrap();
    assert_eq!(lost.len(), 1);
    channels::disconnect(&world.db, &lost[0], "lost", &stamp).await.unwrap();
    assert!(channels::lost(&world.db, 10).await.unwrap().is_empty());

    let types: Vec<String> = sqlx::query_scalar(
        "select concat_ws(' ', seq, type, payload ->> 'reason', payload ->> 'afterSequence')
         from session.event where session_id = $1 and seq > 2 order by seq",
    )
    .bind(id)
    .fetch_all(&world.db)
    .await
    .unwrap();
    assert_eq!(
        types,
        [
            "3 channel.connected 0",
            "4 channel.disconnected lost",
            "5 channel.resumed 3",
            "6 channel.disconnected closed",
            "7 channel.resumed 6",
            "8 channel.disconnected lost",
        ]
    );
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn reads_end_where_they_get_too_large_and_go_on_from_there(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    for number in 0..5 {
        let text = format!("{number}{}", "x".repeat(100_000));
        let name = format!("request-{number}");
        world
            .try_submit(id, &name, &name, |new| {
                new.parts = vec![Part::text(text)];
                new.queue_limit = 10;
            })
            .await
            .unwrap();
    }
    let mut db = world.db.acquire().await.unwrap();
    for (bytes, limit, pages) in [
        (1, 10, vec![1, 1, 1, 1]),
        (150_000, 10, vec![2, 2]),
        (1 << 20, 3, vec![3, 1]),
        (1 << 20, 10, vec![4]),
    ] {
        let (mut after, mut queued) = (i64::MIN, Vec::new());
        for (index, size) in pages.iter().enumerate() {
            let window = Window::Queued(after, limit);
            let (page, more) = messages::page(&mut db, id, window, false, bytes).await.unwrap();
            assert_eq!((page.len(), more), (*size, index + 1 < pages.len()));
            after = page.last().unwrap().queue_rank.unwrap();
            queued.extend(page.into_iter().map(|message| message.id));
        }
        queued.dedup();
        assert_eq!(queued.len(), 4);
    }

    sqlx::query(
        "update session.chat_messages set position = queue_rank, queue_rank = null, metadata_json = '{}'
         where session_id = $1 and queue_rank is not null",
    )
    .bind(id)
    .execute(&world.db)
    .await
    .unwrap();
    for (bytes, limit, each) in [(1, 3, 1), (150_000, 3, 2), (1 << 20, 3, 3), (1 << 20, 5, 5)] {
        let (mut before, mut after) = (i64::MAX, i64::MIN);
        let (mut back, mut forth) = (Vec::new(), Vec::new());
        loop {
            let window = Window::Before(before, limit);
            let (page, more) = messages::page(&mut db, id, window, false, bytes).await.unwrap();
            assert!(page.len() == each || !more, "{} of {each}", page.len());
            before = page[0].position.unwrap();
            back.splice(..0, page.iter().map(|message| message.id));
            if !more {
                break;
            }
        }
        loop {
            let window = Window::After(after, limit);
            let (page, more) = messages::page(&mut db, id, window, false, bytes).await.unwrap();
            after = page.last().unwrap().position.unwrap();
            forth.extend(page.iter().map(|message| message.id));
            if !more {
                break;
            }
        }
        assert_eq!(back.len(), 5);
        assert_eq!(back, forth);
    }
    let rows = events::rows(&world.db, id, 0, i64::MAX, 100, 1).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), [1]);
    let rows = events::rows(&world.db, id, 1, i64::MAX, 2, i64::MAX).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), [2, 3]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_whose_owner_is_dead_is_known_to_be_stale(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    assert!(!replicas::owner_is_dead(&world.db, claim.session_id).await.unwrap());
    replicas::leave(&world.db, world.replica).await.unwrap();
    assert!(replicas::owner_is_dead(&world.db, claim.session_id).await.unwrap());
}
