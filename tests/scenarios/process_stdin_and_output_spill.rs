use std::time::Duration;

use local::Service;
use proto::{
    event::v1::{Event, Payload},
    session::v1::{DeleteSessionRequest, subscribe_request::From},
    tools::v1::{
        AttachProcessRequest, ListProcessesRequest, Process, ReadOutputRequest,
        StartProcessRequest, WriteProcessStdinRequest,
        attach_process_response::{Item, Output},
        output_service_client::OutputServiceClient,
        process::Status,
        process_service_client::ProcessServiceClient,
    },
};
use sha2::{Digest as _, Sha256};
use tests::{Calls, Client, Fold, Session, World, request_id};
use tokio::time::{sleep, timeout};

/// What of a process's output is in the log.
const PREVIEW: usize = 32 * 1024;

/// Long enough for a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn process_stdin_and_output_spill() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let mut seen = session.subscribe(From::Live(true)).await;

    // It wants input first, and outlives the call that started it.
    let command = "read name; echo hello $name; seq 1 750000; echo over >&2";
    let process = start(&session, command).await;
    assert_eq!(process.status(), Status::Running);
    let request = WriteProcessStdinRequest {
        process_id: process.process_id.clone(),
        data: b"world\n".to_vec(),
        close: true,
    };
    processes(&client).write_process_stdin(request).await.unwrap();

    // Then it floods, and whoever attaches has all of it in order.
    let (printed, ended) = attach(&client, &process.process_id, 0).await;
    let numbers: String = (1..=750_000).map(|number| format!("{number}\n")).collect();
    let stdout = format!("hello world\n{numbers}");
    let of = |name: &str| {
        let pieces = printed.iter().filter(|piece| piece.stream == name);
        String::from_utf8(pieces.flat_map(|piece| piece.data.clone()).collect()).unwrap()
    };
    assert!(of("stdout") == stdout, "{} of {} bytes", of("stdout").len(), stdout.len());
    assert_eq!(of("stderr"), "over\n");
    assert_eq!((ended.status(), ended.exit_code), (Status::Completed, 0));

    // The log has the beginning of it, who wrote to it, and where everything is.
    let seen = seen.until(|event| event.r#type.starts_with("process.completed")).await;
    assert!(seen.iter().all(|event| event.process_id == process.process_id), "{seen:?}");
    let names: Vec<_> = seen.iter().map(|event| event.r#type.as_str()).collect();
    assert_eq!(names[..2], ["sandbox.applied", "process.started"]);
    assert_eq!(names[names.len() - 2..], ["output.spilled", "process.completed"]);
    let input = seen.iter().find_map(|event| match &event.payload {
        Some(Payload::ProcessInput(input)) => Some(input),
        _ => None,
    });
    let input = input.unwrap();
    assert_eq!((input.kind.as_str(), input.bytes, input.subject.as_str()), ("stdin", 6, "ann"));
    let text = |event: &Event| match &event.payload {
        Some(Payload::ProcessOutput(output)) => output.text.clone(),
        _ => String::new(),
    };
    let shown: String = seen.iter().map(text).collect();
    assert_eq!(shown, stdout[..PREVIEW]);

    // The ref holds everything that is kept, byte for byte.
    let spilled = seen.iter().find(|event| event.r#type == "output.spilled").unwrap();
    let Some(Payload::OutputSpilled(stored)) = &spilled.payload else { panic!("{spilled:?}") };
    let whole = read(&client, &spilled.output_ref).await;
    assert_eq!((stored.total_bytes, stored.kept_bytes), (whole.len() as i64, whole.len() as i64));
    assert_eq!(stored.digest, format!("sha256:{:x}", Sha256::digest(&whole)));
    assert_eq!(whole.len(), stdout.len() + "over\n".len());
    assert_eq!(ended.output_ref, spilled.output_ref);

    // It is the same for whoever comes later, from any offset, and once in the log.
    let late = whole.len() as i64 - 100;
    let (rest, again) = attach(&client, &process.process_id, late).await;
    let rest: Vec<u8> = rest.into_iter().flat_map(|piece| piece.data).collect();
    assert_eq!(rest, whole[late as usize..]);
    assert_eq!(again.status(), Status::Completed);
    let log = session.log().await;
    let count = |name: &str| log.iter().filter(|event| event.r#type == name).count();
    for name in ["process.started", "process.input", "output.spilled", "process.completed"] {
        assert_eq!(count(name), 1, "{name}");
    }
    assert_eq!(Fold::of(&log).last_sequence, session.get().await.last_sequence);
    session.run("say Still here.").await;
}

#[tokio::test]
async fn a_process_dies_with_its_server_and_is_known_to_be_lost() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let mut seen = session.subscribe(From::Live(true)).await;
    let process = start(&session, "while :; do date >> beats; sleep 0.05; done").await;
    let tools = world.fleet.get(Service::Tools);
    tools.kill().await.unwrap();
    tools.restart().await.unwrap();

    let seen = timeout(PATIENCE, seen.until(|event| event.r#type == "process.failed"));
    let seen = seen.await.expect("it is found");
    let Some(Payload::ProcessFailed(failed)) = &seen.last().unwrap().payload else { panic!() };
    assert_eq!(failed.reason, "the server that ran it is gone");
    let listed = list(&session).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].status(), Status::Lost);
    let (_, ended) = attach(&client, &process.process_id, 0).await;
    assert_eq!(ended.status(), Status::Lost);
}

#[tokio::test]
async fn a_process_dies_with_its_session() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let process = start(&session, "sleep 1000").await;
    let request = DeleteSessionRequest { session_id: session.id.clone() };
    client.sessions().delete_session(request).await.unwrap();
    let (_, ended) = attach(&client, &process.process_id, 0).await;
    assert_eq!(
        (ended.status(), ended.reason.as_str()),
        (Status::Terminated, "its session was deleted")
    );
    let forgotten = async {
        while !list(&session).await.is_empty() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, forgotten).await.expect("nothing is left");
}

fn processes(client: &Client) -> ProcessServiceClient<Calls> {
    ProcessServiceClient::new(client.to(Service::Tools))
}

async fn start(session: &Session, command: &str) -> Process {
    let request = StartProcessRequest {
        request_id: request_id(),
        session_id: session.id.clone(),
        workspace_id: session.get().await.workspace_id,
        command: command.into(),
        ..StartProcessRequest::default()
    };
    let response = processes(&session.client).start_process(request).await.unwrap();
    response.into_inner().process.unwrap()
}

async fn list(session: &Session) -> Vec<Process> {
    let request =
        ListProcessesRequest { session_id: session.id.clone(), ..ListProcessesRequest::default() };
    let response = processes(&session.client).list_processes(request).await.unwrap();
    response.into_inner().processes
}

/// Everything from an offset on, and the end.
async fn attach(client: &Client, process_id: &str, offset: i64) -> (Vec<Output>, Process) {
    let request = AttachProcessRequest { process_id: process_id.into(), offset };
    let mut stream = processes(client).attach_process(request).await.unwrap().into_inner();
    let (mut pieces, mut next) = (Vec::new(), offset);
    loop {
        let answer = timeout(PATIENCE, stream.message()).await.expect("something happens");
        match answer.unwrap().expect("an end").item.unwrap() {
            Item::Output(output) => {
                assert_eq!(output.offset, next, "a gap or a duplicate");
                next += output.data.len() as i64;
                pieces.push(output);
            }
            Item::Ended(process) => return (pieces, process),
        }
    }
}

async fn read(client: &Client, output_ref: &str) -> Vec<u8> {
    let mut outputs = OutputServiceClient::new(client.to(Service::Tools));
    let mut whole = Vec::new();
    loop {
        let (output_ref, offset) = (output_ref.to_owned(), whole.len() as i64);
        let request = ReadOutputRequest { output_ref, offset, limit: 700_000 };
        let piece = outputs.read_output(request).await.unwrap().into_inner().data;
        if piece.is_empty() {
            return whole;
        }
        whole.extend(piece);
    }
}
