use std::collections::HashSet;

use proto::{
    event::v1::{Payload, SessionCreated},
    session::v1::{self as pb, control_task_request::Command, task_service_server::TaskService},
};
use tonic::{Request, Response, Status};

use super::{Api, check, convert, sessions::payload, stamp};
use crate::{
    agent,
    error::{Error, Result, parse},
    ids::{TaskId, WorkspaceId},
    store::{
        self,
        tasks::{Change, Criterion, EDGES, Edge, Filter, NewTask, Report, Run, Task},
    },
    task::{self, Move},
    work,
};

const LONGEST_OBJECTIVE: usize = 64 * 1024;
const MOST_CRITERIA: usize = 50;

/// Thirty days.
const LONGEST_TIMEOUT: i32 = 30 * 86_400;

#[tonic::async_trait]
impl TaskService for Api {
    async fn create_task(
        &self,
        request: Request<pb::CreateTaskRequest>,
    ) -> Result<Response<pb::CreateTaskResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let request_id = check::request_id(&request.request_id)?;
        let title = check::text("title", &request.title, 200)?;
        let objective = check::long_text("objective", &request.objective, LONGEST_OBJECTIVE)?;
        if objective.trim().is_empty() {
            return Err(check::invalid("objective", "is missing").into());
        }
        let parent_id = optional("parent_task_id", &request.parent_task_id)?;
        let blocked_by = blocked_by(&request.blocked_by)?;
        let acceptance = criteria(&request.acceptance)?;
        if !(0..=LONGEST_TIMEOUT).contains(&request.timeout_seconds) {
            return Err(check::invalid("timeout_seconds", "from 0 to 30 days").into());
        }
        let agent = check::agent_id("agent", &request.agent)?.unwrap_or(agent::DEFAULT);
        let workspace_id = match request.workspace_id.as_str() {
            "" => WorkspaceId::new(),
            text => parse("workspace_id", text)?,
        };
        self.host.agent(&caller.tenant, agent).await?;

        let created = Payload::SessionCreated(SessionCreated {
            title: title.to_owned(),
            agent: agent.to_owned(),
            workspace_id: workspace_id.to_string(),
            ..SessionCreated::default()
        });
        let new = NewTask {
            id: TaskId::new(),
            tenant: &caller.tenant,
            subject: &caller.subject,
            request_id,
            request_digest: &check::digest(&request),
            title,
            objective,
            parent_id,
            blocked_by: &blocked_by,
            agent,
            workspace_id,
            acceptance: &acceptance,
            timeout_seconds: request.timeout_seconds,
            draft: request.draft,
            created: &payload(&created)?,
        };
        let id = store::tasks::create(&self.host.db, new, &stamp(self.host.replica)).await?;
        self.host.bus.works().tasks();
        let task = Some(self.task(&caller.tenant, id).await?);
        Ok(Response::new(pb::CreateTaskResponse { task }))
    }

    async fn get_task(
        &self,
        request: Request<pb::GetTaskRequest>,
    ) -> Result<Response<pb::GetTaskResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let id = parse("task_id", &request.into_inner().task_id)?;
        let task = Some(self.task(&caller.tenant, id).await?);
        Ok(Response::new(pb::GetTaskResponse { task }))
    }

    async fn list_tasks(
        &self,
        request: Request<pb::ListTasksRequest>,
    ) -> Result<Response<pb::ListTasksResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let status = match request.status.as_str() {
            "" => None,
            text => match task::Status::parse(text) {
                Some(status) => Some(status.as_str()),
                None => return Err(check::invalid("status", "no task has it").into()),
            },
        };
        let owner = check::text("owner", &request.owner, 200)?;
        let filter = Filter {
            status,
            owner: (!owner.is_empty()).then_some(owner),
            parent_id: optional("parent_task_id", &request.parent_task_id)?,
        };
        let limit = check::count("page_size", request.page_size, 50, 200)?;
        let before = check::cursor(&request.page_token)?;
        let (db, tenant) = (&self.host.db, &caller.tenant);
        let mut tasks = store::tasks::list(db, tenant, filter, before, limit + 1).await?;
        let more = tasks.len() as i64 > limit;
        tasks.truncate(limit as usize);
        let next_page_token = match tasks.last() {
            Some(last) if more => last.id.to_string(),
            _ => String::new(),
        };
        let tasks = tasks.into_iter().map(encode).collect();
        Ok(Response::new(pb::ListTasksResponse { tasks, next_page_token }))
    }

    async fn update_task(
        &self,
        request: Request<pb::UpdateTaskRequest>,
    ) -> Result<Response<pb::UpdateTaskResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: TaskId = parse("task_id", &request.task_id)?;
        if request.percent.is_some_and(|percent| !(0..=100).contains(&percent)) {
            return Err(check::invalid("percent", "from 0 to 100").into());
        }
        let message = request.progress_message.as_deref();
        let message = message.map(|text| check::text("progress_message", text, 500)).transpose()?;
        let delivery_state = request.delivery_state.as_deref();
        if delivery_state
            .is_some_and(|state| !["none", "pending", "delivered", "failed"].contains(&state))
        {
            let problem = "expected none, pending, delivered or failed";
            return Err(check::invalid("delivery_state", problem).into());
        }
        let acceptance = judged(&request.acceptance)?;
        let report =
            Report { percent: request.percent, message, acceptance: &acceptance, delivery_state };
        let (db, stamp) = (&self.host.db, stamp(self.host.replica));
        let (tenant, subject) = (&caller.tenant, &caller.subject);
        let events = store::tasks::update(db, tenant, id, &report, subject, &stamp).await?;
        self.host.bus.publish(tenant, id.session(), events, false);
        let task = Some(self.task(tenant, id).await?);
        Ok(Response::new(pb::UpdateTaskResponse { task }))
    }

    async fn link_tasks(
        &self,
        request: Request<pb::LinkTasksRequest>,
    ) -> Result<Response<pb::LinkTasksResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: TaskId = parse("task_id", &request.task_id)?;
        let target_id = parse("target_task_id", &request.target_task_id)?;
        let kind = request.kind.as_str();
        if !["blocks", "parent", "relates"].contains(&kind) {
            return Err(check::invalid("kind", "expected blocks, parent or relates").into());
        }
        let reason = check::text("reason", &request.reason, 500)?;
        let (db, stamp) = (&self.host.db, stamp(self.host.replica));
        let events =
            store::tasks::link(db, &caller.tenant, id, target_id, kind, reason, &stamp).await?;
        self.host.bus.publish(&caller.tenant, id.session(), events, false);
        self.host.bus.works().tasks();
        let task = Some(self.task(&caller.tenant, id).await?);
        Ok(Response::new(pb::LinkTasksResponse { task }))
    }

    async fn control_task(
        &self,
        request: Request<pb::ControlTaskRequest>,
    ) -> Result<Response<pb::ControlTaskResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: TaskId = parse("task_id", &request.task_id)?;
        let command = match Command::try_from(request.command) {
            Ok(Command::Pause) => Move::Pause,
            Ok(Command::Resume) => Move::Resume,
            Ok(Command::Cancel) => Move::Cancel,
            Ok(Command::Archive) => Move::Archive,
            Ok(Command::Unspecified) | Err(_) => {
                return Err(check::invalid("command", "is missing or unknown").into());
            }
        };
        let reason = check::text("reason", &request.reason, 500)?;
        let change = Change::by_command(command, &caller.subject, reason);
        self.change_task(&caller, id, command, change).await?;
        let task = Some(self.task(&caller.tenant, id).await?);
        Ok(Response::new(pb::ControlTaskResponse { task }))
    }

    async fn retry_task(
        &self,
        request: Request<pb::RetryTaskRequest>,
    ) -> Result<Response<pb::RetryTaskResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: TaskId = parse("task_id", &request.task_id)?;
        let request_id = Some(check::request_id(&request.request_id)?);
        let change = Change::by_command(Move::Retry, &caller.subject, "");
        let change = Change { request_id, ..change };
        self.change_task(&caller, id, Move::Retry, change).await?;
        let task = Some(self.task(&caller.tenant, id).await?);
        Ok(Response::new(pb::RetryTaskResponse { task }))
    }
}

impl Api {
    async fn task(&self, tenant: &chassis::Tenant, id: TaskId) -> Result<pb::Task> {
        let mut db = super::snapshot::one_state(&self.host.db).await?;
        let (task, runs, edges) = store::tasks::get(&mut db, tenant, id).await?;
        db.commit().await?;
        let attempts = runs.into_iter().map(|run| attempt(id, run)).collect();
        let edges = edges.into_iter().map(edge).collect();
        Ok(pb::Task { attempts, edges, ..encode(task) })
    }

    async fn change_task(
        &self,
        caller: &chassis::Caller,
        id: TaskId,
        command: Move,
        change: Change<'_>,
    ) -> Result<()> {
        let (host, tenant) = (&self.host, &caller.tenant);
        let stamp = stamp(host.replica);
        let moved =
            store::tasks::apply(&host.db, Some(tenant), id, Some(command), &change, &stamp).await?;
        let status = task::Status::parse(&moved.status);
        if moved.refused && !status.is_some_and(|status| status.is_result_of(command)) {
            return Err(Error::TaskWrongStatus { id, status: moved.status });
        }
        host.bus.publish(tenant, id.session(), moved.events, false);
        host.bus.works().tasks();
        if moved.stops {
            work::stop_runs(host, tenant, id).await?;
        }
        Ok(())
    }
}

fn optional(field: &'static str, text: &str) -> Result<Option<TaskId>> {
    (!text.is_empty()).then(|| parse(field, text)).transpose()
}

fn blocked_by(ids: &[String]) -> Result<Vec<TaskId>> {
    const FIELD: &str = "blocked_by";
    if ids.len() > EDGES as usize {
        return Err(check::invalid(FIELD, format!("at most {EDGES} tasks")));
    }
    let ids = ids.iter().map(|id| parse(FIELD, id)).collect::<Result<Vec<TaskId>>>()?;
    match ids.iter().collect::<HashSet<_>>().len() == ids.len() {
        true => Ok(ids),
        false => Err(check::invalid(FIELD, "names a task twice")),
    }
}

fn criteria(texts: &[String]) -> Result<Vec<Criterion>> {
    const FIELD: &str = "acceptance";
    if texts.len() > MOST_CRITERIA {
        return Err(check::invalid(FIELD, format!("at most {MOST_CRITERIA} criteria")));
    }
    let mut named = HashSet::new();
    let criteria = texts.iter().map(|text| match check::text(FIELD, text, 500)? {
        "" => Err(check::invalid(FIELD, "a criterion is empty")),
        text if !named.insert(text) => Err(check::invalid(FIELD, "names a criterion twice")),
        text => Ok(Criterion { criterion: text.to_owned(), ..Criterion::default() }),
    });
    criteria.collect()
}

fn judged(given: &[pb::task::Acceptance]) -> Result<Vec<Criterion>> {
    let texts: Vec<_> = given.iter().map(|given| given.criterion.clone()).collect();
    let criteria = criteria(&texts)?.into_iter().zip(given);
    let judged = criteria.map(|(criterion, given)| {
        let evidence_id = check::text("acceptance", &given.evidence_id, 200)?.to_owned();
        Ok(Criterion { met: given.met, evidence_id, ..criterion })
    });
    judged.collect()
}

fn encode(task: Task) -> pb::Task {
    let acceptance = task.acceptance.0.into_iter().map(|criterion| pb::task::Acceptance {
        criterion: criterion.criterion,
        met: criterion.met,
        evidence_id: criterion.evidence_id,
    });
    pb::Task {
        task_id: task.id.to_string(),
        title: task.title,
        objective: task.objective,
        parent_task_id: task.parent_id.map(|id| id.to_string()).unwrap_or_default(),
        root_task_id: task.root_id.to_string(),
        status: task.status,
        status_reason: task.status_reason,
        owner: task.owner,
        session_id: task.id.session().to_string(),
        current_run_id: task.run_id.to_string(),
        attempts: vec![],
        edges: vec![],
        percent: task.percent,
        progress_message: task.progress_message,
        acceptance: acceptance.collect(),
        delivery_state: task.delivery_state,
        create_time: convert::timestamp(task.created_at),
        update_time: convert::timestamp(task.updated_at),
        end_time: task.ended_at.and_then(convert::timestamp),
    }
}

fn attempt(id: TaskId, run: Run) -> pb::task::Attempt {
    // One that waits for a person is blocked, in the words of attempts.
    let status = match run.status.as_str() {
        "waiting_input" | "waiting_permission" => "blocked".to_owned(),
        _ => run.status,
    };
    pb::task::Attempt {
        run_id: run.id.to_string(),
        status,
        error: run.error,
        session_id: id.session().to_string(),
        turn_id: run.id.turn().to_string(),
        start_time: run.started_at.and_then(convert::timestamp),
        end_time: run.ended_at.and_then(convert::timestamp),
    }
}

fn edge(edge: Edge) -> pb::task::Edge {
    pb::task::Edge {
        target_task_id: edge.target_id.to_string(),
        kind: edge.kind,
        status: edge.status,
        reason: edge.reason,
    }
}
