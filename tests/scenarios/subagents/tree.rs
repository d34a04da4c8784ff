//! Children that outlive whatever runs them.

use std::{collections::HashMap, time::Duration};

use local::{Servers, Service};
use proto::{
    event::v1::Event,
    session::v1::{Manifest, Subagent, respond_action_request::Decision, session::Status},
    tools::v1::{Permissions, rule::Action},
};
use tests::{
    Client, Reader, Session, Witness, World,
    chaos::{Dice, seed},
    text_of,
};
use tokio::time::{Instant, sleep};

use super::{WORKER, children, in_background, list, put_worker, rule, session_of, task, worker};
use crate::{
    restart::open_action,
    what_dies::{plan, soon, submit},
};

/// How many children there are on each level: 8, each with 4, each with 5.
const LEVELS: [usize; 3] = [8, 4, 5];
const ALL: usize = 8 + 8 * 4 + 8 * 4 * 5;

/// How long all of it may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(400);

/// A script that spawns the levels below, every other child in the background.
fn script(levels: &[usize]) -> String {
    let Some((count, below)) = levels.split_first() else {
        return "pace 20ms\nrepeat 10 \"word \"".to_owned();
    };
    let below = script(below);
    let calls = (0..*count).map(|number| match number % 2 {
        0 => task(WORKER, &below),
        _ => in_background(WORKER, &below),
    });
    format!("{}\n---\nsay Done.", calls.collect::<Vec<_>>().join("\n"))
}

/// Two hundred children, three levels deep, half of them in the background, while the processes
/// that run them are killed.
#[tokio::test]
async fn every_parent_is_told_exactly_once() {
    let seed = seed("MODEL_SEED");
    eprintln!("seed {seed}");
    let mut dice = Dice(seed);
    let mut world = World::planned(plan().replicas(Service::Session, 2)).await;
    let client = world.client("acme").await;
    put_worker(&client).await;
    let session = client.create_session().await;
    let replicas: Vec<Client> = (0..2).map(|index| client.at(&mut world.fleet, index)).collect();
    submit(&replicas, &session.turn(&script(&LEVELS))).await;

    let begun = Instant::now();
    for strike in 0..6 {
        sleep(dice.millis(300, 2500)).await;
        let replica = world.fleet.replica(Service::Session, strike % 2);
        replica.kill().await.unwrap();
        sleep(dice.millis(0, 800)).await;
        replica.restart().await.unwrap();
    }

    // Nobody is left who waits for somebody.
    let all = loop {
        let all = list(&session, true).await;
        let over = |child: &Subagent| !["running", "waiting"].contains(&child.status.as_str());
        if session.get().await.status() == Status::Idle && all.iter().all(over) {
            break all;
        }
        let left: Vec<_> = all.iter().filter(|child| !over(child)).collect();
        assert!(
            begun.elapsed() < PATIENCE,
            "seed {seed}: {} of {} are left: {left:?}",
            left.len(),
            all.len()
        );
        sleep(Duration::from_millis(200)).await;
    };
    assert!(all.len() <= ALL, "somebody was spawned twice");
    eprintln!("{} of {ALL} were spawned, {:?}", all.len(), counts(&all));

    // Every parent heard of each of its children once, and says so once.
    let mut parents: HashMap<&str, Vec<&Subagent>> = HashMap::new();
    for child in &all {
        parents.entry(&child.parent_session_id).or_default().push(child);
        let shown = session_of(&session, child).get().await;
        assert!(matches!(shown.status(), Status::Idle | Status::Error), "{shown:?}");
    }
    for (parent, children) in parents {
        let parent = Session { client: client.clone(), id: parent.to_owned() };
        let log = parent.log().await;
        let messages = all_messages(&parent).await;
        for child in children {
            let ends = ends(&log, &child.subagent_id);
            assert_eq!(ends, [format!("subagent.{}", child.status)], "seed {seed}: {child:?}");
            let spawned = log.iter().filter(|event| {
                event.r#type == "subagent.spawned" && event.subagent_id == child.subagent_id
            });
            assert_eq!(spawned.count(), 1);
            let told = messages.iter().filter(|text| text.contains(&child.subagent_id)).count();
            assert_eq!(told, usize::from(child.background), "seed {seed}: {child:?}");
        }
        let open = super::tool_uses(&parent).await.into_iter();
        let open = open.filter(|call| !call.state.starts_with("output"));
        assert_eq!(open.count(), 0, "seed {seed}: a call of {} never ended", parent.id);
    }
}

fn counts(all: &[Subagent]) -> HashMap<&str, usize> {
    let mut counts = HashMap::new();
    for child in all {
        *counts.entry(child.status.as_str()).or_default() += 1;
    }
    counts
}

fn ends(log: &[Event], subagent_id: &str) -> Vec<String> {
    let ends = ["subagent.completed", "subagent.failed", "subagent.closed"];
    let of_child = log.iter().filter(|event| event.subagent_id == subagent_id);
    let names = of_child.map(|event| event.r#type.clone());
    names.filter(|name| ends.contains(&name.as_str())).collect()
}

/// What synthetic messages say, as JSON.
async fn all_messages(session: &Session) -> Vec<String> {
    super::notes(session).await.iter().map(ToString::to_string).collect()
}

/// A child asks, everything dies, and the answer still reaches the child, and its end the parent.
#[tokio::test]
async fn a_child_that_waits_for_a_person_outlives_everything() {
    let mut world = World::on(Servers::private().await.unwrap(), plan()).await;
    let client = world.client("acme").await;
    let permissions =
        Permissions { rules: vec![rule("bash", "*", Action::Ask)], ..Permissions::default() };
    let careful = Manifest { permissions: Some(permissions), ..worker() };
    client.put_manifest("careful-worker", careful).await;
    let session = client.create_session().await;
    let witness = Witness::of(&world, "acme", &session).await;
    let asks = "call bash {\"command\": \"echo ran >> witness\"}\n---\nsay Thank you.";
    let turn = session
        .submit(&format!("{}\n---\nsay {{{{tool_result}}}}", task("careful-worker", asks)))
        .await;
    let child = soon("the child waits", async {
        loop {
            if let Some(child) = children(&session).await.pop()
                && child.status == "waiting"
            {
                return child;
            }
        }
    })
    .await;
    let inside = session_of(&session, &child);
    let action = open_action(&inside).await;

    for service in Service::ALL {
        world.fleet.get(service).kill().await.unwrap();
    }
    world.servers.redis().unwrap().forget().await.unwrap();
    world.servers.postgres().unwrap().restart().await.unwrap();
    for service in Service::ALL {
        world.fleet.get(service).restart().await.unwrap();
    }

    assert_eq!(inside.get().await.status(), Status::WaitingOnApproval);
    assert_eq!(session.get().await.status(), Status::Busy);
    assert_eq!(open_action(&inside).await, action);
    inside.respond(&action, Decision::Once).await.unwrap();
    let mut reader = Reader::new(&session, std::slice::from_ref(&client));
    soon("the parent goes on", reader.until_ended(&turn.turn_id)).await;
    assert_eq!(text_of(&reader.seen), r#"{"output":"Thank you."}"#);
    assert_eq!(witness.lines(), ["ran"]);
}
