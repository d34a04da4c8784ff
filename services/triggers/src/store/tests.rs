mod wakeups;

use std::time::Duration;

use chassis::Tenant;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::{
    due,
    firings::{self, Delivered, Outcome},
    history, tenants, triggers,
    triggers::{Created, NewTrigger},
};
use crate::{
    firing::{Candidate, Drop, Occasion, Receipt, Status},
    ids::{FiringId, TriggerId},
    schedule::{Doubled, Misfire, Overlap, Schedule, Skipped, When},
    trigger::{Definition, Kind, Source, Status as TriggerStatus, Target, TargetSession, Trigger},
};

const LEASE: Duration = Duration::from_secs(60);
const SESSION: &str = "ses_06evr8d2ksw3x4qg9rjc10t5mm";

pub fn tenant() -> Tenant {
    "acme".parse().unwrap()
}

pub fn now() -> Timestamp {
    "2026-01-01T00:00:30Z".parse().unwrap()
}

pub fn trigger(source: Source) -> Trigger {
    Trigger {
        id: TriggerId::new(),
        tenant: tenant(),
        subject: "ann".into(),
        source,
        definition: Definition {
            name: "a trigger".into(),
            kind: Kind::Schedule(Schedule {
                when: When::IntervalMs(60_000),
                time_zone: "UTC".into(),
                skipped_hour: Skipped::Next,
                doubled_hour: Doubled::First,
                misfire: Misfire::Once,
                overlap: Overlap::Queue,
                jitter_ms: 0,
                start: None,
                end: None,
            }),
            target: Target {
                session: TargetSession::Id(SESSION.into()),
                agent: String::new(),
                workspace_id: String::new(),
            },
            template: "Look at {{ payload.what }}.".into(),
            max_per_minute: Some(3),
            mode: None,
        },
        status: TriggerStatus::Active,
        created_at: now(),
        expires_at: None,
    }
}

pub async fn put(db: &PgPool, trigger: &Trigger, fire_at: Timestamp) {
    let request_id = trigger.id.to_string();
    let due = Some(crate::schedule::Due { at: fire_at, last: false });
    let new = NewTrigger { trigger, request_id: &request_id, request_digest: "digest", due };
    let mut connection = db.acquire().await.unwrap();
    assert_eq!(triggers::create(&mut connection, &new).await.unwrap(), Created::Now);
}

pub fn candidate(trigger: &Trigger, delivery_id: &str, at: Timestamp) -> Candidate {
    let occasion = Occasion::now(at, delivery_id, json!({ "what": "this" }));
    Candidate::new(trigger, FiringId::at(at), occasion, 60)
}

pub async fn record(db: &PgPool, candidates: &[Candidate], at: Timestamp) -> Vec<Option<Drop>> {
    let receipts = firings::record(db, candidates, at, 10, LEASE).await.unwrap();
    let ids: Vec<FiringId> = candidates.iter().map(|candidate| candidate.id).collect();
    assert_eq!(receipts.iter().map(|receipt| receipt.id).collect::<Vec<_>>(), ids);
    receipts.into_iter().map(|Receipt { drop, .. }| drop).collect()
}

async fn drops(db: &PgPool) -> Vec<String> {
    let listed = history::list(db, &tenant(), None, None, 100).await.unwrap();
    let mut drops: Vec<String> = listed.into_iter().map(|firing| firing.drop_reason).collect();
    drops.sort();
    drops
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_delivery_is_pending_once_and_duplicates_are_on_record(db: PgPool) {
    let trigger = trigger(Source::Webhook);
    let one = |id| candidate(&trigger, id, now());
    // In one batch, and in two that know nothing of each other.
    assert_eq!(record(&db, &[one("a"), one("a")], now()).await, [None, Some(Drop::Duplicate)]);
    let (first, second) = ([one("b")], [one("b")]);
    let (left, right) = tokio::join!(record(&db, &first, now()), record(&db, &second, now()));
    let mut both = [left[0], right[0]];
    both.sort_by_key(Option::is_some);
    assert_eq!(both, [None, Some(Drop::Duplicate)]);
    assert_eq!(drops(&db).await, ["", "", "duplicate", "duplicate"]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_minute_and_a_day_have_room_for_so_many(db: PgPool) {
    let trigger = trigger(Source::Webhook);
    let at = |minutes| now() + SignedDuration::from_mins(minutes);
    let some = |minutes: i64, count: usize| -> Vec<Candidate> {
        let one = |number| candidate(&trigger, &format!("{minutes}-{number}"), at(minutes));
        (0..count).map(one).collect()
    };
    let throttled = Some(Drop::Throttled);
    assert_eq!(record(&db, &some(0, 2), at(0)).await, [None, None]);
    let mut more = some(0, 5);
    more.drain(..2);
    assert_eq!(record(&db, &more, at(0)).await, [None, throttled, throttled]);
    // What something else bounds is not throttled, and still counts for the day.
    let unthrottled = Candidate { unthrottled: true, ..candidate(&trigger, "late", at(0)) };
    assert_eq!(record(&db, &[unthrottled], at(0)).await, [None]);
    for minutes in 1..3 {
        assert_eq!(record(&db, &some(minutes, 3), at(minutes)).await, [None; 3]);
    }
    // Ten a day: the last minute has none left.
    assert_eq!(record(&db, &some(3, 1), at(3)).await, [Some(Drop::Quota)]);
    let day = SignedDuration::from_hours(24).as_mins();
    assert_eq!(record(&db, &some(day, 1), at(day)).await, [None]);
    // A clock that is behind does not begin the minute again.
    assert_eq!(record(&db, &some(day - 1, 2), at(day - 1)).await, [None, None]);
    let behind = [candidate(&trigger, "behind", at(day - 1))];
    assert_eq!(record(&db, &behind, at(day - 1)).await, [throttled]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_was_dropped_may_come_again(db: PgPool) {
    let trigger = trigger(Source::Webhook);
    let filtered = Candidate { drop: Some(Drop::Filtered), ..candidate(&trigger, "a", now()) };
    assert_eq!(record(&db, &[filtered], now()).await, [Some(Drop::Filtered)]);
    assert_eq!(record(&db, &[candidate(&trigger, "a", now())], now()).await, [None]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_message_that_cannot_be_made_is_a_drop_that_keeps_its_payload(db: PgPool) {
    let trigger = trigger(Source::Webhook);
    let occasion = Occasion::now(now(), "a", json!({ "other": "\0" }));
    let broken = Candidate::new(&trigger, FiringId::at(now()), occasion, 60);
    let id = broken.id;
    assert_eq!(record(&db, &[broken], now()).await, [Some(Drop::Template)]);
    let (recorded, payload, envelope) = history::get(&db, &tenant(), id).await.unwrap();
    assert_eq!((recorded.status, envelope), (Status::Dropped, None));
    let payload: Value = serde_json::from_str(&payload).unwrap();
    assert_eq!(payload, json!({ "other": "\u{fffd}" }));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_nobody_delivers_is_taken_after_the_lease(db: PgPool) {
    let trigger = trigger(Source::Webhook);
    let candidate = candidate(&trigger, "a", now());
    let id = candidate.id;
    let short = Duration::ZERO;
    firings::record(&db, std::slice::from_ref(&candidate), now(), 10, LEASE).await.unwrap();
    assert!(firings::take(&db, 10, LEASE, &[]).await.unwrap().is_empty(), "it is being delivered");
    sqlx::query("update triggers.firing set not_before = '-infinity'").execute(&db).await.unwrap();
    let busy = firings::take(&db, 10, short, &[trigger.id]).await.unwrap();
    assert!(busy.is_empty(), "enough of this trigger waits here");
    let taken = firings::take(&db, 10, short, &[]).await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!(Some(&taken[0].envelope), candidate.envelope.as_ref(), "other bytes");
    assert_eq!(firings::take(&db, 10, LEASE, &[]).await.unwrap().len(), 1, "the lease was over");

    let read = firings::pending(&db, id).await.unwrap().unwrap();
    assert_eq!((&read.envelope, read.trigger_id), (&taken[0].envelope, trigger.id));

    let settle = |outcome| {
        let delivered = [Delivered { id, outcome }];
        let db = &db;
        async move { firings::settle(db, &delivered, now()).await.unwrap() }
    };
    settle(Outcome::Again { rest: short, failed: true }).await;
    assert_eq!(firings::take(&db, 10, short, &[]).await.unwrap()[0].attempts, 1);
    let turn_id = "turn_1".to_owned();
    settle(Outcome::Submitted { session_id: SESSION.into(), turn_id }).await;
    // The first word counts.
    settle(Outcome::Dropped { reason: Drop::QueueFull, session_id: None }).await;
    let (recorded, ..) = history::get(&db, &tenant(), id).await.unwrap();
    assert_eq!((recorded.status, recorded.turn_id.as_deref()), (Status::Submitted, Some("turn_1")));
    assert!(firings::take(&db, 10, LEASE, &[]).await.unwrap().is_empty());
    assert!(firings::pending(&db, id).await.unwrap().is_none(), "it is a turn already");
    let stats = history::stats(&db, &tenant(), Some(trigger.id)).await.unwrap();
    assert_eq!((stats.fired, stats.pending, stats.dropped.len()), (1, 0, 0));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_is_due_is_for_one_and_stays_due_if_that_one_dies(db: PgPool) {
    let (one, other) = (trigger(Source::Schedule), trigger(Source::Schedule));
    put(&db, &one, now()).await;
    put(&db, &other, now() + SignedDuration::from_mins(1)).await;
    let later = now() + SignedDuration::from_mins(2);
    let ids = |found: Vec<due::DueTrigger>| -> Vec<TriggerId> {
        found.into_iter().map(|due| due.trigger.id).collect()
    };
    let mut first = db.begin().await.unwrap();
    assert_eq!(ids(due::claim(&mut first, now(), 10).await.unwrap()), [one.id]);
    let mut second = db.begin().await.unwrap();
    assert_eq!(ids(due::claim(&mut second, later, 10).await.unwrap()), [other.id]);
    first.rollback().await.unwrap();
    second.rollback().await.unwrap();

    let mut third = db.begin().await.unwrap();
    assert_eq!(ids(due::claim(&mut third, later, 10).await.unwrap()), [one.id, other.id]);
    let next = [(one.id, Ok(later)), (other.id, Err(TriggerStatus::Finished))];
    due::advance(&mut *third, &next, later).await.unwrap();
    third.commit().await.unwrap();
    assert_eq!(due::next(&db).await.unwrap(), Some(later));
    let shown = triggers::get(&db, &tenant(), other.id).await.unwrap();
    assert_eq!((shown.trigger.status, shown.next_fire), (TriggerStatus::Finished, None));
}

/// With many schedules, a look costs what is due.
#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_look_reads_what_is_due_and_nothing_else(db: PgPool) {
    let template = trigger(Source::Schedule);
    put(&db, &template, now()).await;
    let fill = "with new as (
            insert into triggers.trigger (id, tenant_id, subject, request_id, request_digest, source,
                definition, session_id, created_at, updated_at)
            select 'trg_' || lpad(number::text, 25, '0') || '0', t.tenant_id, t.subject, number::text, '', t.source,
                t.definition, t.session_id, t.created_at, t.updated_at
            from triggers.trigger t, generate_series(1, 20000) as number
            returning id
        )
        insert into triggers.due (trigger_id, fire_at)
        select id, $1::text::timestamptz + row_number() over () * interval '1 second' from new";
    let far = now() + SignedDuration::from_hours(1);
    sqlx::query(fill).bind(far.to_string()).execute(&db).await.unwrap();
    sqlx::query("vacuum analyze triggers.due").execute(&db).await.unwrap();
    let mut one = db.acquire().await.unwrap();
    let settings = "set enable_seqscan = off; set plan_cache_mode = force_generic_plan";
    sqlx::raw_sql(settings).execute(&mut *one).await.unwrap();
    let read = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'due_fire_at'";
    let mut reads = Vec::new();
    for at in [now() - SignedDuration::from_secs(1), now(), far + SignedDuration::from_secs(5)] {
        let count = async |one: &mut sqlx::PgConnection| -> i64 {
            sqlx::query("select pg_stat_force_next_flush()").execute(&mut *one).await.unwrap();
            sqlx::query("select pg_stat_clear_snapshot()").execute(&mut *one).await.unwrap();
            sqlx::query_scalar(read).fetch_one(one).await.unwrap()
        };
        let before = count(&mut one).await;
        let found = due::claim(&mut one, at, 500).await.unwrap().len();
        reads.push((found, count(&mut one).await - before));
    }
    assert_eq!(reads, [(0, 0), (1, 1), (6, 6)]);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn triggers_of_a_tenant_are_counted_and_wakeups_are_not(db: PgPool) {
    let mut other = trigger(Source::Schedule);
    other.tenant = "beta".parse().unwrap();
    let mut over = trigger(Source::Schedule);
    over.status = TriggerStatus::Finished;
    for trigger in [&trigger(Source::Webhook), &trigger(Source::SelfSchedule), &over, &other] {
        put(&db, trigger, now()).await;
    }
    let mut connection = db.acquire().await.unwrap();
    assert_eq!(tenants::triggers(&mut connection, &tenant()).await.unwrap(), 2);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn old_firings_are_forgotten_and_pending_ones_are_not(db: PgPool) {
    let trigger = trigger(Source::Webhook);
    let old = now() - SignedDuration::from_hours(48);
    let dropped = Candidate { drop: Some(Drop::Filtered), ..candidate(&trigger, "a", old) };
    let waiting = candidate(&trigger, "b", old);
    let fresh = Candidate { drop: Some(Drop::Filtered), ..candidate(&trigger, "c", now()) };
    let kept = [fresh.id, waiting.id];
    record(&db, &[dropped, waiting, fresh], now()).await;
    let before = now() - SignedDuration::from_hours(24);
    assert!(!history::forget(&db, before).await.unwrap());
    let listed = history::list(&db, &tenant(), None, None, 10).await.unwrap();
    assert_eq!(listed.into_iter().map(|firing| firing.id).collect::<Vec<_>>(), kept);
}
