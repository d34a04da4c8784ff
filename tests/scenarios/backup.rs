//! What `docs/operate.md` says about backups, done.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::Duration,
};

use local::{Servers, Service};
use proto::{
    event::v1::{Answer, Payload},
    session::v1::{
        AnswerQuestionRequest, GetSessionRequest, session::Status, subscribe_request::From,
    },
};
use tests::{Reader, Session, Witness, World, reason, text_of};
use tokio::process::Command;

use crate::{
    restart::open_action,
    what_dies::{plan, soon},
};

const WORK: &str = r#"say Look.
call bash {"command": "echo kept > file; yes word | head -c 100000"}
---
say Found."#;

const CALLING: &str = r#"call bash {"command": "echo begun >> witness; sleep 600"}
---
say Never said."#;

const WONDERING: &str = r#"call question {"questions": [{"prompt": "Who?", "free_text": true}]}
---
say {{tool_result}}"#;

#[tokio::test]
async fn a_backup_of_a_live_system_is_a_system() {
    let backup = tempfile::tempdir().unwrap();
    // The user that commands run as has to get at the workspaces in it.
    fs::set_permissions(backup.path(), Permissions::from_mode(0o755)).unwrap();
    let (dump, home) = (backup.path().join("windlass.dump"), backup.path().join("home"));
    let servers = Servers::private().await.unwrap();
    let plan = || plan().env_of(Service::Session, "SWEEP", "0.2");
    let mut world = World::on(servers, plan()).await;
    let key = world.fleet.mint_key("acme", "ann", "read,run,configure,admin").await.unwrap();
    let client = world.client_with(Some(&key));
    client.put_agent().await;

    // One that is at rest and sealed, one in the middle of a call with two turns behind it, and one
    // that waits for a person.
    let resting = client.create_session().await;
    let seen = resting.run(WORK).await;
    resting.sealed(seen.last().unwrap().sequence).await;
    let calling = client.create_session().await;
    let witness = Witness::of(&world, "acme", &calling).await;
    let mut turns = vec![calling.submit(CALLING).await.turn_id];
    for script in ["say Second.", "say Third."] {
        turns.push(calling.submit(script).await.turn_id);
    }
    witness.says("begun").await;
    let wondering = client.create_session().await;
    let question = wondering.asks(WONDERING).await;

    // First the database and then the disks, so that these have whatever the first one names.
    let pg_dump = world.servers.postgres().unwrap().program("pg_dump");
    let url = world.fleet.database_url().to_owned();
    run(Command::new(pg_dump).args(["--format=custom", "--file"]).arg(&dump).arg(&url)).await;
    let before = read(&resting).await;
    let workspace_id = resting.get().await.workspace_id;
    tokio::fs::create_dir(&home).await.unwrap();
    for part in ["workspaces", "outputs", "secrets.key"] {
        let part = world.fleet.dir().join(part);
        run(Command::new("cp").arg("-a").arg(&part).arg(&home)).await;
    }
    // What happens from here on is not in it.
    let lost = client.create_session().await;
    drop(world);

    // Other servers, with nothing in Redis.
    let mut servers = Servers::private().await.unwrap();
    let url = restore(&mut servers, &dump).await;
    let mut world = World::on(servers, plan().lasting(&home)).await;
    assert_eq!(world.fleet.database_url(), url);
    let client = world.client_with(Some(&key));
    let here = |session: Session| Session { client: client.clone(), ..session };
    let (resting, calling, wondering) = (here(resting), here(calling), here(wondering));

    // It reads the same, nobody has altered it, and its files and outputs are there.
    assert_eq!(read(&resting).await, before);
    let verified = resting.verify().await;
    assert!(verified.intact && verified.seals > 0, "{verified:?}");
    let request = GetSessionRequest { session_id: lost.id };
    let error = client.sessions().get_session(request).await.unwrap_err();
    assert_eq!(reason(&error), "REASON_SESSION_NOT_FOUND");
    let seen = resting.run(r#"call bash {"command": "cat file"}"#).await;
    let printed = seen.iter().any(|event| format!("{event:?}").contains("kept"));
    assert!(printed, "{workspace_id} has lost a file: {seen:?}");

    // What ran when the backup was made has ended, was not run again, and lets the others pass.
    let mut reader = Reader::new(&calling, std::slice::from_ref(&client));
    soon("the queue drains", reader.until_ended(&turns[2])).await;
    let ends = reader.seen.iter().filter_map(|event| match &event.payload {
        Some(Payload::TurnCompleted(_)) => Some((event.turn_id.clone(), String::new())),
        Some(Payload::TurnFailed(failed)) => Some((event.turn_id.clone(), failed.reason.clone())),
        _ => None,
    });
    let [first, second, third] = turns.try_into().unwrap();
    let done = String::new;
    assert_eq!(
        ends.collect::<Vec<_>>(),
        [(first, "host_restart".to_owned()), (second, done()), (third, done())]
    );
    assert_eq!(Witness::of(&world, "acme", &calling).await.lines(), ["begun"]);

    // Who waited for a person still does, and goes on.
    assert_eq!(wondering.get().await.status(), Status::WaitingOnUserInput);
    assert_eq!(open_action(&wondering).await.action_id, question.action_id);
    let mut events = wondering.subscribe(From::Live(true)).await;
    let answer = AnswerQuestionRequest {
        session_id: wondering.id.clone(),
        action_id: question.action_id,
        answers: vec![Answer { text: "Me.".into(), ..Answer::default() }],
    };
    client.turns().answer_question(answer).await.unwrap();
    let seen = events.until_ended(&question.turn_id).await;
    assert!(text_of(&seen).contains("Me."), "{seen:?}");
    world.fleet.stop().await.unwrap();
}

/// Everything that somebody can read of a session.
async fn read(session: &Session) -> (Vec<String>, String, String) {
    let messages = format!("{:?}", session.messages().await);
    let snapshot = session.snapshot().await.json;
    (session.log_json().await, messages, snapshot)
}

/// Restores a dump into the database that a lasting fleet uses; its URL.
async fn restore(servers: &mut Servers, dump: &Path) -> String {
    let url = servers.database_url().to_owned();
    let database_url = url.replace("/postgres", "/windlass");
    let postgres = servers.postgres().unwrap();
    let (psql, pg_restore) = (postgres.program("psql"), postgres.program("pg_restore"));
    run(Command::new(psql).arg(&url).args(["-c", "create database windlass"])).await;
    let mut command = Command::new(pg_restore);
    command.args(["--exit-on-error", "--no-owner", "--dbname", &database_url]).arg(dump);
    run(&mut command).await;
    database_url
}

async fn run(command: &mut Command) {
    let output = tokio::time::timeout(Duration::from_secs(60), command.output());
    let output = output.await.expect("it takes too long").unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {errors}");
}
