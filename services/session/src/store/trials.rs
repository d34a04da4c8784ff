use chassis::Tenant;
use jiff_sqlx::Timestamp as Time;
use proto::event::v1::{Event, Payload};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{PgExecutor, types::Json};

use crate::{
    benchmark::Difference,
    error::{Error, Result},
    ids::{SessionId, TrialId},
    store::{events, turns::Stamp},
};

#[derive(Debug)]
pub struct NewTrial<'a> {
    pub id: TrialId,
    pub tenant: &'a Tenant,
    pub session_id: SessionId,
    pub request_id: &'a str,
    pub request_digest: &'a str,
    pub dataset_id: &'a str,
    pub dataset_version: &'a str,
    pub benchmark_task_id: &'a str,
    pub configuration_id: &'a str,
    pub role: &'a str,
}

/// Records that a trial starts, or finds the one this request started before.
pub async fn start(
    db: impl PgExecutor<'_>,
    new: NewTrial<'_>,
    said: &[Payload],
    stamp: &Stamp,
) -> Result<(TrialId, Vec<Event>)> {
    let about = json!({
        "dataset_id": new.dataset_id,
        "dataset_version": new.dataset_version,
        "benchmark_task_id": new.benchmark_task_id,
        "configuration_id": new.configuration_id,
        "role": new.role,
    });
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", trial_id as "id: TrialId", events as "events!: Json<Vec<events::Row>>"
        from session.start_trial($1, $2, $3, $4, $5, $6, $7, $8)
        "#,
        new.tenant as _,
        new.session_id as _,
        new.id as _,
        new.request_id,
        new.request_digest,
        about,
        facts(said)?,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match (row.outcome.as_str(), row.id) {
        ("reused", _) => Err(Error::RequestIdReused(new.request_id.to_owned())),
        (_, Some(id)) => Ok((id, events::decode(row.events.0)?)),
        (_, None) => Err(Error::SessionNotFound(new.session_id)),
    }
}

/// What a trial earned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reward {
    pub value: f64,
    pub criteria: Vec<String>,
    pub failure_category: String,
}

#[derive(Debug)]
pub struct Trial {
    pub id: TrialId,
    pub session_id: SessionId,
    pub dataset_id: String,
    pub dataset_version: String,
    pub benchmark_task_id: String,
    pub configuration_id: String,
    pub role: String,
    pub started_at: Time,
    pub reward: Option<Json<Reward>>,
    pub rewarded_at: Option<Time>,
}

pub async fn get(db: impl PgExecutor<'_>, tenant: &Tenant, id: TrialId) -> Result<Trial> {
    sqlx::query_as!(
        Trial,
        r#"
        select id as "id: _", session_id as "session_id: _", dataset_id, dataset_version, benchmark_task_id,
               configuration_id, role, started_at as "started_at: _", reward as "reward: _",
               rewarded_at as "rewarded_at: _"
        from session.trial where tenant_id = $1 and id = $2
        "#,
        tenant as _,
        id as _,
    )
    .fetch_optional(db)
    .await?
    .ok_or(Error::TrialNotFound(id))
}

/// The trials of a dataset after a given one, in the order in which they started.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    dataset_id: &str,
    after: Option<TrialId>,
    limit: i64,
) -> Result<Vec<Trial>> {
    let trials = sqlx::query_as!(
        Trial,
        r#"
        select id as "id: _", session_id as "session_id: _", dataset_id, dataset_version, benchmark_task_id,
               configuration_id, role, started_at as "started_at: _", reward as "reward: _",
               rewarded_at as "rewarded_at: _"
        from session.trial
        where tenant_id = $1 and dataset_id = $2 and id > coalesce($3, '')
        order by id limit $4
        "#,
        tenant as _,
        dataset_id,
        after as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(trials)
}

/// Records what a trial earned, once.
pub async fn reward(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: TrialId,
    reward: &Reward,
    said: &[Payload],
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", events as "events!: Json<Vec<events::Row>>"
        from session.reward_trial($1, $2, $3, $4, $5)
        "#,
        tenant as _,
        id as _,
        Json(reward) as _,
        facts(said)?,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match row.outcome.as_str() {
        "not_found" => Err(Error::TrialNotFound(id)),
        "rewarded" => Err(Error::TrialRewarded(id)),
        _ => events::decode(row.events.0),
    }
}

/// What sets the candidate apart from the baseline, over the tasks that both have rewards of.
pub async fn difference(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    dataset_id: &str,
    baseline_id: &str,
    candidate_id: &str,
) -> Result<Difference> {
    let difference = sqlx::query_as!(
        Difference,
        r#"
        with of as (
            select configuration_id, benchmark_task_id, count(*) as trials,
                   avg((reward ->> 'value')::double precision) as reward,
                   avg(case when reward ->> 'failureCategory' = 'timeout' then 1.0 else 0.0 end)::double precision
                       as timeouts
            from session.trial
            where tenant_id = $1 and dataset_id = $2 and configuration_id in ($3, $4) and rewarded_at is not null
            group by configuration_id, benchmark_task_id
        )
        select coalesce(sum(b.trials + c.trials), 0)::bigint as "trials!",
               coalesce(avg(c.reward - b.reward), 0) as "reward!",
               coalesce(avg(c.timeouts - b.timeouts), 0) as "timeouts!"
        from of b join of c using (benchmark_task_id)
        where b.configuration_id = $3 and c.configuration_id = $4
        "#,
        tenant as _,
        dataset_id,
        baseline_id,
        candidate_id,
    )
    .fetch_one(db)
    .await?;
    Ok(difference)
}

/// Records a comparison in the log of the candidate's latest trial, unless it was recorded last.
pub async fn compare(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    dataset_id: &str,
    baseline_id: &str,
    candidate_id: &str,
    result: &Payload,
    stamp: &Stamp,
) -> Result<Option<(SessionId, Vec<Event>)>> {
    let result: Value = serde_json::from_str(&result.to_json()?)?;
    let row = sqlx::query!(
        r#"
        select session_id as "session_id!: SessionId", events as "events!: Json<Vec<events::Row>>"
        from session.compare_trials($1, $2, $3, $4, $5, $6)
        "#,
        tenant as _,
        dataset_id,
        baseline_id,
        candidate_id,
        result,
        Json(stamp) as _,
    )
    .fetch_optional(db)
    .await?;
    row.map(|row| Ok((row.session_id, events::decode(row.events.0)?))).transpose()
}

fn facts(said: &[Payload]) -> Result<Value> {
    let facts = said.iter().map(|payload| {
        let said: Value = serde_json::from_str(&payload.to_json()?)?;
        Ok(json!({ "type": payload.name(), "payload": said }))
    });
    facts.collect()
}
