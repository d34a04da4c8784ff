//! Several people do at random what people do, and triggers fire, while processes die, sleep, lose
//! each other and come back. When all is quiet, what was promised must have happened, once and in
//! order.
//!
//! One engine for two lengths: `tests/scenarios/model.rs` runs it for seconds and with blows in
//! quick succession, `make chaos` for minutes. A seed replays a run as far as the machine allows.

mod dice;
mod blows;
mod people;
mod occasions;
mod check;
mod spending;
mod memory;

pub use dice::{Dice, seed, variable};

use std::{
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use local::Service;
use proto::{
    session::v1::Manifest,
    tools::v1::{Permissions, Rule, rule::Action},
};
use tokio::{sync::watch, time::Instant};

use crate::{Client, LEASE, Pairs, Session, Witness, plan};
use blows::Blows;
use occasions::Occasions;
use people::{Notes, Person};

/// Whose everything here is.
const TENANT: &str = "acme";

/// The agent of the sessions that people use.
const AGENT: &str = "random";

/// How many sessions people use at a time, how many people there are, and who reads along.
const SESSIONS: usize = 4;
const PEOPLE: usize = 5;
const READERS: usize = 6;

/// After so long everything is checked, and goes on with new sessions: what was promised need not
/// be remembered for longer, and a mistake is found while its cause is still in the logs.
const ROUND: Duration = Duration::from_secs(60);

/// Commands of this kind are asked about.
const ASKED: &str = "true please";

/// What to do, and for how long.
#[derive(Debug, Clone)]
pub struct Run {
    pub seed: u64,
    /// How long people act. Checking what became of it comes on top.
    pub length: Duration,
    /// Milliseconds between two blows.
    pub pause: Range<u64>,
}

/// What happened, for people who wonder.
#[derive(Debug, Default)]
pub struct Report {
    pub history: Vec<String>,
    /// How often what was done.
    pub sums: Vec<(String, usize)>,
    /// How much memory each process had, early in its life and in the end.
    pub memory: Vec<String>,
}

/// A session, and what everybody knows about it.
pub struct Place {
    pub session: Session,
    pub witness: Witness,
    pub notes: Mutex<Notes>,
}

/// Panics when a promise was not kept.
pub async fn run(run: Run) -> Report {
    let mut dice = Dice(run.seed);
    let mut stage = stage(run.seed).await;
    let client = stage.world.client(TENANT).await;
    put_agent(&client).await;
    let budget = spending::put_limits(&client).await;
    let replicas = vec![client.clone(), client.at(&mut stage.world.fleet, 1)];

    let mut tally = Tally::default();
    let mut left = run.length;
    let mut blows = Blows::new(stage, Dice(dice.roll()), run.pause.clone());
    while !left.is_zero() {
        let length = left.min(ROUND);
        left -= length;
        if left.is_zero() && run.length > ROUND {
            blows.spare_nobody();
        }
        round(length, &mut dice, &mut blows, &replicas, &mut tally).await;
    }
    let redis_url = blows.stage().world.fleet.redis_url().to_owned();
    spending::adds_up(&client, &budget, &redis_url, blows.unsettling(), &mut tally).await;
    blows.memory().is_flat(run.length);
    tally.says_something(&run, &blows);

    let mut sums = blows.counts();
    sums.push(("kills in all".to_owned(), blows.kills()));
    sums.extend(tally.sums());
    Report { sums, memory: blows.memory().lines(), history: std::mem::take(&mut blows.history) }
}

/// Every other seed has models go on while Redis is away, in place of refusing.
async fn stage(seed: u64) -> Pairs {
    let lease = LEASE.as_secs().to_string();
    let without = if seed.is_multiple_of(2) { "closed" } else { "share" };
    let plan = plan()
        // Memory comes in pages of four kilobytes here, and not of two megabytes, one of which hides
        // as much as a leak takes in minutes.
        .env("MIMALLOC_ALLOW_THP", "0")
        .env_of(Service::Models, "LEASE", &lease)
        .env_of(Service::Models, "LIMITS_WITHOUT_REDIS", without)
        // What ended is sealed by the time that somebody looks.
        .env_of(Service::Session, "SWEEP", "1")
        .env_of(Service::Triggers, "LEASE", &lease)
        .env_of(Service::Triggers, "DAILY_QUOTA", "1000000000");
    Pairs::start(plan).await
}

/// New sessions, a while of everything, and a look at what became of it.
async fn round(
    length: Duration,
    dice: &mut Dice,
    blows: &mut Blows,
    replicas: &[Client],
    tally: &mut Tally,
) {
    let client = &replicas[0];
    let mut places = Vec::new();
    for _ in 0..SESSIONS {
        places.push(Arc::new(Place::new(blows.stage(), client).await));
    }
    let (stop, stopped) = watch::channel(false);
    let (rest, quiet) = watch::channel(false);
    let mut people = Vec::new();
    for number in 0..PEOPLE {
        let person = Person {
            number,
            dice: Dice(dice.roll()),
            replicas: replicas.to_vec(),
            places: places.clone(),
        };
        people.push(tokio::spawn(person.act(stopped.clone())));
    }
    let mut readers = Vec::new();
    for number in 0..READERS {
        let place = places[number % SESSIONS].clone();
        let dice = Dice(dice.roll());
        let reading = people::read(place, replicas.to_vec(), dice, quiet.clone());
        readers.push(tokio::spawn(reading));
    }
    let occasions = Occasions::begin(blows.stage(), client).await;
    let senders = occasions.senders(dice, &stopped);

    let end = Instant::now() + length;
    while Instant::now() < end {
        blows.strike(end).await;
    }
    blows.restore().await;

    stop.send_replace(true);
    for person in people.into_iter().chain(senders) {
        person.await.expect("a person met what nobody should meet");
    }
    let fired = occasions.end(blows.stage(), client).await;
    blows.note("everybody has left");
    for place in places.iter().chain(&fired) {
        check::becomes_quiet(place, replicas).await;
    }
    blows.note("all is quiet");
    rest.send_replace(true);
    let mut seen = Vec::new();
    for reader in readers {
        seen.extend(reader.await.expect("a reader met what nobody should meet"));
    }
    tally.read += seen.iter().map(|(_, piece)| piece.len()).sum::<usize>();
    for place in places.iter().chain(&fired) {
        let log = check::promises_were_kept(place, replicas, &seen).await;
        tally.add(&log);
    }
    blows.note("promises were kept");
}

/// What all rounds came to.
#[derive(Default)]
pub struct Tally {
    turns: usize,
    completed: usize,
    commands: usize,
    firings: usize,
    events: usize,
    /// How many events readers saw.
    read: usize,
    /// What the logs say that model requests cost.
    costs: Vec<(String, i64)>,
    /// What became of requests that no log knows the cost of.
    unheard: usize,
    /// What logs know the cost of, and the ledger only what it could have been.
    unsettled: usize,
    /// What logs know the cost of and the ledger does not know at all.
    missing: usize,
}

impl Tally {
    fn add(&mut self, log: &[proto::event::v1::Event]) {
        let count = |name: &str| log.iter().filter(|event| event.r#type == name).count();
        self.events += log.len();
        self.turns += count("turn.submitted");
        self.completed += count("turn.completed");
        self.commands += count("tool.result");
        self.costs.extend(spending::costs(log));
        self.firings += check::from_triggers(log);
    }

    /// Promises about nothing are kept easily: panics when less happened than does on a machine
    /// that is slow and busy.
    fn says_something(&self, run: &Run, blows: &Blows) {
        let seconds = run.length.as_secs() as usize;
        // A blow lasts for seconds too, and pauses come between blows.
        let apart = (run.pause.end as usize / 1000 + 1).max(6);
        for (what, count, least) in [
            ("turns", self.turns, seconds),
            ("turns from triggers", self.firings, seconds / 2),
            ("commands", self.commands, seconds / 5),
            ("events that readers saw", self.read, seconds * 20),
            ("completed turns", self.completed, self.turns / 2),
            ("blows", blows.fallen(), seconds / apart),
            ("kills", blows.kills(), seconds / (apart * 3 / 2).max(10)),
        ] {
            assert!(count >= least, "{count} {what} in {seconds} s, at least {least} are expected");
        }
    }

    fn sums(&self) -> Vec<(String, usize)> {
        [
            ("turns", self.turns),
            ("of these completed", self.completed),
            ("of these from triggers", self.firings),
            ("commands that ran to their end", self.commands),
            ("events", self.events),
            ("events that readers saw", self.read),
            ("model requests whose cost is on record", self.costs.len()),
            ("model requests that nobody heard the end of", self.unheard),
            ("model requests whose end died with their process", self.unsettled),
            ("model requests that died with their process", self.missing),
        ]
        .map(|(what, count)| (what.to_owned(), count))
        .into()
    }
}

impl Place {
    async fn new(stage: &Pairs, client: &Client) -> Place {
        Place::of(stage, client.create_session_with(AGENT).await).await
    }

    async fn of(stage: &Pairs, session: Session) -> Place {
        let witness = Witness::of(&stage.world, TENANT, &session).await;
        Place { session, witness, notes: Mutex::default() }
    }
}

/// One who may do everything, except for what it asks about.
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
    client.put_manifest(AGENT, manifest).await;
}
