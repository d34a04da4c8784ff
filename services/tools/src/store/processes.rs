use std::time::Duration;

use chassis::Tenant;
use jiff_sqlx::{Timestamp, ToSqlx as _};
use proto::event::v1::Event;
use serde::{Deserialize, Serialize};
use sqlx::{PgExecutor, types::Json};

use crate::{
    call::{HostId, ProcessId, SessionId, WorkspaceId},
    error::{Error, Result},
    store::facts,
};

/// A process as it is known, also after it and its host are gone.
#[derive(Debug, Clone)]
pub struct Row {
    pub process_id: ProcessId,
    pub session_id: SessionId,
    pub workspace_id: WorkspaceId,
    pub command: String,
    pub pty: bool,
    pub host_id: HostId,
    pub status: String,
    pub exit_code: i32,
    pub signal: String,
    pub reason: String,
    pub output_bytes: i64,
    pub kept_bytes: i64,
    pub output_ref: String,
    pub streams: Json<Vec<Stretch>>,
    pub number: i64,
    pub start_time: Timestamp,
    pub end_time: Option<Timestamp>,
}

/// From this offset on the output is of this stream, until the next stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch(pub u64, pub Stream);

/// Where output comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
    Pty,
    /// The streams took turns too often to tell.
    Mixed,
}

impl Row {
    pub fn is_running(&self) -> bool {
        self.status == "running"
    }
}

/// Which process of whom. Processes are found by tenant and id, and locked by session.
#[derive(Debug, Clone)]
pub struct Key {
    pub tenant: Tenant,
    pub session_id: SessionId,
    pub process_id: ProcessId,
    pub host_id: HostId,
}

#[derive(Debug)]
pub struct NewProcess<'a> {
    pub key: &'a Key,
    pub workspace_id: WorkspaceId,
    pub request_id: &'a str,
    pub request_digest: &'a str,
    pub command: &'a str,
    pub pty: bool,
}

/// What became of a request to start one.
#[derive(Debug)]
pub enum Admitted {
    New,
    /// The same request started this one before.
    Repeated(ProcessId),
}

/// How many may run at once.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    pub per_session: i64,
    pub per_tenant: i64,
}

/// How a process ended.
#[derive(Debug, Clone, Default)]
pub struct End {
    pub status: &'static str,
    pub exit_code: i32,
    pub signal: String,
    pub reason: String,
    pub output_bytes: i64,
    pub kept_bytes: i64,
    pub output_ref: String,
    pub streams: Vec<Stretch>,
}

/// Notes that a process is about to be started, unless it may not be.
pub async fn start(db: impl PgExecutor<'_>, new: &NewProcess<'_>, most: Most) -> Result<Admitted> {
    let key = new.key;
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", process_id as "process_id: ProcessId"
        from tools.start_process($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        "#,
        key.tenant.as_str(),
        key.session_id as _,
        key.process_id as _,
        new.workspace_id as _,
        new.request_id,
        new.request_digest,
        new.command,
        new.pty,
        key.host_id as _,
        most.per_session,
        most.per_tenant,
    )
    .fetch_one(db)
    .await?;
    match (row.outcome.as_str(), row.process_id) {
        ("started", _) => Ok(Admitted::New),
        ("repeated", Some(id)) => Ok(Admitted::Repeated(id)),
        ("reused", _) => Err(Error::RequestIdReused(new.request_id.to_owned())),
        ("session_full", _) => {
            Err(Error::ProcessLimit { scope: "session", limit: most.per_session })
        }
        ("tenant_full", _) => Err(Error::ProcessLimit { scope: "tenant", limit: most.per_tenant }),
        _ => Err(Error::SessionNotFound(key.session_id)),
    }
}

/// Puts on record what happens to a process. False: it is not ours to speak for any more.
pub async fn note(
    db: impl PgExecutor<'_>,
    key: &Key,
    output_bytes: i64,
    events: &[Event],
) -> Result<bool> {
    let ours = sqlx::query_scalar!(
        r#"select tools.note_process($1, $2, $3, $4, $5, $6) as "ours!""#,
        key.tenant.as_str(),
        key.session_id as _,
        key.process_id as _,
        key.host_id as _,
        output_bytes,
        &facts::encode(events),
    )
    .fetch_one(db)
    .await?;
    Ok(ours)
}

/// Says how a process ended. False: somebody else has said so before.
pub async fn end(db: impl PgExecutor<'_>, key: &Key, end: &End, events: &[Event]) -> Result<bool> {
    let ended = sqlx::query_scalar!(
        r#"
        select tools.end_process($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) as "ended!"
        "#,
        key.tenant.as_str(),
        key.session_id as _,
        key.process_id as _,
        key.host_id as _,
        end.status,
        end.exit_code,
        end.signal,
        end.reason,
        end.output_bytes,
        end.kept_bytes,
        end.output_ref,
        Json(&end.streams) as _,
        &facts::encode(events),
    )
    .fetch_one(db)
    .await?;
    Ok(ended)
}

pub async fn get(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    process_id: ProcessId,
) -> Result<Option<Row>> {
    let row = sqlx::query_as!(
        Row,
        r#"
        select process_id as "process_id: _", session_id as "session_id: _",
               workspace_id as "workspace_id: _", command, pty, host_id as "host_id: _", status,
               exit_code, signal, reason, output_bytes, kept_bytes, output_ref,
               streams as "streams: _", number, start_time as "start_time: _",
               end_time as "end_time: _"
        from tools.process
        where tenant_id = $1 and process_id = $2
        "#,
        tenant.as_str(),
        process_id as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(row)
}

pub async fn workspace_of(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    process_id: ProcessId,
) -> Result<Option<WorkspaceId>> {
    let id = sqlx::query_scalar!(
        r#"
        select workspace_id as "workspace_id: _" from tools.process
        where tenant_id = $1 and process_id = $2
        "#,
        tenant.as_str(),
        process_id as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(id)
}

/// A session's processes that were started before the one with this number, newest first.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    before: i64,
    limit: i64,
) -> Result<Vec<Row>> {
    let rows = sqlx::query_as!(
        Row,
        r#"
        select process_id as "process_id: _", session_id as "session_id: _",
               workspace_id as "workspace_id: _", command, pty, host_id as "host_id: _", status,
               exit_code, signal, reason, output_bytes, kept_bytes, output_ref,
               streams as "streams: _", number, start_time as "start_time: _",
               end_time as "end_time: _"
        from tools.process
        where tenant_id = $1 and session_id = $2 and number < $3
        order by number desc
        limit $4
        "#,
        tenant.as_str(),
        session_id as _,
        before,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(rows)
}

/// Asks whoever runs a process to end it.
pub async fn stop(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    process_id: ProcessId,
    reason: &str,
) -> Result<()> {
    sqlx::query!(
        "update tools.process set stop_reason = coalesce(stop_reason, $3)
         where tenant_id = $1 and process_id = $2 and status = 'running'",
        tenant.as_str(),
        process_id as _,
        reason,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Asks for the end of everything that runs in a workspace.
pub async fn stop_workspace(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    workspace_id: WorkspaceId,
    reason: &str,
) -> Result<()> {
    sqlx::query!(
        "update tools.process set stop_reason = coalesce(stop_reason, $3)
         where tenant_id = $1 and workspace_id = $2 and status = 'running'",
        tenant.as_str(),
        workspace_id as _,
        reason,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// How many processes of a workspace run.
pub async fn running_in(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    workspace_id: WorkspaceId,
) -> Result<i64> {
    let running = sqlx::query_scalar!(
        r#"select count(*) as "running!" from tools.process
           where tenant_id = $1 and workspace_id = $2 and status = 'running'"#,
        tenant.as_str(),
        workspace_id as _,
    )
    .fetch_one(db)
    .await?;
    Ok(running)
}

/// A session is over for good.
pub async fn end_session(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
) -> Result<()> {
    sqlx::query!("select tools.end_session($1, $2)", tenant.as_str(), session_id as _)
        .execute(db)
        .await?;
    Ok(())
}

/// Shows that a host lives, for as long as `lease`.
pub async fn beat(db: impl PgExecutor<'_>, host_id: HostId, lease: Duration) -> Result<()> {
    sqlx::query!(
        "insert into tools.process_host (id, alive_until)
         values ($1, now() + make_interval(secs => $2))
         on conflict (id) do update set alive_until = excluded.alive_until",
        host_id as _,
        lease.as_secs_f64(),
    )
    .execute(db)
    .await?;
    Ok(())
}

/// A host says that it is about to be gone.
pub async fn leave(db: impl PgExecutor<'_>, host_id: HostId) -> Result<()> {
    sqlx::query!("delete from tools.process_host where id = $1", host_id as _).execute(db).await?;
    Ok(())
}

/// Of these processes of a host, those that are not to run any more, and why.
pub async fn unwanted(
    db: impl PgExecutor<'_>,
    host_id: HostId,
    running: &[ProcessId],
) -> Result<Vec<(ProcessId, String)>> {
    let ids: Vec<String> = running.iter().map(ToString::to_string).collect();
    let rows = sqlx::query!(
        r#"
        select process_id as "process_id: ProcessId",
               coalesce(stop_reason, 'it was taken for lost') as "reason!"
        from tools.process
        where host_id = $1 and process_id = any($2)
          and (stop_reason is not null or status = 'lost')
        "#,
        host_id as _,
        &ids,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.process_id, row.reason)).collect())
}

/// Some processes whose host is gone.
pub async fn orphans(db: impl PgExecutor<'_>, limit: i64) -> Result<Vec<Key>> {
    let rows = sqlx::query_as!(
        Key,
        r#"
        select tenant_id as "tenant: Tenant", session_id as "session_id: SessionId",
               process_id as "process_id: ProcessId", host_id as "host_id: HostId"
        from tools.process
        where status = 'running'
          and host_id not in (select id from tools.process_host where alive_until > now())
        limit $1
        "#,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(rows)
}

/// Forgets processes that were over before `retention`, and hosts that are long gone.
pub async fn forget(db: impl PgExecutor<'_>, retention: Duration, limit: i64) -> Result<()> {
    let before = (jiff::Timestamp::now() - retention).to_sqlx();
    sqlx::query!(
        r#"
        with old as (
            select tenant_id, process_id from tools.process
            where status <> 'running' and end_time < $1 order by end_time limit $2
        ), hosts as (
            delete from tools.process_host where alive_until < now() - interval '1 day'
        )
        delete from tools.process p using old
        where p.tenant_id = old.tenant_id and p.process_id = old.process_id
        "#,
        before as _,
        limit,
    )
    .execute(db)
    .await?;
    Ok(())
}
