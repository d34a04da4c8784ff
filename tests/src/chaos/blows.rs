//! What happens to processes, and to what is between them.

use std::{collections::BTreeMap, fs, ops::Range, process::ExitStatus, time::Duration};

use local::Service;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Dice, memory::Memory};
use crate::{LEASE, Pairs, REPLICAS};

/// How long somebody may be away, in milliseconds.
const AWAY: Range<u64> = 100..4000;

/// The same for those whose memory is watched: a session process that sleeps past its lease would
/// end itself.
const SHORTLY: Range<u64> = 100..1000;

/// How long one who was away may take to hear that it was taken for dead.
const NEWS: Duration = Duration::from_secs(5);

/// What it says then.
const TAKEN_FOR_DEAD: &str = "this process was taken for dead";

/// Every so many blows one is a kill, whatever the dice say.
const KILL: usize = 3;

/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Kills, stops, restarts and parts processes; whatever is away comes back by itself later.
pub struct Blows {
    stage: Pairs,
    /// Never rolled: each blow has chance of its own, so that the same seed brings the same blows
    /// whatever has become of those before.
    chance: Dice,
    count: usize,
    pause: Range<u64>,
    away: Vec<Absence>,
    /// One replica of each service that sleeps and is cut off like all others but is not killed before
    /// the end, so that there is somebody whose memory can be watched for long.
    elders: BTreeMap<&'static str, usize>,
    spares_elders: bool,
    /// Session processes that others may have taken for dead, and until when they may hear of it.
    excused: Vec<(Victim, Instant)>,
    /// Processes that ended by themselves, and how.
    ended: Vec<(Victim, ExitStatus)>,
    /// How long the log of a replica was when its process started.
    starts: BTreeMap<String, usize>,
    memory: Memory,
    begun: Instant,
    pub history: Vec<String>,
    counts: BTreeMap<String, usize>,
}

/// Everything about a blow, decided before it falls.
#[derive(Debug, Clone, Copy)]
struct Blow {
    victim: Victim,
    fate: Fate,
    away: Duration,
    /// Whether whoever waits on a wire hangs up before it is let go.
    hangs_up: bool,
}

struct Absence {
    back: Instant,
    blow: Blow,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Replica(Service, usize),
    /// The number of a wire.
    Wire(usize),
    Redis,
    Postgres,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Killed,
    Paused,
    /// In good order.
    Terminated,
    /// Nothing that it says arrives anywhere, and it hears no answer.
    Isolated,
    /// Nobody who calls it gets through, and it reaches everybody.
    Deaf,
    /// Nothing goes over one wire; of a server, over any wire to it.
    Held,
    Cut,
    Forgetful,
}

impl Blows {
    pub fn new(stage: Pairs, mut dice: Dice, pause: Range<u64>) -> Blows {
        let elders = Service::ALL.map(|service| (service.name(), dice.below(REPLICAS)));
        Blows {
            stage,
            chance: Dice(dice.roll()),
            count: 0,
            pause,
            away: vec![],
            elders: elders.into(),
            spares_elders: true,
            excused: vec![],
            ended: vec![],
            starts: BTreeMap::new(),
            memory: Memory::default(),
            begun: Instant::now(),
            history: vec![],
            counts: BTreeMap::new(),
        }
    }

    /// From now on all of a service may be dead at once.
    pub fn spare_nobody(&mut self) {
        self.spares_elders = false;
    }

    pub fn stage(&mut self) -> &mut Pairs {
        &mut self.stage
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub fn counts(&self) -> Vec<(String, usize)> {
        self.counts.iter().map(|(what, count)| (what.clone(), *count)).collect()
    }

    /// How many blows fell.
    pub fn fallen(&self) -> usize {
        self.counts.values().sum()
    }

    /// How many of them were kills.
    pub fn kills(&self) -> usize {
        let kills = self.counts.iter().filter(|(what, _)| what.ends_with(" killed"));
        kills.map(|(_, count)| count).sum()
    }

    /// How often somebody ended who has part in settling what models cost.
    pub fn unsettling(&self) -> usize {
        let ends = ["models killed", "models terminated", "postgres killed", "postgres terminated"];
        ends.iter().filter_map(|end| self.counts.get(*end)).sum()
    }

    /// One blow, and a while to feel it; whoever has been away for long enough comes back.
    pub async fn strike(&mut self, end: Instant) {
        self.revive().await;
        self.count += 1;
        let mut dice = self.chance.of(self.count);
        let mut blow = self.choose(&mut dice);
        // Postgres is never in trouble here, so there is always somebody.
        while self.count.is_multiple_of(KILL)
            && (blow.fate != Fate::Killed || self.is_in_trouble(blow.victim))
        {
            blow = self.choose(&mut dice);
        }
        if !self.is_in_trouble(blow.victim) {
            self.hit(blow).await;
        }
        let pause = dice.millis(self.pause.start, self.pause.end);
        self.rest((Instant::now() + pause).min(end)).await;
    }

    /// Everybody is back, and serves until the next round.
    pub async fn restore(&mut self) {
        while let Some(absence) = self.away.pop() {
            self.bring_back(absence).await;
        }
        // Who slept for too long ends itself when it hears of it.
        self.rest(Instant::now() + LEASE).await;
        while !self.excused.is_empty() {
            self.revive().await;
            self.rest(Instant::now() + LOOK).await;
        }
        self.revive().await;
        self.nobody_panicked();
        self.note("all is well");
    }

    fn choose(&self, dice: &mut Dice) -> Blow {
        let others = [Service::Tools, Service::Models, Service::Triggers];
        let other = others[dice.below(others.len())];
        let index = dice.below(REPLICAS);
        let any = Service::ALL[dice.below(Service::ALL.len())];
        let wire = Victim::Wire(dice.below(self.stage.wires.len()));
        let (victim, fate) = match dice.below(30) {
            0..4 => (self.mortal(Service::Session, index), Fate::Killed),
            4..6 => (Victim::Replica(Service::Session, index), Fate::Paused),
            6 => (self.mortal(Service::Session, index), Fate::Terminated),
            7..11 => (self.mortal(other, index), Fate::Killed),
            11..13 => (Victim::Replica(other, index), Fate::Paused),
            13 => (self.mortal(other, index), Fate::Terminated),
            14 => (Victim::Replica(any, index), Fate::Isolated),
            15 => (Victim::Replica(any, index), Fate::Deaf),
            16..18 => (wire, Fate::Held),
            18..20 => (wire, Fate::Cut),
            20 => (Victim::Redis, Fate::Killed),
            21 => (Victim::Redis, Fate::Paused),
            22 => (Victim::Redis, Fate::Forgetful),
            23 => (Victim::Redis, Fate::Terminated),
            24 => (Victim::Redis, Fate::Held),
            25..27 => (Victim::Postgres, Fate::Killed),
            27 => (Victim::Postgres, Fate::Terminated),
            28 => (Victim::Postgres, Fate::Paused),
            _ => (Victim::Postgres, Fate::Held),
        };
        // Nobody does much without Postgres, and starting it again takes a while as well.
        let stops = victim == Victim::Postgres && [Fate::Killed, Fate::Terminated].contains(&fate);
        let away = if self.is_elder(victim) || stops { SHORTLY } else { AWAY };
        let away = dice.millis(away.start, away.end);
        Blow { victim, fate, away, hangs_up: dice.below(2) == 0 }
    }

    /// A replica of a service that may be killed now.
    fn mortal(&self, service: Service, any: usize) -> Victim {
        let younger = (self.elders[service.name()] + 1) % REPLICAS;
        Victim::Replica(service, if self.spares_elders { younger } else { any })
    }

    /// Whether it is away, or cannot come back while something is not as it should be.
    fn is_in_trouble(&self, victim: Victim) -> bool {
        let of = |victim| match victim {
            Victim::Wire(number) => {
                let wire = &self.stage.wires[number];
                Victim::Replica(wire.service, wire.index)
            }
            Victim::Replica(..) | Victim::Redis | Victim::Postgres => victim,
        };
        self.away.iter().any(|absence| of(absence.blow.victim) == of(victim))
    }

    fn is_elder(&self, victim: Victim) -> bool {
        match victim {
            Victim::Replica(service, index) => self.elders[service.name()] == index,
            Victim::Wire(number) => {
                let wire = &self.stage.wires[number];
                self.elders[wire.service.name()] == wire.index
            }
            Victim::Redis | Victim::Postgres => false,
        }
    }

    async fn hit(&mut self, blow: Blow) {
        let Blow { victim, fate, away, .. } = blow;
        let name = self.name(victim);
        self.note(&format!("{}: {name} {fate:?}", self.count).to_lowercase());
        let kind = match victim {
            Victim::Replica(service, _) => service.name(),
            Victim::Wire(_) => "wire",
            Victim::Redis => "redis",
            Victim::Postgres => "postgres",
        };
        *self.counts.entry(format!("{kind} {fate:?}").to_lowercase()).or_default() += 1;
        let back = Instant::now() + away;
        match victim {
            // Nobody can start without Postgres, so it is away alone.
            Victim::Postgres => {
                self.strike_postgres(fate, away).await;
                self.excuse(victim, fate);
                return self.note("postgres is back");
            }
            Victim::Redis => {
                let redis = self.stage.world.servers.redis().unwrap();
                match fate {
                    Fate::Forgetful => return redis.forget().await.unwrap(),
                    Fate::Paused => redis.pause().unwrap(),
                    Fate::Held => {
                        self.stage.wires_to("REDIS_URL").for_each(|wire| wire.proxy.hold());
                    }
                    Fate::Terminated => redis.stop().await.unwrap(),
                    _ => redis.kill().await.unwrap(),
                }
            }
            Victim::Wire(number) => {
                let proxy = &self.stage.wires[number].proxy;
                match fate {
                    Fate::Cut => return proxy.cut(),
                    _ => proxy.hold(),
                }
            }
            Victim::Replica(service, index) => match fate {
                Fate::Isolated => {
                    self.stage.wires_of(service, index).for_each(|wire| wire.proxy.hold());
                }
                Fate::Deaf => self.stage.deafen(service, index),
                Fate::Paused => self.stage.replica(service, index).pause().unwrap(),
                Fate::Terminated => self.stage.replica(service, index).dismiss().unwrap(),
                _ => self.stage.replica(service, index).kill().await.unwrap(),
            },
        }
        self.away.push(Absence { back, blow });
    }

    async fn strike_postgres(&mut self, fate: Fate, away: Duration) {
        let postgres = self.stage.world.servers.postgres().unwrap();
        match fate {
            Fate::Held => {
                self.stage.wires_to("DATABASE_URL").for_each(|wire| wire.proxy.hold());
                sleep(away).await;
                let held = self.stage.wires_to("DATABASE_URL");
                return held.for_each(|wire| wire.proxy.resume());
            }
            Fate::Paused => {
                postgres.pause().unwrap();
                sleep(away).await;
                return postgres.resume().unwrap();
            }
            Fate::Terminated => postgres.stop().await.unwrap(),
            _ => postgres.kill().await.unwrap(),
        }
        sleep(away).await;
        postgres.restart().await.unwrap();
    }

    async fn bring_back(&mut self, absence: Absence) {
        let Blow { victim, fate, hangs_up, .. } = absence.blow;
        match (victim, fate) {
            (Victim::Postgres, _) => unreachable!("it comes back at once"),
            (Victim::Redis, Fate::Paused) => {
                self.stage.world.servers.redis().unwrap().resume().unwrap();
            }
            (Victim::Redis, Fate::Held) => {
                self.stage.wires_to("REDIS_URL").for_each(|wire| wire.proxy.resume());
            }
            (Victim::Redis, _) => {
                self.stage.world.servers.redis().unwrap().restart().await.unwrap();
            }
            (Victim::Wire(number), _) => {
                let proxy = &self.stage.wires[number].proxy;
                // Whoever waited too long has hung up; what it said must not arrive now, either.
                if hangs_up {
                    proxy.cut();
                }
                proxy.resume();
            }
            (Victim::Replica(service, index), Fate::Isolated) => {
                self.stage.wires_of(service, index).for_each(|wire| wire.proxy.resume());
            }
            (Victim::Replica(service, index), Fate::Deaf) => self.stage.undeafen(service, index),
            (Victim::Replica(service, index), Fate::Paused) => {
                self.stage.replica(service, index).resume().unwrap();
            }
            (Victim::Replica(service, index), Fate::Terminated) => {
                match self.end_of(victim) {
                    Some(status) => assert!(
                        status.success(),
                        "{service} was asked to end and failed ({status})\n{}",
                        self.stage.replica(service, index).process().tail()
                    ),
                    // It is still finishing what it does, and a new one needs its port.
                    None => self.stage.replica(service, index).kill().await.unwrap(),
                }
                self.start(service, index).await;
            }
            (Victim::Replica(service, index), _) => self.start(service, index).await,
        }
        self.excuse(victim, fate);
        let name = self.name(victim);
        self.note(&format!("{name} is back"));
    }

    async fn start(&mut self, service: Service, index: usize) {
        self.excused.retain(|(victim, _)| *victim != Victim::Replica(service, index));
        let process = self.stage.replica(service, index).process();
        let (name, written) = (process.name().to_owned(), fs::read(process.log()).unwrap().len());
        self.starts.insert(name, written);
        self.stage.replica(service, index).restart().await.unwrap();
    }

    /// Session processes that were silent for longer than their lease end by themselves when they
    /// hear of it, and nobody else does. Whoever runs them starts new ones.
    async fn revive(&mut self) {
        for service in Service::ALL {
            for index in 0..REPLICAS {
                let victim = Victim::Replica(service, index);
                if self.is_in_trouble(victim) {
                    continue;
                }
                if let Some(status) = self.end_of(victim) {
                    let tail = self.stage.replica(service, index).process().tail();
                    let excused = self.excused.iter().any(|(excused, _)| *excused == victim)
                        && self.was_taken_for_dead(victim)
                        && status.code().is_some();
                    assert!(excused, "{service} {index} ended by itself ({status})\n{tail}");
                    self.note(&format!("{service} {index} had slept for too long"));
                    self.start(service, index).await;
                }
            }
        }
    }

    /// Whether the process that runs now, or ran last, has said so.
    fn was_taken_for_dead(&mut self, victim: Victim) -> bool {
        let Victim::Replica(service, index) = victim else { return false };
        let process = self.stage.replica(service, index).process();
        let log = fs::read(process.log()).unwrap();
        let start = self.starts.get(process.name()).copied().unwrap_or_default();
        String::from_utf8_lossy(&log[start..]).contains(TAKEN_FOR_DEAD)
    }

    fn nobody_panicked(&mut self) {
        for service in Service::ALL {
            for index in 0..REPLICAS {
                let log = fs::read(self.stage.replica(service, index).process().log()).unwrap();
                let log = String::from_utf8_lossy(&log);
                let panic = log.lines().find(|line| line.contains("panicked"));
                assert_eq!(panic, None, "{service} {index}");
            }
        }
    }

    /// How a process ended that nobody has asked about yet.
    fn end_of(&mut self, victim: Victim) -> Option<ExitStatus> {
        self.reap();
        let place = self.ended.iter().position(|(ended, _)| *ended == victim)?;
        Some(self.ended.swap_remove(place).1)
    }

    /// Remembers how processes ended: they say it once.
    fn reap(&mut self) {
        for service in Service::ALL {
            for index in 0..REPLICAS {
                let status = self.stage.replica(service, index).process().exited();
                self.ended.extend(status.map(|status| (Victim::Replica(service, index), status)));
            }
        }
    }

    /// Remembers who may have been taken for dead: session processes whose heartbeat did not
    /// arrive. Not by how long they were away: on a busy machine one of them may need longer than a
    /// lease to find back to Postgres when the other already has.
    fn excuse(&mut self, victim: Victim, fate: Fate) {
        let silent = match victim {
            Victim::Replica(Service::Session, index)
                if [Fate::Paused, Fate::Isolated].contains(&fate) =>
            {
                index..index + 1
            }
            Victim::Wire(number) => {
                let wire = &self.stage.wires[number];
                match (wire.service, wire.variable.as_str()) {
                    (Service::Session, "DATABASE_URL") => wire.index..wire.index + 1,
                    _ => return,
                }
            }
            Victim::Postgres => 0..REPLICAS,
            Victim::Replica(..) | Victim::Redis => return,
        };
        let until = Instant::now() + NEWS;
        let silent = silent.map(|index| (Victim::Replica(Service::Session, index), until));
        self.excused.extend(silent);
    }

    /// Who has heard nothing until now has no excuse for what happens later.
    fn forget_excuses(&mut self) {
        let now = Instant::now();
        for (victim, until) in std::mem::take(&mut self.excused) {
            if now < until || self.was_taken_for_dead(victim) {
                self.excused.push((victim, until));
            }
        }
    }

    async fn rest(&mut self, until: Instant) {
        loop {
            let now = Instant::now();
            let due = self.away.iter().position(|absence| absence.back <= now);
            if let Some(due) = due {
                let absence = self.away.swap_remove(due);
                self.bring_back(absence).await;
                continue;
            }
            self.reap();
            self.forget_excuses();
            self.memory.sample(&mut self.stage.world.fleet);
            if now >= until {
                return;
            }
            let back = self.away.iter().map(|absence| absence.back).min().unwrap_or(until);
            sleep_until(back.min(until).min(now + LOOK)).await;
        }
    }

    fn name(&self, victim: Victim) -> String {
        match victim {
            Victim::Replica(service, index) => format!("{service} {index}"),
            Victim::Wire(number) => {
                let wire = &self.stage.wires[number];
                format!("{} of {} {}", wire.variable, wire.service, wire.index).to_lowercase()
            }
            Victim::Redis => "redis".to_owned(),
            Victim::Postgres => "postgres".to_owned(),
        }
    }

    pub fn note(&mut self, what: &str) {
        self.history.push(format!("{:7.3} {what}", self.begun.elapsed().as_secs_f64()));
    }
}

/// Says what had happened when something went wrong.
impl Drop for Blows {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.history.join("\n"));
        }
    }
}
