use chassis::Tenant;
use jiff_sqlx::Timestamp as Time;
use proto::event::v1::Event;
use serde_json::{Value, json};
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{ItemId, JobId, RunId, WorkspaceId},
    store::{events, turns::Stamp},
};

#[derive(Debug)]
pub struct NewJob<'a> {
    pub id: JobId,
    pub tenant: &'a Tenant,
    pub subject: &'a str,
    pub request_id: &'a str,
    pub request_digest: &'a str,
    pub title: &'a str,
    pub instruction: &'a str,
    pub agent: &'a str,
    pub output_schema: &'a str,
    pub parallelism: i64,
    pub inspectable: bool,
    pub workspace_id: Option<WorkspaceId>,
    pub inputs: &'a [String],
    /// The payload of `session.created`.
    pub created: &'a Value,
}

/// Creates a job with all its items, or finds the one this request created before.
pub async fn create(db: impl PgExecutor<'_>, new: NewJob<'_>, stamp: &Stamp) -> Result<JobId> {
    let items: Vec<_> = new.inputs.iter().map(|_| ItemId::new()).collect();
    let about = json!({
        "title": new.title,
        "instruction": new.instruction,
        "agent": new.agent,
        "output_schema": new.output_schema,
        "parallelism": new.parallelism,
        "inspectable": new.inspectable,
        "workspace_id": new.workspace_id,
    });
    let row = sqlx::query!(
        r#"
        select job_id as "id!: JobId", reused as "reused!"
        from session.create_job($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
        "#,
        new.tenant as _,
        new.id as _,
        new.subject,
        new.request_id,
        new.request_digest,
        about,
        &items as _,
        new.inputs,
        new.created,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match row.reused {
        true => Err(Error::RequestIdReused(new.request_id.to_owned())),
        false => Ok(row.id),
    }
}

#[derive(Debug)]
pub struct Job {
    pub id: JobId,
    pub instruction: String,
    pub agent: String,
    pub output_schema: String,
    pub parallelism: i32,
    pub status: String,
    pub pending: i32,
    pub running: i32,
    pub completed: i32,
    pub failed: i32,
    pub cancelled: i32,
    pub created_at: Time,
    pub ended_at: Option<Time>,
}

pub async fn get(db: impl PgExecutor<'_>, tenant: &Tenant, id: JobId) -> Result<Job> {
    sqlx::query_as!(
        Job,
        r#"
        select id as "id: _", instruction, agent, output_schema, parallelism, status, pending, running, completed,
               failed, cancelled, created_at as "created_at: _", ended_at as "ended_at: _"
        from session.job where tenant_id = $1 and id = $2
        "#,
        tenant as _,
        id as _,
    )
    .fetch_optional(db)
    .await?
    .ok_or(Error::JobNotFound(id))
}

/// Jobs, the newest first, before a given one.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    before: Option<JobId>,
    limit: i64,
) -> Result<Vec<Job>> {
    let jobs = sqlx::query_as!(
        Job,
        r#"
        select id as "id: _", instruction, agent, output_schema, parallelism, status, pending, running, completed,
               failed, cancelled, created_at as "created_at: _", ended_at as "ended_at: _"
        from session.job
        where tenant_id = $1 and id < coalesce($2, 'job_zzzzzzzzzzzzzzzzzzzzzzzzzz')
        order by id desc limit $3
        "#,
        tenant as _,
        before as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(jobs)
}

#[derive(Debug)]
pub struct Item {
    pub id: ItemId,
    pub index: i32,
    pub input: String,
    pub status: String,
    pub attempts: i32,
    pub last_error: String,
    pub result: String,
    pub run_id: Option<RunId>,
}

/// The items of a job after a given place, in order; a page ends early when it has about so many
/// bytes, and has at least one.
pub async fn items(
    db: impl PgExecutor<'_>,
    id: JobId,
    status: Option<&str>,
    after: i32,
    limit: i64,
    bytes: i64,
) -> Result<Vec<Item>> {
    let items = sqlx::query_as!(
        Item,
        r#"
        select id as "id!: _", index as "index!", input as "input!", status as "status!", attempts as "attempts!",
               last_error as "last_error!", result as "result!", run_id as "run_id: _"
        from (
            select i.*, sum(octet_length(i.input) + octet_length(i.result) + 200)
                       over (order by i.index rows between unbounded preceding and 1 preceding) as before
            from (
                (select * from session.job_item
                 where $2::text is null and job_id = $1 and index > $3 order by index limit $4)
                union all
                (select * from session.job_item
                 where $2::text is not null and job_id = $1 and status = $2 and index > $3 order by index limit $4)
            ) i
        ) i
        where before is null or before < $5
        order by index
        "#,
        id as _,
        status,
        after,
        limit,
        bytes,
    )
    .fetch_all(db)
    .await?;
    Ok(items)
}

pub async fn item(db: impl PgExecutor<'_>, job_id: JobId, id: ItemId) -> Result<Item> {
    sqlx::query_as!(
        Item,
        r#"
        select id as "id: _", index, input, status, attempts, last_error, result, run_id as "run_id: _"
        from session.job_item where id = $2 and job_id = $1
        "#,
        job_id as _,
        id as _,
    )
    .fetch_optional(db)
    .await?
    .ok_or(Error::JobItemNotFound { job_id, id })
}

/// Lets one failed item run again.
pub async fn retry(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    job_id: JobId,
    id: ItemId,
    request_id: &str,
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", status, events as "events!: Json<Vec<events::Row>>"
        from session.retry_item($1, $2, $3, $4, $5)
        "#,
        tenant as _,
        job_id as _,
        id as _,
        request_id,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    let status = row.status.unwrap_or_default();
    match row.outcome.as_str() {
        "not_found" => Err(Error::JobNotFound(job_id)),
        "no_item" => Err(Error::JobItemNotFound { job_id, id }),
        "reused" => Err(Error::RequestIdReused(request_id.to_owned())),
        "wrong_status" => Err(Error::JobWrongStatus { job_id, item_id: Some(id), status }),
        _ => events::decode(row.events.0),
    }
}

/// Gives up what waits, and has what runs stopped.
pub async fn cancel(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    job_id: JobId,
    reason: &str,
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", status, events as "events!: Json<Vec<events::Row>>"
        from session.cancel_job($1, $2, $3, $4)
        "#,
        tenant as _,
        job_id as _,
        reason,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    let status = row.status.unwrap_or_default();
    match row.outcome.as_str() {
        "not_found" => Err(Error::JobNotFound(job_id)),
        "wrong_status" => Err(Error::JobWrongStatus { job_id, item_id: None, status }),
        _ => events::decode(row.events.0),
    }
}
