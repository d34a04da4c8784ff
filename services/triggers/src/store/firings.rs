//! The one fire path, as far as it is SQL: what becomes of firings, and who has which.

use std::time::Duration;

use chassis::Tenant;
use jiff::{Timestamp, tz::TimeZone};
use jiff_sqlx::{Date, Timestamp as Time, ToSqlx as _};
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::Result,
    firing::{Candidate, Drop, Pending, Receipt, Route, Status},
    ids::{FiringId, TriggerId},
};

/// Stores firings, in one statement however many they are: those that are new and within throttle
/// and quota become pending, with whoever stores them as the first to deliver them; all others are
/// on record as dropped. Returns what became of each, in the same order.
///
/// A delivery that two replicas receive at once is pending in one of them: the other waits for it
/// at the unique index.
pub async fn record(
    db: impl PgExecutor<'_>,
    candidates: &[Candidate],
    now: Timestamp,
    quota: i64,
    lease: Duration,
) -> Result<Vec<Receipt>> {
    let column = |text: fn(&Candidate) -> String| candidates.iter().map(text).collect::<Vec<_>>();
    let times = |time: fn(&Candidate) -> Timestamp| -> Vec<Time> {
        candidates.iter().map(|candidate| time(candidate).to_sqlx()).collect()
    };
    let envelopes: Vec<Option<&[u8]>> =
        candidates.iter().map(|candidate| candidate.envelope.as_deref()).collect();
    let routes: Vec<Json<&Route>> =
        candidates.iter().map(|candidate| Json(&candidate.route)).collect();
    let missed: Vec<i32> = candidates.iter().map(|candidate| candidate.missed).collect();
    let most: Vec<i32> = candidates.iter().map(|candidate| candidate.max_per_minute).collect();
    let unthrottled: Vec<bool> = candidates.iter().map(|candidate| candidate.unthrottled).collect();
    let minute = Timestamp::from_second(now.as_second().div_euclid(60) * 60).unwrap_or(now);
    let day: Date = TimeZone::UTC.to_datetime(now).date().to_sqlx();
    let rows = sqlx::query!(
        r#"
        with new as materialized (
            select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                $7::timestamptz[], $8::timestamptz[], $9::int[], $10::bytea[], $11::text[], $12::jsonb[],
                $13::int[], $14::bool[], $15::text[])
            with ordinality as n(id, tenant_id, trigger_id, subject, source, delivery_id,
                due_at, fired_at, missed, envelope, payload, route, most, unthrottled, drop_reason, place)
        ), first as (
            select distinct on (n.trigger_id, n.delivery_id)
                n.id, n.tenant_id, n.trigger_id, n.delivery_id, n.most, n.unthrottled, n.place
            from new n where n.drop_reason = '' order by n.trigger_id, n.delivery_id, n.place
        ), fresh as materialized (
            select n.id, n.tenant_id, n.trigger_id, n.most, n.unthrottled, n.place,
                row_number() over (partition by n.trigger_id, n.unthrottled order by n.place) as nth,
                count(*) over (partition by n.trigger_id, n.unthrottled) as together
            from first n
            where not exists (
                select from triggers.firing f
                where f.trigger_id = n.trigger_id and f.delivery_id = n.delivery_id and f.status <> 'dropped')
        ), counted as (
            -- In the order of their keys, so that no two statements wait for each other.
            insert into triggers.throttle as t (trigger_id, minute, count)
            select f.trigger_id, $16, count(*)::int from fresh f
            where not f.unthrottled group by f.trigger_id order by f.trigger_id
            on conflict (trigger_id) do update
            set count = case when t.minute >= excluded.minute then t.count else 0 end + excluded.count,
                minute = greatest(t.minute, excluded.minute)
            returning t.trigger_id, t.count
        ), counts as (
            -- Looked up and not joined: nobody can tell a plan beforehand how many there are, and it
            -- would compare each with each.
            select jsonb_object_agg(c.trigger_id, c.count) as of from counted c
        ), passed as materialized (
            select f.id, f.tenant_id, f.place,
                not f.unthrottled and (c.of ->> f.trigger_id)::bigint - f.together + f.nth > f.most as throttled
            from fresh f cross join counts c
        ), charged as (
            insert into triggers.account as a (tenant_id, day, count)
            select p.tenant_id, $17, count(*) from passed p
            where not p.throttled group by p.tenant_id order by p.tenant_id
            on conflict (tenant_id) do update
            set count = case when a.day >= excluded.day then a.count else 0 end + excluded.count,
                day = greatest(a.day, excluded.day)
            returning a.tenant_id, a.count
        ), charges as (
            select jsonb_object_agg(c.tenant_id, c.count) as of from charged c
        ), paid as (
            select p.id,
                case
                    when p.throttled then 'throttled'
                    when (c.of ->> p.tenant_id)::bigint - sum(1) over (partition by p.tenant_id, p.throttled)
                        + row_number() over (partition by p.tenant_id, p.throttled order by p.place) > $18
                        then 'quota'
                    else ''
                end as drop_reason
            from passed p cross join charges c
        ), judged as materialized (
            select n.id, coalesce(p.drop_reason, nullif(n.drop_reason, ''), 'duplicate') as verdict
            from new n left join paid p using (id)
        ), pending as (
            insert into triggers.firing (id, tenant_id, trigger_id, subject, source, delivery_id, status,
                due_at, fired_at, missed, envelope, payload, route, not_before)
            select n.id, n.tenant_id, n.trigger_id, n.subject, n.source, n.delivery_id, 'pending',
                n.due_at, n.fired_at, n.missed, n.envelope, n.payload, n.route,
                clock_timestamp() + make_interval(secs => $19)
            from new n join judged j using (id) where j.verdict = '' order by n.trigger_id, n.delivery_id
            on conflict (trigger_id, delivery_id) where status <> 'dropped' do nothing
            returning id
        ), dropped as (
            insert into triggers.firing (id, tenant_id, trigger_id, subject, source, delivery_id, status,
                drop_reason, due_at, fired_at, missed, envelope, payload, route)
            select n.id, n.tenant_id, n.trigger_id, n.subject, n.source, n.delivery_id, 'dropped',
                case j.verdict when '' then 'duplicate' else j.verdict end,
                n.due_at, n.fired_at, n.missed, n.envelope, n.payload, n.route
            from new n join judged j using (id) where j.verdict <> '' or j.id not in (select id from pending)
            returning id, drop_reason
        )
        select n.id as "id!: FiringId", d.drop_reason as "drop_reason?: Drop"
        from new n left join dropped d using (id) order by n.place
        "#,
        &column(|candidate| candidate.id.to_string()),
        &column(|candidate| candidate.tenant.to_string()),
        &column(|candidate| candidate.trigger_id.to_string()),
        &column(|candidate| candidate.subject.clone()),
        &column(|candidate| candidate.source.to_string()),
        &column(|candidate| candidate.delivery_id.clone()),
        &times(|candidate| candidate.due_at) as _,
        &times(|candidate| candidate.fired_at) as _,
        &missed,
        &envelopes as _,
        &column(|candidate| candidate.payload.clone()),
        &routes as _,
        &most,
        &unthrottled,
        &column(|candidate| candidate.drop.map(Drop::as_str).unwrap_or_default().to_owned()),
        minute.to_sqlx() as _,
        day as _,
        quota,
        lease.as_secs_f64(),
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| Receipt { id: row.id, drop: row.drop_reason }).collect())
}

/// Takes firings that nobody delivers: their replica died, or they have rested enough. Those of
/// triggers that are `busy` are left to others, and for later.
pub async fn take(
    db: impl PgExecutor<'_>,
    limit: i64,
    lease: Duration,
    busy: &[TriggerId],
) -> Result<Vec<Pending>> {
    let busy: Vec<String> = busy.iter().map(TriggerId::to_string).collect();
    let rows = sqlx::query!(
        r#"
        update triggers.firing f
        set not_before = clock_timestamp() + make_interval(secs => $2)
        where f.id in (
            select id from triggers.firing
            where status = 'pending' and not_before <= clock_timestamp() and trigger_id <> all($3)
            order by not_before limit $1 for update skip locked)
        returning f.id as "id: FiringId", f.tenant_id as "tenant: Tenant",
            f.trigger_id as "trigger_id: TriggerId", f.subject, f.envelope,
            f.route as "route: Json<Route>", f.attempts
        "#,
        limit,
        lease.as_secs_f64(),
        &busy,
    )
    .fetch_all(db)
    .await?;
    let mut pending: Vec<Pending> = rows
        .into_iter()
        .map(|row| Pending {
            id: row.id,
            tenant: row.tenant,
            trigger_id: row.trigger_id,
            subject: row.subject,
            envelope: row.envelope.unwrap_or_default(),
            route: row.route.0,
            attempts: row.attempts,
        })
        .collect();
    pending.sort_by_key(|pending| pending.id);
    Ok(pending)
}

/// A firing that is still to become a turn.
pub async fn pending(db: impl PgExecutor<'_>, id: FiringId) -> Result<Option<Pending>> {
    let row = sqlx::query!(
        r#"
        select tenant_id as "tenant: Tenant", trigger_id as "trigger_id: TriggerId", subject, envelope,
            route as "route: Json<Route>", attempts
        from triggers.firing where id = $1 and status = 'pending'
        "#,
        id as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|row| Pending {
        id,
        tenant: row.tenant,
        trigger_id: row.trigger_id,
        subject: row.subject,
        envelope: row.envelope.unwrap_or_default(),
        route: row.route.0,
        attempts: row.attempts,
    }))
}

/// What became of an attempt to deliver a firing.
#[derive(Debug, Clone)]
pub struct Delivered {
    pub id: FiringId,
    pub outcome: Outcome,
}

#[derive(Debug, Clone)]
pub enum Outcome {
    Submitted {
        session_id: String,
        turn_id: String,
    },
    Dropped {
        reason: Drop,
        session_id: Option<String>,
    },
    /// It is tried again after a rest; `failed` counts the attempt.
    Again {
        rest: Duration,
        failed: bool,
    },
}

/// Puts on record what became of attempts. Only the first word about a firing counts.
pub async fn settle(
    db: impl PgExecutor<'_>,
    delivered: &[Delivered],
    now: Timestamp,
) -> Result<()> {
    let mut statuses = Vec::with_capacity(delivered.len());
    let (mut reasons, mut rests) = (Vec::new(), Vec::new());
    let (mut sessions, mut turns, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for Delivered { outcome, .. } in delivered {
        let (status, reason, rest, session_id, turn_id, attempt) = match outcome {
            Outcome::Submitted { session_id, turn_id } => {
                (Status::Submitted, "", 0.0, Some(session_id.clone()), Some(turn_id.clone()), 1)
            }
            Outcome::Dropped { reason, session_id } => {
                (Status::Dropped, reason.as_str(), 0.0, session_id.clone(), None, 1)
            }
            Outcome::Again { rest, failed } => {
                (Status::Pending, "", rest.as_secs_f64(), None, None, i32::from(*failed))
            }
        };
        statuses.push(status.to_string());
        reasons.push(reason.to_owned());
        rests.push(rest);
        sessions.push(session_id);
        turns.push(turn_id);
        failed.push(attempt);
    }
    let ids: Vec<String> = delivered.iter().map(|delivered| delivered.id.to_string()).collect();
    sqlx::query!(
        r#"
        update triggers.firing f
        set status = d.status, drop_reason = d.drop_reason, session_id = d.session_id, turn_id = d.turn_id,
            attempts = f.attempts + d.attempts,
            not_before = clock_timestamp() + make_interval(secs => d.rest),
            submitted_at = case d.status when 'submitted' then $8::timestamptz end
        from unnest($1::text[], $2::text[], $3::text[], $4::float8[], $5::text[], $6::text[], $7::int[])
            as d(id, status, drop_reason, rest, session_id, turn_id, attempts)
        where f.id = d.id and f.status = 'pending'
        "#,
        &ids,
        &statuses,
        &reasons,
        &rests,
        &sessions as _,
        &turns as _,
        &failed,
        now.to_sqlx() as _,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// The firing of the same trigger before this one that was not dropped: its status, session and turn.
pub async fn previous(
    db: impl PgExecutor<'_>,
    trigger_id: TriggerId,
    id: FiringId,
) -> Result<Option<(Status, String, String)>> {
    let row = sqlx::query!(
        r#"
        select status as "status: Status", session_id, turn_id from triggers.firing
        where trigger_id = $1 and id < $2 and status <> 'dropped'
        order by id desc limit 1
        "#,
        trigger_id as _,
        id as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|row| {
        (row.status, row.session_id.unwrap_or_default(), row.turn_id.unwrap_or_default())
    }))
}
