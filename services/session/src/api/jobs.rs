use futures::{StreamExt as _, stream::BoxStream};
use proto::{
    event::v1::{Payload, SessionCreated},
    session::v1::{self as pb, job_service_server::JobService},
};
use serde::Serialize;
use serde_json::value::RawValue;
use tonic::{Request, Response, Status};

use super::{Api, check, convert, sessions::payload, stamp};
use crate::{
    agent,
    error::{Error, Result, parse},
    ids::{ItemId, JobId, RunId, SessionId, WorkspaceId},
    job,
    store::{
        self,
        jobs::{Item, Job, NewJob},
    },
};

const MOST_ITEMS: usize = 10_000;
const LONGEST: usize = 64 * 1024;
const STATUSES: [&str; 5] = ["pending", "running", "completed", "failed", "cancelled"];

/// How much a page of items holds, in rows and bytes; clients take up to 4 MiB in one answer unless
/// told otherwise.
const PAGE: i64 = 1000;
const PAGE_BYTES: i64 = 2 * 1024 * 1024;

#[tonic::async_trait]
impl JobService for Api {
    async fn create_job(
        &self,
        request: Request<pb::CreateJobRequest>,
    ) -> Result<Response<pb::CreateJobResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let request_id = check::request_id(&request.request_id)?;
        let instruction = check::long_text("instruction", &request.instruction, LONGEST)?;
        let output_schema =
            check::long_text("output_schema_json", &request.output_schema_json, LONGEST)?;
        job::checker(output_schema)
            .map_err(|problem| check::invalid("output_schema_json", problem))?;
        items(&request.items)?;
        let parallelism = check::count("parallelism", request.parallelism, 4, 64)?;
        let agent = check::agent_id("agent", &request.agent)?.unwrap_or(agent::DEFAULT);
        let workspace_id: Option<WorkspaceId> = match request.workspace_id.as_str() {
            "" => None,
            text => Some(parse("workspace_id", text)?),
        };
        self.host.agent(&caller.tenant, agent).await?;

        let id = JobId::new();
        let title: String = instruction.chars().take(200).collect();
        let created = Payload::SessionCreated(SessionCreated {
            title: title.clone(),
            agent: agent.to_owned(),
            workspace_id: workspace_id.map(|id| id.to_string()).unwrap_or_default(),
            ephemeral: true,
            ..SessionCreated::default()
        });
        let new = NewJob {
            id,
            tenant: &caller.tenant,
            subject: &caller.subject,
            request_id,
            request_digest: &check::digest(&request),
            title: &title,
            instruction,
            agent,
            output_schema,
            parallelism,
            inspectable: request.inspectable,
            workspace_id,
            inputs: &request.items,
            created: &payload(&created)?,
        };
        let id = store::jobs::create(&self.host.db, new, &stamp(self.host.replica)).await?;
        self.host.bus.works().job(id);
        let job = store::jobs::get(&self.host.db, &caller.tenant, id).await?;
        Ok(Response::new(pb::CreateJobResponse { job: Some(encode(job)) }))
    }

    async fn get_job(
        &self,
        request: Request<pb::GetJobRequest>,
    ) -> Result<Response<pb::GetJobResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let id = parse("job_id", &request.into_inner().job_id)?;
        let job = store::jobs::get(&self.host.db, &caller.tenant, id).await?;
        Ok(Response::new(pb::GetJobResponse { job: Some(encode(job)) }))
    }

    async fn list_jobs(
        &self,
        request: Request<pb::ListJobsRequest>,
    ) -> Result<Response<pb::ListJobsResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let limit = check::count("page_size", request.page_size, 50, 200)?;
        let before = check::cursor(&request.page_token)?;
        let (db, tenant) = (&self.host.db, &caller.tenant);
        let mut jobs = store::jobs::list(db, tenant, before, limit + 1).await?;
        let more = jobs.len() as i64 > limit;
        jobs.truncate(limit as usize);
        let next_page_token = match jobs.last() {
            Some(last) if more => last.id.to_string(),
            _ => String::new(),
        };
        let jobs = jobs.into_iter().map(encode).collect();
        Ok(Response::new(pb::ListJobsResponse { jobs, next_page_token }))
    }

    async fn list_job_items(
        &self,
        request: Request<pb::ListJobItemsRequest>,
    ) -> Result<Response<pb::ListJobItemsResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id = parse("job_id", &request.job_id)?;
        let status = match request.status.as_str() {
            "" => None,
            status if STATUSES.contains(&status) => Some(status),
            _ => return Err(check::invalid("status", "no item has it").into()),
        };
        let limit = check::count("page_size", request.page_size, 100, PAGE)?;
        let after: i32 = match request.page_token.as_str() {
            "" => -1,
            token => token.parse().map_err(|_| Error::InvalidCursor("page_token"))?,
        };
        let db = &self.host.db;
        store::jobs::get(db, &caller.tenant, id).await?;
        let mut items = store::jobs::items(db, id, status, after, limit + 1, PAGE_BYTES).await?;
        // A page that ends early for its size may be the last; then the next one is empty.
        let more = items.len() as i64 > limit || bytes(&items) >= PAGE_BYTES;
        items.truncate(limit as usize);
        let next_page_token = match items.last() {
            Some(last) if more => last.index.to_string(),
            _ => String::new(),
        };
        let items = items.into_iter().map(encode_item).collect();
        Ok(Response::new(pb::ListJobItemsResponse { items, next_page_token }))
    }

    async fn retry_job_item(
        &self,
        request: Request<pb::RetryJobItemRequest>,
    ) -> Result<Response<pb::RetryJobItemResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let job_id: JobId = parse("job_id", &request.job_id)?;
        let id = parse("item_id", &request.item_id)?;
        let request_id = check::request_id(&request.request_id)?;
        let (db, stamp) = (&self.host.db, stamp(self.host.replica));
        let events = store::jobs::retry(db, &caller.tenant, job_id, id, request_id, &stamp).await?;
        self.host.bus.publish(&caller.tenant, job_id.session(), events, false);
        self.host.bus.works().job(job_id);
        let item = store::jobs::item(db, job_id, id).await?;
        Ok(Response::new(pb::RetryJobItemResponse { item: Some(encode_item(item)) }))
    }

    async fn cancel_job(
        &self,
        request: Request<pb::CancelJobRequest>,
    ) -> Result<Response<pb::CancelJobResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: JobId = parse("job_id", &request.job_id)?;
        let reason = check::text("reason", &request.reason, 500)?;
        let (db, stamp) = (&self.host.db, stamp(self.host.replica));
        let events = store::jobs::cancel(db, &caller.tenant, id, reason, &stamp).await?;
        self.host.bus.publish(&caller.tenant, id.session(), events, false);
        self.host.bus.works().job(id);
        let job = store::jobs::get(db, &caller.tenant, id).await?;
        Ok(Response::new(pb::CancelJobResponse { job: Some(encode(job)) }))
    }

    async fn export_job(
        &self,
        request: Request<pb::ExportJobRequest>,
    ) -> Result<Response<BoxStream<'static, Result<pb::ExportJobResponse, Status>>>, Status> {
        let caller = chassis::caller(&request)?;
        let id = parse("job_id", &request.into_inner().job_id)?;
        store::jobs::get(&self.host.db, &caller.tenant, id).await?;
        let (db, stop) = (self.host.db.clone(), self.stop.clone());
        let stream = async_stream::try_stream! {
            let mut after = -1;
            loop {
                let page = store::jobs::items(&db, id, None, after, PAGE, PAGE_BYTES);
                let page = stop.run_until_cancelled(page).await.ok_or(Error::Stopping)??;
                let Some(last) = page.last() else { break };
                after = last.index;
                let lines = page.into_iter().map(line).collect::<Result<Vec<_>>>()?;
                yield pb::ExportJobResponse { data: lines.concat().into_bytes() };
            }
        };
        Ok(Response::new(stream.boxed()))
    }
}

fn items(items: &[String]) -> Result<()> {
    const FIELD: &str = "items";
    if items.is_empty() || items.len() > MOST_ITEMS {
        return Err(check::invalid(FIELD, format!("expected 1 to {MOST_ITEMS} items")));
    }
    for (index, item) in items.iter().enumerate() {
        if item.len() > LONGEST {
            return Err(check::invalid(FIELD, format!("item {index} is longer than 64 KiB")));
        }
        if let Err(error) = serde_json::from_str::<serde_json::Value>(item) {
            return Err(check::invalid(FIELD, format!("item {index} is not JSON: {error}")));
        }
        if item.contains("\\u0000") {
            return Err(check::invalid(FIELD, format!("item {index} contains NUL")));
        }
    }
    Ok(())
}

fn bytes(items: &[Item]) -> i64 {
    items.iter().map(|item| (item.input.len() + item.result.len() + 200) as i64).sum()
}

/// An item as a line of an export.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    index: i32,
    item_id: ItemId,
    /// As it was given.
    input: Box<RawValue>,
    status: String,
    attempts: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    last_error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<SessionId>,
}

fn line(item: Item) -> Result<String> {
    let result = (!item.result.is_empty()).then_some(item.result);
    let line = Line {
        index: item.index,
        item_id: item.id,
        input: RawValue::from_string(one_line(item.input)?)?,
        status: item.status,
        attempts: item.attempts,
        result: result.map(RawValue::from_string).transpose()?,
        last_error: item.last_error,
        session_id: item.run_id.map(RunId::session),
    };
    Ok(serde_json::to_string(&line)? + "\n")
}

/// JSON may have line breaks between its parts, and a line must not.
fn one_line(json: String) -> Result<String> {
    match json.contains(['\n', '\r']) {
        true => Ok(serde_json::from_str::<serde_json::Value>(&json)?.to_string()),
        false => Ok(json),
    }
}

fn encode(job: Job) -> pb::Job {
    pb::Job {
        job_id: job.id.to_string(),
        instruction: job.instruction,
        agent: job.agent,
        output_schema_json: job.output_schema,
        parallelism: job.parallelism,
        status: job.status,
        pending: job.pending,
        running: job.running,
        completed: job.completed,
        failed: job.failed,
        cancelled: job.cancelled,
        create_time: convert::timestamp(job.created_at),
        end_time: job.ended_at.and_then(convert::timestamp),
        session_id: job.id.session().to_string(),
    }
}

fn encode_item(item: Item) -> pb::JobItem {
    pb::JobItem {
        item_id: item.id.to_string(),
        index: item.index,
        input_json: item.input,
        status: item.status,
        attempts: item.attempts,
        last_error: item.last_error,
        result_json: item.result,
        session_id: item.run_id.map(|id| id.session().to_string()).unwrap_or_default(),
    }
}
