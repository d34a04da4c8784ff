//! Schedules that are due while many others are not.

use std::time::Instant;

use anyhow::{Context, Result};
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::time::{Duration, sleep};

use super::taker;
use crate::{quantiles::Quantiles, scale::Scale, stage::Stage, table::Table};

/// What the bar is about, and what is asked for once to see how it fares.
const RATE: i64 = 1_000;
const FLOOD: i64 = 100_000;

const SCANS: u32 = 50;

pub async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let mut stage = Stage::with(scale, taker::plan().await?).await?;
    let measured = all(&stage, table).await;
    measured.with_context(|| stage.last_words())
}

async fn all(stage: &Stage, table: &mut Table) -> Result<()> {
    let scale = stage.scale;
    let mut db = stage.database().await?;
    // Far away, and in an order that is not that of their ids.
    let far = "now() + interval '30 days' + (number * 7919 % 86400) * interval '1 second'";
    put(&mut db, 0, scale.dormant, far).await?;
    sqlx::query("vacuum analyze triggers.due").execute(&mut db).await?;
    scan(&mut db, scale, table).await?;

    let seconds = scale.due_seconds;
    let steady = fire(&mut db, 2_000_000, RATE * seconds, seconds).await?;
    let what = format!("lateness at {RATE} firings/s, p50");
    table.note(what, ms(steady.p50));
    let what = format!("lateness at {RATE} firings/s, p99");
    table.at_most(what, steady.p99, 1_000.0, ms);

    let flood = FLOOD * seconds / 60;
    let flooded = fire(&mut db, 4_000_000, flood, seconds).await?;
    table.note(format!("{flood} schedules due within {seconds} s, p50"), ms(flooded.p50));
    table.note(format!("{flood} schedules due within {seconds} s, p99"), ms(flooded.p99));
    table.note("firings of that, per second", format!("{:.0}", flooded.per_second));
    Ok(())
}

/// What it costs to look for what is due.
async fn scan(db: &mut PgConnection, scale: Scale, table: &mut Table) -> Result<()> {
    const LOOK: &str = "select trigger_id from triggers.due where fire_at <= now()
        order by fire_at, trigger_id limit 500 for update skip locked";
    sqlx::query("set plan_cache_mode = force_generic_plan").execute(&mut *db).await?;
    sqlx::query("set enable_seqscan = off").execute(&mut *db).await?;
    let mut latencies = Quantiles::default();
    let mut tx = db.begin().await?;
    for _ in 0..SCANS {
        let begun = Instant::now();
        sqlx::query(LOOK).fetch_all(&mut *tx).await?;
        latencies.push(begun.elapsed());
    }
    let rows = read(&mut tx).await? as f64 / f64::from(SCANS);
    tx.commit().await?;
    let what = format!("rows that a look reads where none of {} is due", scale.dormant);
    // Not none: one row was met once in fifty looks, and nobody knows which.
    table.at_most(what, rows, 0.1, |rows| format!("{rows:.2}"));
    table.note("such a look, p50", ms(latencies.p50()));
    Ok(())
}

/// How many rows this transaction has read to see what is due, and nobody else's.
async fn read(db: &mut PgConnection) -> Result<i64> {
    let read = "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables
        where relid = 'triggers.due'::regclass";
    Ok(sqlx::query_scalar(read).fetch_one(db).await?)
}

struct Fired {
    p50: f64,
    p99: f64,
    per_second: f64,
}

/// Lets so many schedules be due, spread over some seconds, and waits for the last of them.
async fn fire(db: &mut PgConnection, first: i64, count: i64, seconds: i64) -> Result<Fired> {
    // As much ahead as it takes to put them there.
    let lead = 5 + count / 10_000;
    let micros = seconds * 1_000_000 / count;
    let at =
        format!("now() + interval '{lead} seconds' + number * interval '{micros} microseconds'");
    put(db, first, count, &at).await?;
    let done = "select count(*) from triggers.firing where trigger_id between $1 and $2
        and status = 'submitted'";
    loop {
        sleep(Duration::from_millis(500)).await;
        let (from, to) = (id(first), id(first + count));
        let fired: i64 = sqlx::query_scalar(done).bind(from).bind(to).fetch_one(&mut *db).await?;
        if fired >= count {
            break;
        }
    }
    let summary = "select
            percentile_disc(0.5) within group (order by late) as p50,
            percentile_disc(0.99) within group (order by late) as p99,
            count(*) / extract(epoch from max(submitted_at) - min(due_at)) as rate
        from (select *, extract(epoch from submitted_at - due_at)::float8 * 1000 as late
              from triggers.firing where trigger_id between $1 and $2) f";
    let summary = format!("select p50, p99, rate::float8 from ({summary}) s");
    let row = sqlx::query(sqlx::AssertSqlSafe(summary))
        .bind(id(first))
        .bind(id(first + count))
        .fetch_one(db)
        .await?;
    Ok(Fired { p50: row.get(0), p99: row.get(1), per_second: row.get(2) })
}

fn id(number: i64) -> String {
    format!("trg_{number:025}0")
}

/// Puts schedules there that fire once, at the time that `at` says of their number.
async fn put(db: &mut PgConnection, first: i64, count: i64, at: &str) -> Result<()> {
    let definition = r#"{"name": "bench", "kind": {"schedule": {"when": {"at": ""}, "time_zone": "UTC",
        "skipped_hour": "next", "doubled_hour": "first", "misfire": "once", "overlap": "queue",
        "jitter_ms": 0, "start": null, "end": null}}, "target": {"session":
        {"id": "ses_06evr8d2ksw3x4qg9rjc10t5mm"}, "agent": "", "workspace_id": ""},
        "template": "Look.", "max_per_minute": null, "mode": null}"#;
    let put = format!(
        "with new as materialized (
            select 'trg_' || lpad(($1 + number)::text, 25, '0') || '0' as id,
                date_trunc('milliseconds', {at}) as at
            from generate_series(0, $2 - 1) as number
        ), made as (
            insert into triggers.trigger (id, tenant_id, subject, request_id, request_digest, source,
                definition, session_id, created_at, updated_at)
            select id, 'bench', 'bench', id, '', 'schedule',
                jsonb_set($3::jsonb, '{{kind,schedule,when,at}}',
                    to_jsonb(to_char(at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'))),
                'ses_06evr8d2ksw3x4qg9rjc10t5mm', now(), now()
            from new returning id
        )
        insert into triggers.due (trigger_id, fire_at) select n.id, n.at from new n join made using (id)"
    );
    // All at once, so that nothing is due before everything is there.
    let mut tx = db.begin().await?;
    sqlx::query("set local statement_timeout = 0").execute(&mut *tx).await?;
    let put = sqlx::AssertSqlSafe(put);
    sqlx::query(put).bind(first).bind(count).bind(definition).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

fn ms(ms: f64) -> String {
    format!("{ms:.1} ms")
}
