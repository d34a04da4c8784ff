mod files;
mod mcp_events;
mod mcp_servers;
mod outbox;
mod outputs;
mod pieces;
mod policies;
mod processes;
mod turn_hooks;
mod workspaces;

use std::{sync::Arc, time::Duration};

use chassis::{Tenant, auth::Kind};
use proto::{
    event::v1::{ToolMetadata, tool_metadata},
    tools::v1 as pb,
    tools::v1::{
        fact_service_server::FactServiceServer,
        file_service_server::FileServiceServer,
        mcp_event_service_server::McpEventServiceServer,
        outcome::Result as PbResult,
        output_service_server::OutputServiceServer,
        policy_service_server::PolicyServiceServer,
        process_service_server::ProcessServiceServer,
        tool_service_server::{ToolService, ToolServiceServer},
        workspace_service_server::WorkspaceServiceServer,
    },
};
use sqlx::PgPool;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, codegen::BoxStream, service::Routes};

use self::files::Files;
use crate::{
    call::{Call, SessionId, WorkspaceId},
    catalog::{Effect, Entry},
    decide::{Decided, Judges, LARGEST_INPUT},
    egress::Reached,
    error::{Error, Result},
    execute::{Executor, Terms},
    facts::{int32, int64},
    outcome::Outcome,
    outputs::Kept,
    processes::Processes,
    store,
};

/// Limits that the contract promises.
const LONGEST_TIMEOUT_MS: i32 = 3_600_000;
const LARGEST_PAGE: i32 = 500;
const USUAL_PAGE: i32 = 200;

/// A page that would be larger ends earlier: what servers say may be much, and messages have an
/// end.
const LARGEST_LIST: usize = 1024 * 1024;
const LONGEST_ID: usize = 100;
const MOST_RULES: usize = 1_000;
const MOST_IN_SCOPE: usize = 200;
const MOST_ANCESTORS: usize = 32;

/// What the services of the contract are made of.
pub struct Shared {
    pub db: PgPool,
    pub executor: Arc<Executor>,
    pub processes: Processes,
    pub stop: CancellationToken,
}

pub fn routes(args: &chassis::Args, shared: Shared) -> Routes {
    let Shared { db, executor, processes, stop } = shared;
    let outbox = outbox::Api { db: db.clone(), processes: processes.clone(), stop: stop.clone() };
    let files = Files::new(executor.workspaces.clone());
    let workspaces = workspaces::Api { executor: executor.clone(), processes: processes.clone() };
    let events =
        mcp_events::Api { db: db.clone(), servers: executor.servers.clone(), stop: stop.clone() };
    let processes = processes::Api { processes, outputs: executor.outputs.clone(), stop };
    let policies = policies::Api { db: db.clone(), executor: executor.clone() };
    let outputs = outputs::Api { outputs: executor.outputs.clone() };
    Routes::new(chassis::service!(ToolServiceServer::new(Api { db, executor }), args))
        .add_service(chassis::service!(WorkspaceServiceServer::new(workspaces), args))
        .add_service(chassis::service!(FileServiceServer::new(files), args))
        .add_service(chassis::service!(ProcessServiceServer::new(processes), args))
        .add_service(chassis::service!(FactServiceServer::new(outbox), args))
        .add_service(chassis::service!(OutputServiceServer::new(outputs), args))
        .add_service(chassis::service!(PolicyServiceServer::new(policies), args))
        .add_service(chassis::service!(McpEventServiceServer::new(events), args))
}

struct Api {
    db: PgPool,
    executor: Arc<Executor>,
}

#[tonic::async_trait]
impl ToolService for Api {
    async fn list_tools(
        &self,
        request: Request<pb::ListToolsRequest>,
    ) -> Result<Response<pb::ListToolsResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let tenant = caller.tenant;
        let request = request.into_inner();
        let size = page_size(request.page_size)?;
        let after = request.page_token.as_str();
        let per_workspace = self.executor.servers.has_any(&tenant).await?;
        let catalog = match request.workspace_id.as_str() {
            "" => self.executor.catalog.clone(),
            id => {
                let id = parse("workspace_id", id)?;
                match per_workspace {
                    true => {
                        // Whoever only reads makes nothing.
                        let make = caller.kind == Kind::Service;
                        let make = make || self.is_there(&tenant, id).await?;
                        self.executor.catalog_of(&tenant, id, make).await?
                    }
                    false => self.executor.catalog.clone(),
                }
            }
        };
        // Of tools that come and go, a cursor need not name one that is still there.
        if !after.is_empty() && catalog.get(after).is_none() && !per_workspace {
            return Err(Error::InvalidCursor.into());
        }
        let mut rest = catalog.after(after);
        let (mut tools, mut bytes) = (Vec::<pb::Tool>::new(), 0);
        let next_page_token = loop {
            let Some(tool) = rest.next().map(pb::Tool::from) else { break String::new() };
            bytes += tool.description.len() + tool.input_schema_json.len();
            match tools.last() {
                Some(last) if tools.len() == size || bytes > LARGEST_LIST => {
                    break last.name.clone();
                }
                _ => tools.push(tool),
            }
        };
        let hook_events = self.executor.policies.hook_events(&tenant).await?;
        Ok(Response::new(pb::ListToolsResponse {
            tools,
            next_page_token,
            per_workspace,
            hook_events,
        }))
    }

    async fn evaluate(
        &self,
        request: Request<pb::EvaluateRequest>,
    ) -> Result<Response<pb::EvaluateResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let mut call = decode(tenant, request.into_inner().call)?;
        let catalog = self.executor.catalog_for(&call).await?;
        let Executor { hooks, outputs, policies, .. } = &*self.executor;
        let policy = policies.of(&call.tenant, call.workspace_id).await?;
        policy.govern(&mut call);
        let judges = Judges { catalog: &catalog, hooks, outputs, policy: &policy };
        let Decided { evaluation, facts, input_json } = judges.decide(call).await;
        let evaluation = Some(evaluation);
        Ok(Response::new(pb::EvaluateResponse { evaluation, facts, input_json }))
    }

    async fn execute(
        &self,
        request: Request<pb::ExecuteRequest>,
    ) -> Result<Response<BoxStream<pb::ExecuteResponse>>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let terms = Terms { patience: patience(request.timeout_ms)?, approved: request.approved };
        let mut call = decode(tenant, request.call)?;
        let policy = self.executor.policies.of(&call.tenant, call.workspace_id).await?;
        policy.govern(&mut call);
        let room = self.executor.prepare(&call.tenant)?;
        store::admit(&self.db, &call).await?;
        let answers = self.executor.clone().start(self.db.clone(), room, call, policy, terms);
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn run_hooks(
        &self,
        request: Request<pb::RunHooksRequest>,
    ) -> Result<Response<pb::RunHooksResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = turn_hooks::decode(tenant, request.into_inner())?;
        Ok(Response::new(turn_hooks::run(&self.db, &self.executor, request).await?))
    }

    async fn raise_epoch(
        &self,
        request: Request<pb::RaiseEpochRequest>,
    ) -> Result<Response<pb::RaiseEpochResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let session_id: SessionId = parse("session_id", &request.session_id)?;
        let epoch = epoch("epoch", request.epoch)?;
        let epoch = store::raise_epoch(&self.db, &tenant, session_id, epoch).await?;
        Ok(Response::new(pb::RaiseEpochResponse { epoch }))
    }
}

impl Api {
    async fn is_there(&self, tenant: &Tenant, id: WorkspaceId) -> Result<bool> {
        Ok(store::workspaces::get(&self.db, tenant, id).await?.is_some())
    }
}

fn decode(tenant: Tenant, call: Option<pb::Call>) -> Result<Call> {
    let call = call.ok_or_else(|| invalid("call", "is missing"))?;
    if call.input_json.len() > LARGEST_INPUT {
        return Err(invalid("call.input_json", "is larger than 1 MiB"));
    }
    for (field, id) in [("call.turn_id", &call.turn_id), ("call.step_id", &call.step_id)] {
        if id.len() > LONGEST_ID {
            return Err(invalid(field, "is longer than 100 characters"));
        }
    }
    let permissions = call.permissions.unwrap_or_default();
    if permissions.within.len() > MOST_ANCESTORS {
        return Err(invalid("call.permissions.within", "are more than 32"));
    }
    for layer in std::iter::once(&permissions).chain(&permissions.within) {
        bounded(layer)?;
    }
    Ok(Call {
        tenant,
        session_id: parse("call.session_id", &call.session_id)?,
        epoch: epoch("call.epoch", call.epoch)?,
        turn_id: call.turn_id,
        step_id: call.step_id,
        tool_call_id: parse("call.tool_call_id", &call.tool_call_id)?,
        tool: call.tool,
        input_json: call.input_json,
        workspace_id: parse("call.workspace_id", &call.workspace_id)?,
        permissions,
        headless: call.headless,
    })
}

fn bounded(permissions: &pb::Permissions) -> Result<()> {
    if permissions.rules.len() > MOST_RULES {
        return Err(invalid("call.permissions.rules", "are more than 1,000"));
    }
    for (field, scope) in [
        ("call.permissions.tools", &permissions.tools),
        ("call.permissions.paths", &permissions.paths),
        ("call.permissions.hosts", &permissions.hosts),
        ("call.permissions.commands", &permissions.commands),
    ] {
        if scope.len() > MOST_IN_SCOPE {
            return Err(invalid(field, "are more than 200"));
        }
    }
    Ok(())
}

fn parse<T: std::str::FromStr<Err: ToString>>(field: &'static str, text: &str) -> Result<T> {
    text.parse().map_err(|error: T::Err| invalid(field, error.to_string()))
}

fn invalid(field: &'static str, problem: impl Into<String>) -> Error {
    Error::Invalid { field, problem: problem.into() }
}

fn epoch(field: &'static str, epoch: i64) -> Result<i64> {
    match epoch {
        0.. => Ok(epoch),
        _ => Err(invalid(field, "is negative")),
    }
}

/// How long the caller is willing to wait; zero leaves it to the tool.
fn patience(timeout_ms: i32) -> Result<Option<Duration>> {
    match timeout_ms {
        0 => Ok(None),
        1..=LONGEST_TIMEOUT_MS => Ok(Some(Duration::from_millis(timeout_ms as u64))),
        _ => Err(invalid("timeout_ms", "is not between 0 and 3600000")),
    }
}

fn page_size(size: i32) -> Result<usize> {
    match size {
        0 => Ok(USUAL_PAGE as usize),
        1..=LARGEST_PAGE => Ok(size as usize),
        _ => Err(invalid("page_size", "is not between 0 and 500")),
    }
}

impl From<&Entry> for pb::Tool {
    fn from(entry: &Entry) -> pb::Tool {
        let about = &entry.about;
        pb::Tool {
            name: about.name.to_string(),
            description: about.description.to_string(),
            input_schema_json: about.input_schema.to_string(),
            read_only: about.effect == Effect::Reads,
            destructive: about.effect == Effect::Destroys,
            host: if entry.tool.is_some() { "tools" } else { "session" }.into(),
            mcp_server_id: entry.place.server().unwrap_or_default().into(),
        }
    }
}

impl From<Outcome> for pb::Outcome {
    fn from(outcome: Outcome) -> pb::Outcome {
        let metadata = ToolMetadata {
            duration_ms: int32(outcome.metadata.duration.as_millis() as u64),
            truncated: outcome.metadata.truncated,
            output_bytes: int64(outcome.metadata.output_bytes),
            hook_context: outcome.metadata.hook_context,
            output_path: outcome.metadata.kept.as_ref().map(Kept::path).unwrap_or_default(),
            output_ref: match &outcome.metadata.kept {
                Some(kept) => kept.output_ref.to_string(),
                None => String::new(),
            },
            reached: outcome.metadata.reached.iter().map(Into::into).collect(),
            other_connections: int64(outcome.metadata.others.connections),
            transcript_json: String::new(),
        };
        let (result, error_kind) = match outcome.result {
            Ok(data) => (PbResult::DataJson(data.to_string()), String::new()),
            Err(failure) => (PbResult::ErrorText(failure.text), failure.kind.name().into()),
        };
        pb::Outcome { result: Some(result), metadata: Some(metadata), error_kind }
    }
}

impl From<&Reached> for tool_metadata::Reached {
    fn from(reached: &Reached) -> tool_metadata::Reached {
        tool_metadata::Reached {
            host: reached.host.name.clone(),
            port: reached.host.port.into(),
            address: reached.address.ip().to_string(),
            connections: int64(reached.traffic.connections),
            sent_bytes: int64(reached.traffic.sent_bytes),
            received_bytes: int64(reached.traffic.received_bytes),
        }
    }
}
