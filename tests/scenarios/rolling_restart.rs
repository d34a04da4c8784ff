//! Every process is replaced while people work, as a deployment does it, and nobody loses a turn.

use std::time::Duration;

use local::{Fleet, Plan, Service};
use proto::{
    session::v1::turn::Status,
    triggers::v1::{PauseTriggerRequest, schedule::When},
};
use tests::{Client, Pairs, REPLICAS, Reader, Session, submit};
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use crate::{
    triggers::{create, firings, schedule, until},
    what_dies::soon,
};

const PEOPLE: usize = 6;

/// How often a schedule fires meanwhile.
const EVERY: Duration = Duration::from_secs(1);

/// Turns here take a second at most, and a process drains for half a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_turn_that_is_shorter_than_the_drain() {
    roll(Fleet::plan(), &Service::ALL, Duration::ZERO).await;
}

/// Nobody else can do what a replica does that has the workspace on its disk, so turns wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_wait_for_a_disk_that_comes_back_with_its_replica() {
    roll(Fleet::plan().separate_disks(), &[Service::Tools], Duration::from_secs(4)).await;
}

/// Replaces every process of `services` while people and a schedule go on. Each is `away` before it
/// comes back.
async fn roll(plan: Plan, services: &[Service], away: Duration) {
    let mut pairs = Pairs::start(plan).await;
    let client = pairs.world.client("acme").await;
    let replicas = vec![client.clone(), client.at(&mut pairs.world.fleet, 1)];
    let (stop, stopped) = watch::channel(false);
    let (count, mut turns) = watch::channel(0);
    let mut people: Vec<JoinHandle<usize>> = Vec::new();
    for _ in 0..PEOPLE {
        let session = client.create_session().await;
        let person = work(session, replicas.clone(), stopped.clone(), count.clone());
        people.push(tokio::spawn(person));
    }
    let scheduled = client.create_session().await;
    let when = When::IntervalMs(EVERY.as_millis() as i64);
    let ticks = create(&client, schedule(&scheduled, when, "pace 20ms\nrepeat 10 \"tick \"")).await;

    for &service in services {
        for index in 0..REPLICAS {
            let replica = pairs.replica(service, index);
            replica.terminate().await.unwrap();
            sleep(away).await;
            replica.restart().await.unwrap();
            // The next one goes when this one has work.
            let wanted = *turns.borrow() + PEOPLE * 2;
            let enough = turns.wait_for(|turns| *turns >= wanted);
            soon("people go on", enough).await.expect("somebody lost a turn");
        }
    }

    stop.send_replace(true);
    let mut sum = 0;
    for person in people {
        sum += person.await.unwrap();
    }
    let request = PauseTriggerRequest { trigger_id: ticks.trigger_id.clone() };
    until("the schedule pauses", async || {
        client.triggers().pause_trigger(request.clone()).await.ok()
    })
    .await;
    let fired = until("every firing is a turn that has ended", async || {
        let fired = firings(&client, &ticks.trigger_id).await;
        for firing in &fired {
            assert_eq!(firing.drop_reason, "", "{firing:?}");
            if firing.turn_id.is_empty() {
                return None;
            }
            match scheduled.get_turn(&firing.turn_id).await.status() {
                Status::Completed => {}
                Status::Failed | Status::Cancelled => panic!("its turn failed: {firing:?}"),
                _ => return None,
            }
        }
        Some(fired.len())
    })
    .await;
    eprintln!("{sum} turns of people and {fired} of a schedule, none of which failed");
    assert!(fired > 0, "the schedule was never due");
}

/// One turn after the other, each of which has to complete. Returns how many there were.
async fn work(
    session: Session,
    replicas: Vec<Client>,
    stopped: watch::Receiver<bool>,
    count: watch::Sender<usize>,
) -> usize {
    let mut reader = Reader::new(&session, &replicas);
    let mut turns = 0;
    while !*stopped.borrow() {
        let script = match turns % 2 {
            0 => "pace 20ms\nrepeat 25 \"word \"",
            _ => "call bash {\"command\": \"sleep 0.2; echo done\"}\n---\nsay Done.",
        };
        let turn = submit(&replicas, &session.turn(script)).await;
        soon("the turn ends", reader.until_ended(&turn.turn_id)).await;
        let end = reader.seen.last().unwrap();
        assert_eq!(end.r#type, "turn.completed", "{end:?}");
        let failed = reader.seen.iter().find(|event| event.r#type == "tool.failed");
        assert_eq!(failed, None, "a tool failed in a turn that went on");
        reader.seen.clear();
        turns += 1;
        count.send_modify(|count| *count += 1);
    }
    turns
}
