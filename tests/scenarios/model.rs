//! Several people do at random what people do, while processes die, sleep and come back. When
//! all is quiet, what was promised must have happened, once and in order.
//!
//! `MODEL_SEED` replays a run as far as the machine allows, and `MODEL_SECONDS` makes it longer.

mod chaos;
mod check;
mod people;

use std::{
    env,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use local::{Servers, Service};
use proto::{
    session::v1::Manifest,
    tools::v1::{Permissions, Rule, rule::Action},
};
use tests::{Client, Session, Witness, World};
use tokio::{sync::watch, time::Instant};

use crate::what_dies::plan;
use chaos::Chaos;
use people::{Notes, Person};

const SECONDS: u64 = 15;
const SESSIONS: usize = 4;
const PEOPLE: usize = 5;
const READERS: usize = 6;

/// Commands of this kind are asked about.
const ASKED: &str = "true please";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_people_do_and_whoever_dies_every_turn_runs_once_and_in_order() {
    let seed = seed();
    let seconds = variable("MODEL_SECONDS").unwrap_or(SECONDS);
    eprintln!("MODEL_SEED={seed} MODEL_SECONDS={seconds}");
    let mut dice = Dice(seed);

    let servers = Servers::private().await.unwrap();
    let mut world = World::on(servers, plan().replicas(Service::Session, 2)).await;
    let client = world.client("acme").await;
    put_agent(&client).await;
    let replicas = vec![client.clone(), client.at(&mut world.fleet, 1)];
    let mut places = Vec::new();
    for _ in 0..SESSIONS {
        let session = client.create_session_with("random").await;
        let witness = Witness::of(&world, "acme", &session).await;
        places.push(Arc::new(Place { session, witness, notes: Mutex::default() }));
    }

    let (stop, stopped) = watch::channel(false);
    let mut people = Vec::new();
    for number in 0..PEOPLE {
        let person = Person {
            number,
            dice: Dice(dice.next()),
            replicas: replicas.clone(),
            places: places.clone(),
        };
        people.push(tokio::spawn(person.act(stopped.clone())));
    }
    let mut readers = Vec::new();
    for number in 0..READERS {
        let place = places[number % SESSIONS].clone();
        let reading = people::read(place, replicas.clone(), Dice(dice.next()), stopped.clone());
        readers.push(tokio::spawn(reading));
    }

    let mut chaos = Chaos::new(&mut world, Dice(dice.next()));
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        chaos.strike().await;
    }
    chaos.restore().await;
    eprintln!("{}", chaos.history.join("\n"));
    stop.send_replace(true);
    for person in people {
        person.await.expect("a person met what nobody should meet");
    }
    for place in &places {
        check::becomes_quiet(place, &replicas).await;
    }
    let mut seen = Vec::new();
    for reader in readers {
        seen.extend(reader.await.expect("a reader met what nobody should meet"));
    }
    for place in &places {
        check::promises_were_kept(place, &replicas, &seen).await;
    }
}

/// A session, and what everybody knows about it.
pub struct Place {
    pub session: Session,
    pub witness: Witness,
    pub notes: Mutex<Notes>,
}

/// The default one, who may do everything, except for what it asks about.
async fn put_agent(client: &Client) {
    let rule = |pattern: &str, action: Action| Rule {
        permission: "bash".into(),
        pattern: pattern.into(),
        action: action.into(),
        ..Rule::default()
    };
    let rules = vec![rule("*", Action::Allow), rule(ASKED, Action::Ask)];
    let manifest = Manifest {
        prompt: "You do what scripts say.".into(),
        model: "scripted/demo".into(),
        permissions: Some(Permissions { rules, ..Permissions::default() }),
        ..Manifest::default()
    };
    client.put_manifest("random", manifest).await;
}

/// Another one each time, unless somebody wants to see a run again.
pub fn seed() -> u64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    variable("MODEL_SEED").unwrap_or(clock % 1_000_000)
}

fn variable(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

/// Chance that comes back with the seed (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn choose<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| &from[self.below(from.len())])
    }

    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.next() % (to - from))
    }
}
