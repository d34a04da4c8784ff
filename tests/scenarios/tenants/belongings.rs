//! One of everything that a tenant can have.

use std::{collections::BTreeMap, time::Duration};

use local::Service;
use proto::{
    models::v1::{Limit, PutBudgetRequest, PutLimitRequest},
    session::v1::{
        AcknowledgeRequest, CreateKeyRequest, CreateSessionRequest, ListSubagentsRequest, Manifest,
        Memory, StartTrialRequest, WriteMemoryRequest, manifest::Mode, message::Role,
        subscribe_request::From,
    },
    tools::v1::{
        CreateWorkspaceRequest, Hook, ListFilesRequest, McpServer, Permissions,
        PutMcpServerRequest, PutRuleRequest, ReadFileRequest, Rule, SnapshotWorkspaceRequest,
        StartProcessRequest, file_service_client::FileServiceClient, hook::Target as HookTarget,
        mcp_server::Transport, process_service_client::ProcessServiceClient, rule::Action,
        workspace_service_client::WorkspaceServiceClient,
    },
    triggers::v1::{
        Api, CreateTriggerRequest, ListFiringsRequest, RunTriggerRequest, Target, Trigger,
        target::Session as TargetSession, trigger::Kind,
    },
};
use serde_json::json;
use tests::{Client, Session, item};
use tokio::time::sleep;

/// In everything that anybody of the first tenant ever wrote.
pub const SECRET: &str = "kumquat";

const ASK: &str = r#"call question {"questions": [{"prompt": "Who?", "free_text": true}]}"#;

/// What goes into fields: `Message.field` where a message wants something special, else `field`.
#[derive(Default)]
pub struct Belongings(BTreeMap<String, String>);

impl Belongings {
    pub fn get(&self, field: &str) -> Option<String> {
        let plain = field.split_once('.').map_or(field, |(_, plain)| plain);
        self.0.get(field).or_else(|| self.0.get(plain)).cloned()
    }

    /// Those that only we could have made up: a prefix, and 26 letters and digits.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        let is_id = |id: &str| {
            id.rsplit_once('_').is_some_and(|(_, id)| {
                id.len() == 26 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
            })
        };
        self.0.values().map(String::as_str).filter(move |id| is_id(id))
    }

    fn keep(&mut self, field: &str, id: impl Into<String>) {
        self.0.insert(field.to_owned(), id.into());
    }
}

/// Makes one of everything.
pub async fn make(client: &Client, tenant: &str) -> Belongings {
    let mut own = Belongings::default();
    let name = |what: &str| format!("{tenant}-{what}");
    // Only of one tenant may it be found nowhere else.
    let secret = if tenant == super::OWNER { SECRET } else { "nothing" };
    names(&mut own, tenant);
    agents(client, tenant, secret).await;
    let request = CreateWorkspaceRequest {
        request_id: name("workspace"),
        project: name("project"),
        ..CreateWorkspaceRequest::default()
    };
    let mut workspaces = WorkspaceServiceClient::new(client.to(Service::Tools));
    let workspace = workspaces.create_workspace(request).await.unwrap().into_inner();
    let workspace_id = workspace.workspace.unwrap().workspace_id;
    for path in [format!("{tenant}-dir/file"), format!("{tenant}-dir/other")] {
        client.write_file(&workspace_id, &path, secret).await;
    }
    let request = SnapshotWorkspaceRequest {
        workspace_id: workspace_id.clone(),
        request_id: name("snapshot"),
    };
    let snapshot = workspaces.snapshot_workspace(request).await.unwrap().into_inner();
    own.keep("snapshot_id", snapshot.snapshot_id);
    own.keep("workspace_id", &workspace_id);

    let request = CreateSessionRequest {
        request_id: name("session"),
        title: secret.into(),
        agent: name("agent"),
        workspace_id: workspace_id.clone(),
        ..CreateSessionRequest::default()
    };
    let session = client.sessions().create_session(request).await.unwrap().into_inner();
    let session = Session { client: client.clone(), id: session.session.unwrap().session_id };
    own.keep("session_id", &session.id);
    own.keep("root_session_id", &session.id);
    finished_turn(&mut own, &session, secret).await;
    waiting_turns(&mut own, client, tenant, secret).await;
    subagent(&mut own, client, tenant, secret).await;
    work(&mut own, client, tenant, secret, &workspace_id).await;
    triggers(&mut own, client, tenant, secret, &session.id).await;
    policies(client, tenant, secret).await;
    limits(&mut own, client, tenant).await;

    let request = StartTrialRequest {
        request_id: name("trial"),
        session_id: session.id.clone(),
        dataset_id: name("dataset"),
        dataset_version: secret.into(),
        benchmark_task_id: name("benchmark"),
        configuration_id: name("configuration"),
        role: "baseline".into(),
    };
    let trial = client.benchmarks().start_trial(request).await.unwrap().into_inner();
    own.keep("trial_id", trial.trial_id);
    let memory = Memory {
        scope: "project".into(),
        project: workspace_id.clone(),
        name: name("name"),
        description: secret.into(),
        r#type: "user".into(),
        body: secret.into(),
        ..Memory::default()
    };
    for message in ["Memory", "ReadMemoryRequest", "ListMemoriesRequest", "DeleteMemoryRequest"] {
        own.keep(&format!("{message}.project"), &workspace_id);
    }
    let request = WriteMemoryRequest { memory: Some(memory) };
    client.memories().write_memory(request).await.unwrap();
    let request = CreateKeyRequest {
        name: secret.into(),
        subject: secret.into(),
        scopes: vec!["read".into()],
        expire_time: None,
    };
    let key = client.keys().create_key(request).await.unwrap().into_inner();
    own.keep("key_id", key.key.unwrap().key_id);
    let request = StartProcessRequest {
        request_id: name("process"),
        session_id: session.id.clone(),
        command: format!("echo {secret}; sleep 600"),
        workspace_id: workspace_id.clone(),
        pty: true,
        rows: 24,
        columns: 80,
    };
    let mut processes = ProcessServiceClient::new(client.to(Service::Tools));
    let process = processes.start_process(request).await.unwrap().into_inner().process.unwrap();
    own.keep("process_id", process.process_id);
    own
}

/// What people call things, or could.
fn names(own: &mut Belongings, tenant: &str) {
    for field in [
        "agent",
        "name",
        "project",
        "channel",
        "key",
        "session_key",
        "hook_id",
        "dataset_id",
        "configuration_id",
        "schedule_id",
        "delivery_id",
        "evidence_id",
        "request_id",
        "tenant_id",
        "step_id",
        "tool_call_id",
        "secret_refs",
    ] {
        own.keep(field, format!("{tenant}-{}", field.trim_end_matches("_id").replace('_', "-")));
    }
    for (request, id) in [
        ("CreateWorkspace", "workspace"),
        ("SnapshotWorkspace", "snapshot"),
        ("CreateSession", "session"),
        ("CreateTask", "task"),
        ("CreateJob", "job"),
        ("CreateTrigger", "trigger"),
        ("RunTrigger", "run"),
        ("StartTrial", "trial"),
        ("StartProcess", "process"),
        ("PutBudget", "budget"),
    ] {
        own.keep(&format!("{request}Request.request_id"), format!("{tenant}-{id}"));
    }
    own.keep("mcp_server_id", format!("{tenant}mcp"));
    own.keep("subscription", format!("notifications/{tenant}"));
    own.keep("benchmark_task_id", format!("{tenant}-benchmark"));
    own.keep("baseline_configuration_id", format!("{tenant}-configuration"));
    own.keep("candidate_configuration_id", format!("{tenant}-configuration"));
    own.keep("path", format!("{tenant}-dir/file"));
    own.keep("ListFilesRequest.path", format!("{tenant}-dir"));
    own.keep("MoveFileRequest.path", format!("{tenant}-dir/other"));
    own.keep("new_path", format!("{tenant}-dir/moved"));
}

async fn agents(client: &Client, tenant: &str, secret: &str) {
    let manifest = |mode: Mode, action: Action| Manifest {
        description: secret.into(),
        mode: mode.into(),
        prompt: secret.into(),
        model: "scripted/demo".into(),
        permissions: Some(Permissions {
            rules: vec![rule("bash", "*", action)],
            ..Permissions::default()
        }),
        ..Manifest::default()
    };
    for (agent, mode, action) in [
        ("agent", Mode::All, Action::Allow),
        ("careful", Mode::All, Action::Ask),
        ("worker", Mode::Subagent, Action::Allow),
    ] {
        client.put_manifest(&format!("{tenant}-{agent}"), manifest(mode, action)).await;
    }
}

/// A turn with a tool whose output is more than the log takes, and somebody who read about it.
async fn finished_turn(own: &mut Belongings, session: &Session, secret: &str) {
    let script = format!(
        "say {secret}\ncall bash {{\"command\": \"yes {secret} | head -c 100000\"}}\n---\nsay {secret}"
    );
    let seen = session.run(&script).await;
    let spilled = seen.iter().find(|event| event.r#type == "output.spilled").unwrap();
    own.keep("output_ref", &spilled.output_ref);
    own.keep("ref", &spilled.output_ref);
    own.keep("Call.tool_call_id", &spilled.tool_call_id);
    own.keep("Call.step_id", &spilled.step_id);
    let messages = session.messages().await;
    let asked = messages.iter().find(|message| message.role() == Role::User).unwrap();
    own.keep("message_id", &asked.message_id);
    own.keep("turn_id", &asked.turn_id);
    drop(session.subscribe_on(&own.get("channel").unwrap(), From::Live(true)).await);
    let (session_id, channel) = (session.id.clone(), own.get("channel").unwrap());
    let request = AcknowledgeRequest { session_id, channel, sequence: 1 };
    session.client.streams().acknowledge(request).await.unwrap();
}

/// A question with a turn in the queue behind it, and a call that a person has to allow.
async fn waiting_turns(own: &mut Belongings, client: &Client, tenant: &str, secret: &str) {
    let asking = client.create_session_with(&format!("{tenant}-agent")).await;
    let question = asking.asks(ASK).await;
    let queued = asking.submit(&format!("say {secret}")).await;
    for request in ["AnswerQuestionRequest", "RejectQuestionRequest"] {
        own.keep(&format!("{request}.session_id"), &asking.id);
        own.keep(&format!("{request}.action_id"), &question.action_id);
    }
    for request in ["EditQueuedTurn", "CancelQueuedTurn", "PromoteQueuedTurn"] {
        own.keep(&format!("{request}Request.session_id"), &asking.id);
        own.keep(&format!("{request}Request.turn_id"), &queued.turn_id);
    }
    for request in ["ListQueueRequest", "ReorderQueueRequest", "ListActionsRequest"] {
        own.keep(&format!("{request}.session_id"), &asking.id);
    }
    own.keep("turn_ids", &queued.turn_id);
    own.keep("InterruptTurnRequest.session_id", &asking.id);
    own.keep("InterruptTurnRequest.turn_id", &question.turn_id);

    let careful = client.create_session_with(&format!("{tenant}-careful")).await;
    let action = careful.asks(&format!("call bash {{\"command\": \"echo {secret}\"}}")).await;
    own.keep("RespondActionRequest.session_id", &careful.id);
    own.keep("action_id", &action.action_id);
}

/// A child that waits for a person.
async fn subagent(own: &mut Belongings, client: &Client, tenant: &str, secret: &str) {
    let session = client.create_session_with(&format!("{tenant}-agent")).await;
    let prompt = format!("{secret}\n#!script\n{ASK}");
    let input = json!({
        "subagent_type": format!("{tenant}-worker"), "prompt": prompt, "background": true,
    });
    session.run(&format!("call task {input}\n---\nsay It works.")).await;
    let request =
        ListSubagentsRequest { session_id: session.id.clone(), ..ListSubagentsRequest::default() };
    own.keep("ListSubagentsRequest.session_id", &session.id);
    own.keep("parent_session_id", &session.id);
    let waiting = session.eventually(async || {
        let listed = client.subagents().list_subagents(request.clone()).await.unwrap();
        let mut children = listed.into_inner().subagents.into_iter();
        children.find(|child| child.status == "waiting")
    });
    own.keep("subagent_id", waiting.await.subagent_id);
}

async fn work(
    own: &mut Belongings,
    client: &Client,
    tenant: &str,
    secret: &str,
    workspace_id: &str,
) {
    let draft = client.create_task_that("say no", |request| {
        request.request_id = format!("{tenant}-task");
        request.title = secret.into();
        request.acceptance = vec!["words".into()];
        request.draft = true;
    });
    let task = draft.await;
    own.keep("task_id", &task.task_id);
    own.keep("parent_task_id", &task.task_id);
    let other = client.create_task_that("say no", |request| {
        request.title = secret.into();
        request.draft = true;
    });
    let other = other.await;
    own.keep("target_task_id", &other.task_id);
    own.keep("blocked_by", &other.task_id);

    let job = client.create_job_that(vec![item(&format!("say {secret}"))], |request| {
        request.request_id = format!("{tenant}-job");
        request.instruction = secret.into();
        request.workspace_id = workspace_id.into();
    });
    let job = job.await;
    let job = client.job_when(&job, "job.completed", 1).await;
    own.keep("job_id", &job.job_id);
    own.keep("item_id", &client.job_items(&job, "").await[0].item_id);
}

/// A trigger that fired once.
async fn triggers(
    own: &mut Belongings,
    client: &Client,
    tenant: &str,
    secret: &str,
    session_id: &str,
) {
    let session = TargetSession::SessionId(session_id.into());
    let trigger = Trigger {
        name: secret.into(),
        kind: Some(Kind::Api(Api::default())),
        target: Some(Target { session: Some(session), ..Target::default() }),
        template: format!("{secret}\n#!script\nsay ok"),
        ..Trigger::default()
    };
    let request = CreateTriggerRequest {
        request_id: format!("{tenant}-trigger"),
        trigger: Some(trigger),
        ..CreateTriggerRequest::default()
    };
    let created = client.triggers().create_trigger(request).await.unwrap().into_inner();
    let trigger_id = created.trigger.unwrap().trigger_id;
    let run = RunTriggerRequest {
        trigger_id: trigger_id.clone(),
        request_id: format!("{tenant}-run"),
        payload_json: "{}".into(),
    };
    client.triggers().run_trigger(run).await.unwrap();
    own.keep("trigger_id", &trigger_id);
    own.keep("wakeup_id", &trigger_id);
    loop {
        let request =
            ListFiringsRequest { trigger_id: trigger_id.clone(), ..ListFiringsRequest::default() };
        let firings = client.triggers().list_firings(request).await.unwrap().into_inner().firings;
        if firings[0].status == "submitted" {
            return own.keep("firing_id", &firings[0].firing_id);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// A rule, a hook and a server that hold for nothing that is done here.
async fn policies(client: &Client, tenant: &str, secret: &str) {
    let project = format!("{tenant}-project");
    let rule = rule("bash", "*", Action::Allow);
    let request = PutRuleRequest { project: project.clone(), rule: Some(rule) };
    client.policies().put_rule(request).await.unwrap();
    let request = PutRuleRequest {
        project: project.clone(),
        rule: Some(self::rule(secret, secret, Action::Deny)),
    };
    client.policies().put_rule(request).await.unwrap();
    let hook = Hook {
        hook_id: format!("{tenant}-hook"),
        event: "pre_tool_use".into(),
        tools: "nothing".into(),
        target: Some(HookTarget::Command(secret.into())),
        ..Hook::default()
    };
    let request = proto::tools::v1::PutHookRequest { project: project.clone(), hook: Some(hook) };
    client.policies().put_hook(request).await.unwrap();
    let server = McpServer {
        mcp_server_id: format!("{tenant}mcp"),
        transport: Some(Transport::Url(format!("https://{secret}.invalid/"))),
        ..McpServer::default()
    };
    let request = PutMcpServerRequest { project, mcp_server: Some(server) };
    client.policies().put_mcp_server(request).await.unwrap();
}

async fn limits(own: &mut Belongings, client: &Client, tenant: &str) {
    let limit = Limit {
        limit: "requests_per_minute".into(),
        scope: "subject".into(),
        key: format!("{tenant}-key"),
        value: 1_000,
        ..Limit::default()
    };
    client.limits().put_limit(PutLimitRequest { limit: Some(limit) }).await.unwrap();
    let request = PutBudgetRequest {
        request_id: format!("{tenant}-budget"),
        name: format!("{tenant}-name"),
        amount_micros: 1_000_000,
        ..PutBudgetRequest::default()
    };
    let budget = client.limits().put_budget(request).await.unwrap().into_inner();
    own.keep("budget_id", budget.budget.unwrap().budget_id);
}

/// Their file and its neighbours, as they read them.
pub async fn file(client: &Client, own: &Belongings) -> (Vec<u8>, usize) {
    let workspace_id = own.get("workspace_id").unwrap();
    let mut files = FileServiceClient::new(client.to(Service::Tools));
    let request = ReadFileRequest {
        workspace_id: workspace_id.clone(),
        path: own.get("path").unwrap(),
        ..ReadFileRequest::default()
    };
    let data = files.read_file(request).await.unwrap().into_inner().data;
    let path = own.get("ListFilesRequest.path").unwrap();
    let request = ListFilesRequest { workspace_id, path, ..ListFilesRequest::default() };
    let listed = files.list_files(request).await.unwrap().into_inner().files;
    (data, listed.len())
}

fn rule(permission: &str, pattern: &str, action: Action) -> Rule {
    Rule {
        permission: permission.into(),
        pattern: pattern.into(),
        action: action.into(),
        ..Rule::default()
    }
}
