//! A running service and the verbs that the tests are written in.

use std::{env, path::PathBuf, time::Duration};

use chassis::{Auth, Caller, Peer};
use clap::Parser as _;
use proto::{
    event::v1::{Event, Payload},
    tools::v1::{
        Call, EvaluateRequest, EvaluateResponse, ExecuteRequest, ExecuteResponse, Permissions,
        RaiseEpochRequest, ReadOutputRequest, Rule, execute_response::Item,
        outcome::Result as PbResult, output_service_client::OutputServiceClient, rule::Action,
        tool_service_client::ToolServiceClient,
    },
};
use serde_json::Value;
use sqlx::{ConnectOptions as _, PgPool};
use tempfile::TempDir;
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Code, Status, Streaming, transport::Channel};
use tonic_types::StatusExt as _;
use tools::Config;

chassis::id!(SessionId, "ses");
chassis::id!(ToolCallId, "call");
chassis::id!(WorkspaceId, "ws");

/// In flags: where the service itself is.
const HERE: &str = "here";

const SECRET: &str = "a secret that is long enough to be one";

pub struct World {
    pub client: ToolServiceClient<Channel>,
    pub peer: Peer,
    pub caller: Caller,
    pub workspaces: PathBuf,
    pub db: PgPool,
    flags: Vec<String>,
    folder: Option<TempDir>,
    _stop: DropGuard,
}

impl World {
    pub async fn start(db: PgPool) -> World {
        World::with(db, &[]).await
    }

    pub async fn with(db: PgPool, flags: &[&str]) -> World {
        let folder = tempfile::tempdir().unwrap();
        World::launch(db, folder, flags).await
    }

    /// One of several, with a disk of its own.
    pub async fn replica(db: &PgPool) -> World {
        World::with(db.clone(), &["--advertise", HERE]).await
    }

    /// Another process on the same database and disk, after this one is gone.
    pub async fn restart(self) -> World {
        self.stop().start().await
    }

    /// Ends the service and keeps what it stood on.
    pub fn stop(mut self) -> Stopped {
        let flags = std::mem::take(&mut self.flags);
        Stopped { db: self.db.clone(), folder: self.folder.take().unwrap(), flags }
    }

    async fn launch(db: PgPool, folder: TempDir, flags: &[&str]) -> World {
        let workspaces = folder.path().join("workspaces");
        let url = db.connect_options().to_url_lossy();
        let init = sandbox_init();
        let mut args =
            vec!["tools", "--auth-internal-secret", SECRET, "--database-url", url.as_str()];
        // All services are configured alike; this one does not use Redis.
        args.extend(["--redis-url", "redis://127.0.0.1:1"]);
        args.extend(["--workspaces-dir", workspaces.to_str().unwrap()]);
        let outputs = folder.path().join("outputs");
        args.extend(["--outputs-dir", outputs.to_str().unwrap()]);
        if !flags.contains(&"--sandbox-init") {
            args.extend(["--sandbox-init", init.to_str().unwrap()]);
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        args.extend(flags.iter().map(|flag| if *flag == HERE { address.as_str() } else { flag }));
        let config = Config::parse_from(args);

        let stop = CancellationToken::new();
        let (served, stopped) = (config.clone(), stop.clone());
        tokio::spawn(async move { tools::serve(served, listener, stopped).await.unwrap() });

        let auth = Auth::new("session", &config.chassis.auth, db.clone()).await.unwrap();
        let peer = Peer::new("tools", &address, &config.chassis.tls, &auth).unwrap();
        World {
            client: ToolServiceClient::new(peer.channel()),
            peer,
            caller: Caller::service("acme".parse().unwrap(), "tests"),
            workspaces,
            flags: flags.iter().map(|flag| flag.to_string()).collect(),
            db,
            folder: Some(folder),
            _stop: stop.drop_guard(),
        }
    }

    /// A call that has everything but a reason to exist.
    pub fn call(&self, tool: &str, input: Value) -> Call {
        Call {
            session_id: SessionId::new().to_string(),
            epoch: 1,
            turn_id: "turn_1".into(),
            step_id: "step_1".into(),
            tool_call_id: ToolCallId::new().to_string(),
            tool: tool.into(),
            input_json: input.to_string(),
            workspace_id: WorkspaceId::new().to_string(),
            ..Call::default()
        }
    }

    /// A call of `bash` by an agent that may do so.
    pub fn bash(&self, command: &str) -> Call {
        let mut call = self.call("bash", serde_json::json!({ "command": command }));
        call.permissions = Some(Permissions {
            rules: vec![rule("bash", "*", Action::Allow)],
            ..Permissions::default()
        });
        call
    }

    /// Runs a tool in a workspace that may have been used before.
    pub async fn tool(&self, workspace_id: &str, tool: &str, input: Value) -> Ended {
        let call = Call { workspace_id: workspace_id.into(), ..self.call(tool, input) };
        self.execute(call).await.unwrap()
    }

    /// A workspace as a command left it.
    pub async fn workspace(&self, command: &str) -> String {
        let call = self.bash(command);
        assert_eq!(self.execute(call.clone()).await.unwrap().data()["exit_code"], 0);
        call.workspace_id
    }

    /// Runs a command in a workspace that was used before.
    pub async fn tool_allowed(&self, workspace_id: &str, command: &str) -> Ended {
        let call = Call { workspace_id: workspace_id.into(), ..self.bash(command) };
        self.execute(call).await.unwrap()
    }

    /// What a command prints in a workspace that was used before.
    pub async fn prints(&self, workspace_id: &str, command: &str) -> String {
        let call = Call { workspace_id: workspace_id.into(), ..self.bash(command) };
        self.execute(call).await.unwrap().data()["output"].as_str().unwrap().to_owned()
    }

    /// Where the files of a workspace are.
    pub fn folder(&self, workspace_id: &str) -> PathBuf {
        self.workspaces.join(self.caller.tenant.as_str()).join(workspace_id)
    }

    pub async fn evaluate(&self, call: Call) -> Result<EvaluateResponse, Status> {
        let request = self.peer.request(&self.caller, EvaluateRequest { call: Some(call) });
        Ok(self.client.clone().evaluate(request).await?.into_inner())
    }

    pub async fn begin(&self, call: Call) -> Result<Streaming<ExecuteResponse>, Status> {
        self.request(ExecuteRequest { call: Some(call), ..ExecuteRequest::default() }).await
    }

    /// Runs a call that a person approved of.
    pub async fn execute_approved(&self, call: Call) -> Result<Ended, Status> {
        let request =
            ExecuteRequest { call: Some(call), approved: true, ..ExecuteRequest::default() };
        self.finish(self.request(request).await?).await
    }

    /// Runs a call of somebody who does not wait for long.
    pub async fn execute_within(&self, call: Call, timeout_ms: i32) -> Result<Ended, Status> {
        let request = ExecuteRequest { call: Some(call), timeout_ms, ..ExecuteRequest::default() };
        self.finish(self.request(request).await?).await
    }

    pub fn database(&self) -> PgPool {
        self.db.clone()
    }

    async fn request(&self, request: ExecuteRequest) -> Result<Streaming<ExecuteResponse>, Status> {
        let request = self.peer.request(&self.caller, request);
        Ok(self.client.clone().execute(request).await?.into_inner())
    }

    /// Runs a call to its end.
    pub async fn execute(&self, call: Call) -> Result<Ended, Status> {
        self.finish(self.begin(call).await?).await
    }

    pub async fn finish(&self, mut answers: Streaming<ExecuteResponse>) -> Result<Ended, Status> {
        let mut facts = Vec::new();
        let mut outcome = None;
        let reading = async {
            while let Some(answer) = answers.message().await? {
                assert!(outcome.is_none(), "something follows the outcome");
                match answer.item.unwrap() {
                    Item::Fact(fact) => facts.push(*fact),
                    Item::Outcome(end) => outcome = Some(end),
                }
            }
            Ok::<_, Status>(())
        };
        timeout(Duration::from_secs(60), reading).await.expect("the call ends")?;
        Ok(Ended { facts, outcome: outcome.expect("there is an outcome") })
    }

    pub async fn raise_epoch(&self, session_id: &str, epoch: i64) -> Result<i64, Status> {
        let request = RaiseEpochRequest { session_id: session_id.into(), epoch };
        let request = self.peer.request(&self.caller, request);
        Ok(self.client.clone().raise_epoch(request).await?.into_inner().epoch)
    }

    /// All of a kept output.
    pub async fn output(&self, output_ref: &str) -> String {
        let request = ReadOutputRequest { output_ref: output_ref.into(), ..Default::default() };
        let request = self.peer.request(&self.caller, request);
        let mut client = OutputServiceClient::new(self.peer.channel());
        let answer = client.read_output(request).await.unwrap().into_inner();
        String::from_utf8(answer.data).unwrap()
    }

    pub fn read(&self, call: &Call, file: &str) -> String {
        std::fs::read_to_string(self.folder(&call.workspace_id).join(file)).unwrap_or_default()
    }
}

/// A service that is gone.
pub struct Stopped {
    db: PgPool,
    folder: TempDir,
    flags: Vec<String>,
}

impl Stopped {
    pub async fn start(self) -> World {
        let flags: Vec<_> = self.flags.iter().map(String::as_str).collect();
        World::launch(self.db, self.folder, &flags).await
    }
}

pub fn rule(permission: &str, pattern: &str, action: Action) -> Rule {
    Rule {
        permission: permission.into(),
        pattern: pattern.into(),
        action: action.into(),
        ..Rule::default()
    }
}

/// A call that ended, whichever way.
#[derive(Debug)]
pub struct Ended {
    pub facts: Vec<Event>,
    pub outcome: proto::tools::v1::Outcome,
}

impl Ended {
    pub fn data(&self) -> Value {
        match self.outcome.result.as_ref().unwrap() {
            PbResult::DataJson(json) => serde_json::from_str(json).unwrap(),
            PbResult::ErrorText(text) => panic!("{}: {text}", self.outcome.error_kind),
        }
    }

    pub fn error(&self) -> (&str, &str) {
        match self.outcome.result.as_ref().unwrap() {
            PbResult::ErrorText(text) => (&self.outcome.error_kind, text),
            PbResult::DataJson(json) => panic!("no error: {json}"),
        }
    }

    pub fn names(&self) -> Vec<&str> {
        self.facts.iter().map(|fact| fact.r#type.as_str()).collect()
    }

    /// What the progress facts say together.
    pub fn progress(&self) -> String {
        let text = |fact: &Event| match &fact.payload {
            Some(Payload::ToolProgress(progress)) => progress.text.clone(),
            _ => String::new(),
        };
        self.facts.iter().map(text).collect()
    }
}

/// `Code REASON: message`
pub fn explain(status: &Status) -> String {
    let details = status.get_error_details();
    let reason = details.error_info().map_or("no reason", |info| info.reason.as_str());
    format!("{:?} {reason}: {}", status.code(), status.message())
}

pub fn assert_code(status: &Status, code: Code) {
    assert_eq!(status.code(), code, "{status:?}");
}

/// Built for the sandbox's own tests, one folder above ours.
pub fn sandbox_init() -> PathBuf {
    let tests = env::current_exe().unwrap();
    let path = tests.parent().unwrap().with_file_name("sandbox-init");
    assert!(path.exists(), "sandbox-init is not built: run `cargo build -p sandbox` first");
    path
}
