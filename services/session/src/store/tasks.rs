use chassis::Tenant;
use jiff_sqlx::Timestamp as Time;
use proto::event::v1::Event;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{PgConnection, PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{RunId, TaskId, WorkspaceId},
    store::{events, turns::Stamp},
    task::Move,
};

/// How many generations there are from a task to its root.
const GENERATIONS: i32 = 16;

/// How many edges of a kind a task has in one direction.
pub const EDGES: i32 = 100;

/// How many attempts are shown.
const ATTEMPTS: i64 = 100;

#[derive(Debug)]
pub struct NewTask<'a> {
    pub id: TaskId,
    pub tenant: &'a Tenant,
    pub subject: &'a str,
    pub request_id: &'a str,
    pub request_digest: &'a str,
    pub title: &'a str,
    pub objective: &'a str,
    pub parent_id: Option<TaskId>,
    pub blocked_by: &'a [TaskId],
    pub agent: &'a str,
    pub workspace_id: WorkspaceId,
    pub acceptance: &'a [Criterion],
    pub timeout_seconds: i32,
    pub draft: bool,
    /// The payload of `session.created`.
    pub created: &'a Value,
}

/// What has to be true in the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub struct Criterion {
    pub criterion: String,
    pub met: bool,
    pub evidence_id: String,
}

/// Creates a task, or finds the one this request created before.
pub async fn create(db: impl PgExecutor<'_>, new: NewTask<'_>, stamp: &Stamp) -> Result<TaskId> {
    let about = json!({
        "title": new.title,
        "objective": new.objective,
        "parent_id": new.parent_id,
        "blocked_by": new.blocked_by,
        "agent": new.agent,
        "workspace_id": new.workspace_id,
        "acceptance": new.acceptance,
        "timeout_seconds": new.timeout_seconds,
        "draft": new.draft,
        "generations": GENERATIONS,
    });
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", task_id as "task_id!: TaskId", status
        from session.create_task($1, $2, $3, $4, $5, $6, $7, $8, $9)
        "#,
        new.tenant as _,
        new.id as _,
        RunId::new() as _,
        new.subject,
        new.request_id,
        new.request_digest,
        about,
        new.created,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    let id = row.task_id;
    match row.outcome.as_str() {
        "reused" => Err(Error::RequestIdReused(new.request_id.to_owned())),
        "no_task" => Err(Error::TaskNotFound(id)),
        "wrong_status" => {
            Err(Error::TaskWrongStatus { id, status: row.status.unwrap_or_default() })
        }
        "deep" => Err(Error::Invalid {
            field: "parent_task_id",
            problem: format!("at most {GENERATIONS} generations"),
        }),
        _ => Ok(id),
    }
}

#[derive(Debug)]
pub struct Task {
    pub id: TaskId,
    pub title: String,
    pub objective: String,
    pub parent_id: Option<TaskId>,
    pub root_id: TaskId,
    pub status: String,
    pub status_reason: String,
    pub owner: String,
    pub run_id: RunId,
    pub percent: i32,
    pub progress_message: String,
    pub acceptance: Json<Vec<Criterion>>,
    pub delivery_state: String,
    pub created_at: Time,
    pub updated_at: Time,
    pub ended_at: Option<Time>,
}

#[derive(Debug)]
pub struct Run {
    pub id: RunId,
    pub status: String,
    pub error: String,
    pub started_at: Option<Time>,
    pub ended_at: Option<Time>,
}

#[derive(Debug)]
pub struct Edge {
    pub target_id: TaskId,
    pub kind: String,
    pub status: String,
    pub reason: String,
}

/// A task with its attempts and edges.
pub async fn get(
    db: &mut PgConnection,
    tenant: &Tenant,
    id: TaskId,
) -> Result<(Task, Vec<Run>, Vec<Edge>)> {
    let task = sqlx::query_as!(
        Task,
        r#"
        select id as "id: _", title, objective, parent_id as "parent_id: _", root_id as "root_id: _", status,
               status_reason, owner, run_id as "run_id: _", percent, progress_message, acceptance as "acceptance: _",
               delivery_state, created_at as "created_at: _", updated_at as "updated_at: _", ended_at as "ended_at: _"
        from session.task
        where tenant_id = $1 and id = $2
        "#,
        tenant as _,
        id as _,
    )
    .fetch_optional(&mut *db)
    .await?
    .ok_or(Error::TaskNotFound(id))?;
    let mut runs = sqlx::query_as!(
        Run,
        r#"
        select id as "id: _", status, error, started_at as "started_at: _", ended_at as "ended_at: _"
        from session.task_run where task_id = $1 order by number desc limit $2
        "#,
        id as _,
        ATTEMPTS,
    )
    .fetch_all(&mut *db)
    .await?;
    runs.reverse();
    let edges = sqlx::query_as!(
        Edge,
        r#"
        select e.target_id as "target_id!: _", e.kind as "kind!", e.reason as "reason!",
               case when e.kind <> 'blocks' then 'active' when t.completed_at is null then 'open'
                    else 'satisfied' end as "status!"
        from session.task_edge e join session.task t on t.id = e.task_id
        where e.task_id = $1
        union all
        select e.task_id, 'blocked_by', e.reason, case when t.completed_at is null then 'open' else 'satisfied' end
        from session.task_edge e join session.task t on t.id = e.task_id
        where e.target_id = $1 and e.kind = 'blocks'
        order by 2, 1
        "#,
        id as _,
    )
    .fetch_all(db)
    .await?;
    Ok((task, runs, edges))
}

/// Which tasks a list has. None: all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'a> {
    pub status: Option<&'a str>,
    pub owner: Option<&'a str>,
    pub parent_id: Option<TaskId>,
}

/// Tasks, the newest first, before a given one.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    filter: Filter<'_>,
    before: Option<TaskId>,
    limit: i64,
) -> Result<Vec<Task>> {
    let tasks = sqlx::query_as!(
        Task,
        r#"
        select id as "id!: _", title as "title!", objective as "objective!", parent_id as "parent_id: _",
               root_id as "root_id!: _", status as "status!", status_reason as "status_reason!", owner as "owner!",
               run_id as "run_id!: _", percent as "percent!", progress_message as "progress_message!",
               acceptance as "acceptance!: _", delivery_state as "delivery_state!", created_at as "created_at!: _",
               updated_at as "updated_at!: _", ended_at as "ended_at: _"
        from (
            -- Each way to look has an index of its own, and so a branch.
            (select * from session.task
             where $3::text is null and $4::text is null and $5::text is null
               and tenant_id = $1 and status <> 'archived' and id < coalesce($2, 'task_zzzzzzzzzzzzzzzzzzzzzzzzzz')
             order by id desc limit $6)
            union all
            (select * from session.task
             where $5::text is not null and tenant_id = $1 and parent_id = $5 and id < coalesce($2, 'task_zzzzzzzzzzzzzzzzzzzzzzzzzz')
               and (status = $3 or $3 is null and status <> 'archived') and ($4::text is null or owner = $4)
             order by id desc limit $6)
            union all
            (select * from session.task
             where $5::text is null and $3::text is not null
               and tenant_id = $1 and status = $3 and id < coalesce($2, 'task_zzzzzzzzzzzzzzzzzzzzzzzzzz') and ($4::text is null or owner = $4)
             order by id desc limit $6)
            union all
            (select * from session.task
             where $5::text is null and $3::text is null and $4::text is not null
               and tenant_id = $1 and owner = $4 and status <> 'archived' and id < coalesce($2, 'task_zzzzzzzzzzzzzzzzzzzzzzzzzz')
             order by id desc limit $6)
        ) t
        order by id desc
        limit $6
        "#,
        tenant as _,
        before as _,
        filter.status,
        filter.owner,
        filter.parent_id as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(tasks)
}

/// What is reported of a task; nothing leaves as it is.
#[derive(Debug, Default, Serialize)]
pub struct Report<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub acceptance: &'a [Criterion],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_state: Option<&'a str>,
}

pub async fn update(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: TaskId,
    report: &Report<'_>,
    subject: &str,
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", events as "events!: Json<Vec<events::Row>>"
        from session.update_task($1, $2, $3, $4, $5)
        "#,
        tenant as _,
        id as _,
        Json(report) as _,
        subject,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match row.outcome.as_str() {
        "not_found" => Err(Error::TaskNotFound(id)),
        "archived" => Err(Error::TaskWrongStatus { id, status: row.outcome }),
        "no_criterion" => Err(Error::Invalid {
            field: "acceptance",
            problem: "names a criterion that the task does not have".to_owned(),
        }),
        _ => events::decode(row.events.0),
    }
}

/// Adds an edge.
pub async fn link(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: TaskId,
    target_id: TaskId,
    kind: &str,
    reason: &str,
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", task_id as "task_id!: TaskId", events as "events!: Json<Vec<events::Row>>"
        from session.link_tasks($1, $2, $3, $4, $5, $6, $7)
        "#,
        tenant as _,
        id as _,
        target_id as _,
        kind,
        reason,
        EDGES,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    let invalid = |field, problem| Err(Error::Invalid { field, problem });
    match row.outcome.as_str() {
        "not_found" => Err(Error::TaskNotFound(row.task_id)),
        "cycle" => Err(Error::TaskCycle { id, target_id }),
        "archived" => Err(Error::TaskWrongStatus { id: row.task_id, status: row.outcome }),
        "full" => invalid("target_task_id", format!("at most {EDGES} edges of a kind")),
        "has_parent" => invalid("kind", format!("the task has a parent, {}", row.task_id)),
        _ => events::decode(row.events.0),
    }
}

/// What is to change with a move, see `session.move_task`.
#[derive(Debug, Default, Serialize)]
pub struct Change<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunChange<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wish: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_run: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub subject: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub error: &'a str,
}

#[derive(Debug, Serialize)]
pub struct RunChange<'a> {
    pub id: RunId,
    pub status: &'a str,
    pub error: &'a str,
}

impl<'a> Change<'a> {
    /// What a command of somebody's changes, here and in what depends on the task.
    pub fn by_command(command: Move, subject: &'a str, reason: &'a str) -> Change<'a> {
        let change = Change { subject, reason, ..Change::default() };
        match command {
            Move::Pause => Change { stop: Some("paused"), spread: Some("pause"), ..change },
            Move::Cancel => Change { stop: Some("cancelled"), spread: Some("cancel"), ..change },
            Move::Resume => {
                Change { spread: Some("resume"), new_run: Some(RunId::new()), ..change }
            }
            Move::Archive => Change { spread: Some("archive"), ..change },
            Move::Retry => Change { new_run: Some(RunId::new()), ..change },
            _ => change,
        }
    }
}

/// What became of a move.
#[derive(Debug)]
pub struct Moved {
    /// Nothing changed, or only the attempt: the status does not allow it.
    pub refused: bool,
    pub status: String,
    /// Attempts under way are to be stopped.
    pub stops: bool,
    pub events: Vec<Event>,
}

/// Moves a task, if it may from where it stands.
pub async fn apply(
    db: impl PgExecutor<'_>,
    tenant: Option<&Tenant>,
    id: TaskId,
    what: Option<Move>,
    change: &Change<'_>,
    stamp: &Stamp,
) -> Result<Moved> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", status, stops as "stops!", events as "events!: Json<Vec<events::Row>>"
        from session.move_task($1, $2, $3, $4, $5)
        "#,
        tenant as _,
        id as _,
        what.map_or_else(|| json!({}), Move::table),
        Json(change) as _,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    if row.outcome == "not_found" {
        return Err(Error::TaskNotFound(id));
    }
    Ok(Moved {
        refused: row.outcome == "refused",
        status: row.status.unwrap_or_default(),
        stops: row.stops,
        events: events::decode(row.events.0)?,
    })
}
