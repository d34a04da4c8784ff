//! Processes that outlive the call that started them.

use std::time::Duration;

use chassis::Caller;
use proto::tools::v1::{
    AttachProcessRequest, EndSessionRequest, ListProcessesRequest, Process, ReadOutputRequest,
    ResizeProcessRequest, SignalProcessRequest, StartProcessRequest, TerminateProcessRequest,
    WriteProcessStdinRequest,
    attach_process_response::{Item, Output},
    output_service_client::OutputServiceClient,
    process::Status as State,
    process_service_client::ProcessServiceClient,
};
use sqlx::PgPool;
use tokio::time::timeout;
use tonic::{Status, Streaming, transport::Channel};

use crate::world::{SessionId, WorkspaceId, World, explain};

const PATIENCE: Duration = Duration::from_secs(60);

/// Somebody who starts processes for a session.
pub struct Shell<'a> {
    world: &'a World,
    caller: Caller,
    pub session_id: String,
    pub workspace_id: String,
}

impl Shell<'_> {
    pub fn new(world: &World) -> Shell<'_> {
        Shell {
            world,
            caller: world.caller.clone(),
            session_id: SessionId::new().to_string(),
            workspace_id: WorkspaceId::new().to_string(),
        }
    }

    pub fn within(world: &World, workspace_id: String) -> Shell<'_> {
        Shell { workspace_id, ..Shell::new(world) }
    }

    fn client(&self) -> ProcessServiceClient<Channel> {
        ProcessServiceClient::new(self.world.peer.channel())
    }

    fn request<T>(&self, message: T) -> tonic::Request<T> {
        self.world.peer.request(&self.caller, message)
    }

    pub fn command(&self, request_id: &str, command: &str) -> StartProcessRequest {
        StartProcessRequest {
            request_id: request_id.into(),
            session_id: self.session_id.clone(),
            workspace_id: self.workspace_id.clone(),
            command: command.into(),
            ..StartProcessRequest::default()
        }
    }

    pub async fn try_start(&self, request: StartProcessRequest) -> Result<Process, Status> {
        let started = self.client().start_process(self.request(request)).await?;
        Ok(started.into_inner().process.unwrap())
    }

    pub async fn start(&self, command: &str) -> Process {
        let process = self.try_start(self.command(command, command)).await.unwrap();
        assert_eq!(process.status(), State::Running, "{process:?}");
        process
    }

    pub async fn attach(&self, id: &str, offset: i64) -> Result<Attached, Status> {
        let request = AttachProcessRequest { process_id: id.into(), offset };
        let stream = self.client().attach_process(self.request(request)).await?.into_inner();
        Ok(Attached { stream, next: offset })
    }

    /// Everything that a process prints, and how it ends.
    pub async fn finish(&self, id: &str) -> (String, Process) {
        let mut attached = self.attach(id, 0).await.unwrap();
        let mut printed = Vec::new();
        loop {
            match attached.next().await {
                Item::Output(output) => printed.extend(output.data),
                Item::Ended(process) => return (String::from_utf8(printed).unwrap(), process),
            }
        }
    }

    pub async fn write(&self, id: &str, data: &str, close: bool) -> Result<(), Status> {
        let data = data.as_bytes().to_vec();
        let request = WriteProcessStdinRequest { process_id: id.into(), data, close };
        self.client().write_process_stdin(self.request(request)).await.map(drop)
    }

    async fn resize(&self, id: &str, rows: i32, columns: i32) -> Result<(), Status> {
        let request = ResizeProcessRequest { process_id: id.into(), rows, columns };
        self.client().resize_process(self.request(request)).await.map(drop)
    }

    async fn signal(&self, id: &str, signal: &str) -> Result<(), Status> {
        let request = SignalProcessRequest { process_id: id.into(), signal: signal.into() };
        self.client().signal_process(self.request(request)).await.map(drop)
    }

    pub async fn terminate(&self, id: &str) -> Result<Process, Status> {
        let request = TerminateProcessRequest { process_id: id.into() };
        let ended = self.client().terminate_process(self.request(request)).await?;
        Ok(ended.into_inner().process.unwrap())
    }

    async fn end_session(&self) {
        let request = EndSessionRequest { session_id: self.session_id.clone() };
        self.client().end_session(self.request(request)).await.unwrap();
    }

    async fn list(&self, page_size: i32, page_token: &str) -> (Vec<Process>, String) {
        let request = ListProcessesRequest {
            session_id: self.session_id.clone(),
            page_size,
            page_token: page_token.into(),
        };
        let listed = self.client().list_processes(self.request(request)).await.unwrap();
        let listed = listed.into_inner();
        (listed.processes, listed.next_page_token)
    }
}

pub struct Attached {
    stream: Streaming<proto::tools::v1::AttachProcessResponse>,
    next: i64,
}

impl Attached {
    async fn next(&mut self) -> Item {
        let answer = timeout(PATIENCE, self.stream.message()).await.expect("something happens");
        let item = answer.unwrap().expect("an end").item.unwrap();
        if let Item::Output(Output { offset, data, .. }) = &item {
            assert_eq!(*offset, self.next, "a gap or a duplicate");
            self.next += data.len() as i64;
        }
        item
    }

    /// Reads until `wanted` was printed.
    pub async fn hear(&mut self, wanted: &str) {
        let mut heard = Vec::new();
        while !String::from_utf8_lossy(&heard).contains(wanted) {
            match self.next().await {
                Item::Output(output) => heard.extend(output.data),
                Item::Ended(process) => panic!("{process:?} instead of {wanted:?}"),
            }
        }
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, Status>) -> String {
    explain(&result.unwrap_err())
}

#[sqlx::test(migrations = false)]
async fn a_process_is_written_to_and_followed(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::new(&world);
    let process = shell.start("echo wrong >&2; cat; exit 3").await;
    let id = &process.process_id;
    let mut attached = shell.attach(id, 0).await.unwrap();
    attached.hear("wrong\n").await;
    shell.write(id, "one\n", false).await.unwrap();
    attached.hear("one\n").await;
    shell.write(id, "two\n", true).await.unwrap();
    let (printed, ended) = shell.finish(id).await;
    assert_eq!(printed, "wrong\none\ntwo\n");
    assert_eq!((ended.status(), ended.exit_code, ended.output_bytes), (State::Failed, 3, 14));

    // Whoever comes after the end gets the same, each stream under its name.
    let mut again = shell.attach(id, 2).await.unwrap();
    let Item::Output(first) = again.next().await else { panic!("an end") };
    assert_eq!((first.stream.as_str(), first.data.as_slice()), ("stderr", b"ong\n".as_slice()));
    let Item::Output(second) = again.next().await else { panic!("an end") };
    let expected = ("stdout", b"one\ntwo\n".as_slice());
    assert_eq!((second.stream.as_str(), second.data.as_slice()), expected);

    let mut outputs = OutputServiceClient::new(world.peer.channel());
    let request = ReadOutputRequest { output_ref: ended.output_ref, offset: 10, limit: 3 };
    let read = outputs.read_output(world.peer.request(&world.caller, request)).await.unwrap();
    assert_eq!(read.into_inner().data, b"two");
}

#[sqlx::test(migrations = false)]
async fn a_start_is_idempotent(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::new(&world);
    let process = shell.start("sleep 1000").await;
    let again = shell.try_start(shell.command("sleep 1000", "sleep 1000")).await.unwrap();
    assert_eq!(again.process_id, process.process_id);
    let other = refused(shell.try_start(shell.command("sleep 1000", "sleep 1001")).await);
    assert!(other.starts_with("AlreadyExists REASON_REQUEST_ID_REUSED"), "{other}");
    shell.terminate(&process.process_id).await.unwrap();
    let over = shell.try_start(shell.command("sleep 1000", "sleep 1000")).await.unwrap();
    assert_eq!((over.process_id, over.status), (process.process_id, State::Terminated.into()));
}

#[sqlx::test(migrations = false)]
async fn a_terminal_is_resized(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::new(&world);
    let script = "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.01; done";
    let request = StartProcessRequest { pty: true, rows: 10, ..shell.command("a", script) };
    let process = shell.try_start(request).await.unwrap();
    let id = &process.process_id;
    let mut attached = shell.attach(id, 0).await.unwrap();
    attached.hear("10 80").await;
    shell.resize(id, 20, 30).await.unwrap();
    attached.hear("20 30").await;
    let plain = shell.start("sleep 1000").await;
    let refusal = refused(shell.resize(&plain.process_id, 20, 30).await);
    assert!(refusal.contains("no terminal"), "{refusal}");
    assert!(refused(shell.resize(id, 0, 30).await).contains("rows"));
}

#[sqlx::test(migrations = false)]
async fn signals_arrive_and_deadly_ones_are_told(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::new(&world);
    let script = "trap 'echo usr' USR1; echo ready; while :; do sleep 0.01; done";
    let process = shell.start(script).await;
    let id = &process.process_id;
    let mut attached = shell.attach(id, 0).await.unwrap();
    attached.hear("ready").await;
    shell.signal(id, "USR1").await.unwrap();
    attached.hear("usr").await;
    assert!(refused(shell.signal(id, "STOP").await).contains("REASON_INVALID_FIELD"));
    shell.signal(id, "KILL").await.unwrap();
    let (_, ended) = shell.finish(id).await;
    assert_eq!((ended.status(), ended.signal.as_str()), (State::Failed, "KILL"));
    for refusal in [
        refused(shell.signal(id, "TERM").await),
        refused(shell.write(id, "x", false).await),
        refused(shell.resize(id, 1, 1).await),
    ] {
        assert!(refusal.starts_with("FailedPrecondition REASON_PROCESS_OVER"), "{refusal}");
    }
}

#[sqlx::test(migrations = false)]
async fn terminating_ends_the_tree_and_can_be_repeated(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::new(&world);
    let script =
        "trap '' TERM INT; setsid --wait bash -c 'while :; do echo x >> beats; sleep 0.01; done'";
    let process = shell.start(script).await;
    let ended = shell.terminate(&process.process_id).await.unwrap();
    assert_eq!((ended.status(), ended.reason.as_str()), (State::Terminated, "tests terminated it"));
    let beats = world.folder(&process.workspace_id).join("beats");
    let before = std::fs::read(&beats).unwrap_or_default().len();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(std::fs::read(&beats).unwrap_or_default().len(), before);
    let again = shell.terminate(&process.process_id).await.unwrap();
    assert_eq!(again, ended);
}

#[sqlx::test(migrations = false)]
async fn bad_requests_are_refused_and_change_nothing(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::new(&world);
    let fine = shell.command("a", "true");
    for (wrong, field) in [
        (StartProcessRequest { request_id: String::new(), ..fine.clone() }, "request_id"),
        (StartProcessRequest { request_id: "x".repeat(101), ..fine.clone() }, "request_id"),
        (StartProcessRequest { session_id: "ses_?".into(), ..fine.clone() }, "session_id"),
        (StartProcessRequest { workspace_id: String::new(), ..fine.clone() }, "workspace_id"),
        (StartProcessRequest { command: " ".into(), ..fine.clone() }, "command"),
        (StartProcessRequest { command: "x".repeat(65_537), ..fine.clone() }, "command"),
        (StartProcessRequest { command: "a\0b".into(), ..fine.clone() }, "command"),
        (StartProcessRequest { rows: 5, ..fine.clone() }, "rows"),
        (StartProcessRequest { pty: true, rows: 1001, ..fine.clone() }, "rows"),
        (StartProcessRequest { pty: true, columns: -1, ..fine.clone() }, "columns"),
    ] {
        let refusal = refused(shell.try_start(wrong).await);
        assert!(refusal.starts_with("InvalidArgument REASON_INVALID_FIELD"), "{refusal}");
        assert!(refusal.contains(field), "{refusal}");
    }
    assert!(shell.list(0, "").await.0.is_empty());

    let process = shell.start("cat").await;
    let id = &process.process_id;
    assert!(refused(shell.attach(id, -1).await.map(drop)).contains("offset"));
    assert!(refused(shell.attach(id, 1).await.map(drop)).contains("offset"));
    assert!(refused(shell.write(id, "", false).await).contains("data"));
    assert!(refused(shell.write(id, &"x".repeat(65_537), false).await).contains("data"));
    shell.write(id, "", true).await.unwrap();
    let (_, ended) = shell.finish(id).await;
    assert_eq!(ended.status(), State::Completed);
}

#[sqlx::test(migrations = false)]
async fn input_that_nobody_reads_waits_up_to_a_limit(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::new(&world);
    let process = shell.start("sleep 1000").await;
    let piece = "x".repeat(65_536);
    let full = async {
        loop {
            if let Err(status) = shell.write(&process.process_id, &piece, false).await {
                return explain(&status);
            }
        }
    };
    let refusal = timeout(PATIENCE, full).await.unwrap();
    assert!(refusal.starts_with("ResourceExhausted REASON_OVERLOADED"), "{refusal}");

    let deaf = shell.start("exec <&-; echo deaf; sleep 1000").await;
    shell.attach(&deaf.process_id, 0).await.unwrap().hear("deaf").await;
    let closed = async {
        loop {
            if let Err(status) = shell.write(&deaf.process_id, "x", false).await {
                return explain(&status);
            }
        }
    };
    let refusal = timeout(PATIENCE, closed).await.unwrap();
    assert!(refusal.starts_with("FailedPrecondition REASON_PROCESS_INPUT_CLOSED"), "{refusal}");
}

#[sqlx::test(migrations = false)]
async fn only_so_many_run_at_once(db: PgPool) {
    let flags = ["--max-session-processes", "2", "--max-tenant-processes", "3"];
    let world = World::with(db, &flags).await;
    let (shell, other) = (Shell::new(&world), Shell::new(&world));
    let first = shell.start("sleep 1000").await;
    shell.start("sleep 1001").await;
    let refusal = refused(shell.try_start(shell.command("c", "true")).await);
    assert!(
        refusal.starts_with("ResourceExhausted REASON_PROCESS_LIMIT: the session"),
        "{refusal}"
    );
    other.start("sleep 1000").await;
    let refusal = refused(other.try_start(other.command("c", "true")).await);
    assert!(refusal.starts_with("ResourceExhausted REASON_PROCESS_LIMIT: the tenant"), "{refusal}");
    shell.terminate(&first.process_id).await.unwrap();
    other.start("sleep 1002").await;
}

#[sqlx::test(migrations = false)]
async fn processes_of_others_do_not_exist(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::new(&world);
    let process = shell.start("sleep 1000").await;
    let id = &process.process_id;
    let thief = Shell {
        caller: Caller::service("other".parse().unwrap(), "thief"),
        session_id: shell.session_id.clone(),
        ..Shell::new(&world)
    };
    assert!(thief.list(0, "").await.0.is_empty());
    for refusal in [
        refused(thief.attach(id, 0).await.map(drop)),
        refused(thief.write(id, "x", false).await),
        refused(thief.resize(id, 1, 1).await),
        refused(thief.signal(id, "KILL").await),
        refused(thief.terminate(id).await),
    ] {
        assert!(refusal.starts_with("NotFound REASON_PROCESS_NOT_FOUND"), "{refusal}");
    }
    assert_eq!(shell.list(0, "").await.0[0].status(), State::Running);
}

#[sqlx::test(migrations = false)]
async fn lists_are_paged_from_the_newest(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::new(&world);
    for number in 0..5 {
        let process = shell.start(&format!("echo {number}")).await;
        shell.finish(&process.process_id).await;
    }
    let (first, token) = shell.list(2, "").await;
    let (second, token) = shell.list(2, &token).await;
    let (third, end) = shell.list(2, &token).await;
    let commands: Vec<_> =
        [first, second, third].concat().into_iter().map(|process| process.command).collect();
    assert_eq!(commands, ["echo 4", "echo 3", "echo 2", "echo 1", "echo 0"]);
    assert_eq!(end, "");
}

#[sqlx::test(migrations = false)]
async fn a_session_that_is_over_has_nothing_running_and_starts_nothing(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::new(&world);
    let process = shell.start("sleep 1000").await;
    let mut attached = shell.attach(&process.process_id, 0).await.unwrap();
    shell.end_session().await;
    shell.end_session().await;
    let Item::Ended(ended) = attached.next().await else { panic!("output") };
    assert_eq!(
        (ended.status(), ended.reason.as_str()),
        (State::Terminated, "its session was deleted")
    );
    let refusal = refused(shell.try_start(shell.command("late", "true")).await);
    assert!(refusal.starts_with("NotFound REASON_SESSION_NOT_FOUND"), "{refusal}");
}

#[sqlx::test(migrations = false)]
async fn a_server_that_stops_says_what_became_of_its_processes(db: PgPool) {
    let world = World::start(db).await;
    let (session_id, process) = {
        let shell = Shell::new(&world);
        (shell.session_id.clone(), shell.start("echo hello; sleep 1000").await)
    };
    let world = world.restart().await;
    let shell = Shell { session_id, ..Shell::new(&world) };
    let stopped = async {
        loop {
            let listed = shell.list(0, "").await.0.remove(0);
            if listed.status() != State::Running {
                return listed;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let ended = timeout(PATIENCE, stopped).await.expect("it ends");
    assert_eq!(ended.process_id, process.process_id);
    assert_eq!((ended.status(), ended.reason.as_str()), (State::Terminated, "the server stopped"));
    assert_eq!(shell.finish(&process.process_id).await.0, "hello\n");
}

#[sqlx::test(migrations = false)]
async fn secrets_are_not_printed_and_what_is_too_much_is_not_kept(db: PgPool) {
    let secrets = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secrets.path(), "correct-horse-battery\n").unwrap();
    let path = secrets.path().to_str().unwrap().to_owned();
    let world = World::with(db, &["--redact-file", &path, "--output-bytes", "40"]).await;
    let shell = Shell::new(&world);
    let script = "printf 'key=correct-horse'; sleep 0.1; echo -battery; seq 1 100";
    let process = shell.start(script).await;
    let (printed, ended) = shell.finish(&process.process_id).await;
    assert!(printed.starts_with("key=[redacted]\n1\n2\n"), "{printed}");
    assert_eq!((printed.len(), ended.kept_bytes), (40, 40));
    assert!(ended.output_bytes > 300, "{ended:?}");
}
