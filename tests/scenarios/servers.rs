//! The servers underneath die in the middle of load: nothing is lost, and it goes on soon.

use std::time::Duration;

use local::{Servers, Service};
use proto::session::v1::{CreateSessionRequest, respond_action_request::Decision, session::Status};
use tests::{
    Client, Reader, Session, Witness, World, explain, is_passing, reason, request_id, text_of,
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    restart::open_action,
    what_dies::{plan, soon, submit},
};

/// How soon after a server is back everything must go as before.
const RECOVERY: Duration = Duration::from_secs(5);

#[tokio::test]
async fn redis_may_lose_everything() {
    let mut world = World::on(Servers::private().await.unwrap(), plan()).await;
    let client = world.client("acme").await;
    let load = Load::start(&client, 4).await;

    load.goes_on().await;
    let usual = turn(&client).await;
    world.servers.redis().unwrap().forget().await.unwrap();
    recovers(&client, usual, "Redis forgot everything").await;

    world.servers.redis().unwrap().kill().await.unwrap();
    // Slower, but it goes on without.
    load.goes_on().await;
    world.servers.redis().unwrap().restart().await.unwrap();
    recovers(&client, usual, "Redis was restarted").await;
    load.goes_on().await;
    load.finish().await;
}

#[tokio::test]
async fn a_restart_of_postgres_loses_nothing_and_everything_may_die_while_a_person_thinks() {
    let mut world = World::on(Servers::private().await.unwrap(), plan()).await;
    let client = world.client("acme").await;
    a_restart_of_postgres_loses_nothing(&mut world, &client).await;
    everything_may_die_while_a_person_thinks(&mut world, &client).await;
}

async fn a_restart_of_postgres_loses_nothing(world: &mut World, client: &Client) {
    let load = Load::start(client, 4).await;
    let session = create(client).await;
    load.goes_on().await;
    let usual = turn(client).await;
    for crash in [false, true] {
        load.goes_on().await;
        let postgres = world.servers.postgres().unwrap();
        match crash {
            true => postgres.kill().await.unwrap(),
            false => postgres.stop().await.unwrap(),
        }
        // Calls fail meanwhile, and say what to do.
        let request = session.turn("say Back.");
        let status = client.turns().submit_turn(request.clone()).await.unwrap_err();
        assert_eq!(reason(&status), "REASON_DEPENDENCY_UNAVAILABLE");
        assert!(is_passing(&status));
        world.servers.postgres().unwrap().restart().await.unwrap();
        recovers(client, usual, "Postgres was restarted").await;
        load.goes_on().await;
    }
    load.finish().await;
}

/// Nothing runs while a person thinks, so nothing can be lost.
async fn everything_may_die_while_a_person_thinks(world: &mut World, client: &Client) {
    let session = client.create_careful_session().await;
    let witness = Witness::of(world, "acme", &session).await;
    let script = "call bash {\"command\": \"echo ran >> witness\"}\n---\nsay Thank you.";
    let turn = session.submit(script).await;
    let waits = async { while session.get().await.status() != Status::WaitingOnApproval {} };
    soon("the turn waits", waits).await;
    let action = open_action(&session).await;

    for replica in world.fleet.replicas() {
        replica.kill().await.unwrap();
    }
    world.servers.postgres().unwrap().kill().await.unwrap();
    world.servers.redis().unwrap().forget().await.unwrap();
    world.servers.redis().unwrap().kill().await.unwrap();
    world.servers.postgres().unwrap().restart().await.unwrap();
    world.servers.redis().unwrap().restart().await.unwrap();
    for service in Service::ALL {
        world.fleet.get(service).restart().await.unwrap();
    }

    assert_eq!(session.get().await.status(), Status::WaitingOnApproval);
    assert_eq!(open_action(&session).await, action);
    assert_eq!(witness.lines(), [""; 0]);
    session.respond(&action, Decision::Once).await.unwrap();
    let mut reader = Reader::new(&session, std::slice::from_ref(client));
    soon("the turn goes on", reader.until_ended(&turn.turn_id)).await;
    assert_eq!(text_of(&reader.seen), "Thank you.");
    assert_eq!(witness.lines(), ["ran"]);
    assert_eq!(session.log().await, reader.seen);
}

/// A new turn goes through at once again. On a machine that is slow also when all is well,
/// that takes a little longer.
async fn recovers(client: &Client, usual: Duration, after: &str) {
    let took = timeout(RECOVERY + 3 * usual, turn(client)).await;
    assert!(took.is_ok(), "{after}, and much later it does not work (usually it takes {usual:?})");
}

/// How long a new session and a turn in it take.
async fn turn(client: &Client) -> Duration {
    let begun = Instant::now();
    let session = create(client).await;
    let turn = submit(std::slice::from_ref(client), &session.turn("say Up.")).await;
    let mut reader = Reader::new(&session, std::slice::from_ref(client));
    reader.until_ended(&turn.turn_id).await;
    begun.elapsed()
}

/// Calls may fail for a moment, until connections are new.
async fn create(client: &Client) -> Session {
    let request = CreateSessionRequest {
        request_id: request_id(),
        title: "A scenario".into(),
        agent: "scripted".into(),
        ..CreateSessionRequest::default()
    };
    loop {
        match client.sessions().create_session(request.clone()).await {
            Ok(response) => {
                let id = response.into_inner().session.unwrap().session_id;
                return Session { client: client.clone(), id };
            }
            Err(status) => assert!(is_passing(&status), "{}", explain(&status)),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// People who submit one turn after the other, and read what comes of it.
struct Load {
    stop: watch::Sender<bool>,
    turns: watch::Receiver<usize>,
    people: Vec<JoinHandle<()>>,
}

impl Load {
    async fn start(client: &Client, people: usize) -> Load {
        let (stop, stopped) = watch::channel(false);
        let (count, turns) = watch::channel(0);
        let mut load = Load { stop, turns, people: vec![] };
        for _ in 0..people {
            let session = create(client).await;
            load.people.push(tokio::spawn(talk(session, stopped.clone(), count.clone())));
        }
        load
    }

    /// Returns when everybody may have got an answer since it was asked.
    async fn goes_on(&self) {
        let mut turns = self.turns.clone();
        let wanted = *turns.borrow() + self.people.len() * 2;
        let enough = turns.wait_for(|turns| *turns >= wanted);
        soon("the load goes on", enough).await.expect("somebody lost something");
    }

    /// Checks what everybody got.
    async fn finish(self) {
        self.stop.send_replace(true);
        for person in self.people {
            person.await.unwrap();
        }
    }
}

async fn talk(session: Session, stopped: watch::Receiver<bool>, count: watch::Sender<usize>) {
    let clients = [session.client.clone()];
    let mut reader = Reader::new(&session, &clients);
    let mut turns = Vec::new();
    while !*stopped.borrow() {
        let script = format!("pace 1ms\nrepeat 20 \"{} \"", turns.len());
        let turn = submit(&clients, &session.turn(&script)).await;
        reader.until_ended(&turn.turn_id).await;
        turns.push(turn.turn_id);
        count.send_modify(|count| *count += 1);
    }
    let log = session.log().await;
    assert_eq!(reader.seen, log, "what was seen is not what is stored");
    for name in ["turn.started", "turn.completed"] {
        let events = log.iter().filter(|event| event.r#type == name);
        let ran: Vec<_> = events.map(|event| event.turn_id.clone()).collect();
        assert_eq!(ran, turns, "{name}");
    }
    let said: String = (0..turns.len()).map(|turn| format!("{turn} ").repeat(20)).collect();
    assert_eq!(text_of(&log), said);
}
