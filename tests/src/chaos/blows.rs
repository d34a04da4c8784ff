//! What happens to processes, and to what is between them.

use std::{collections::BTreeMap, ops::Range, process::ExitStatus, time::Duration};

use local::Service;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Dice, memory::Memory};
use crate::{LEASE, Pairs, REPLICAS};

/// How long somebody may be away, in milliseconds.
const AWAY: Range<u64> = 100..4000;

/// The same for those whose memory is watched: a session process that sleeps past its lease would
/// end itself.
const SHORTLY: Range<u64> = 100..1000;

/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Kills, stops, restarts and parts processes; whatever is away comes back by itself later.
pub struct Blows {
    stage: Pairs,
    dice: Dice,
    pause: Range<u64>,
    away: Vec<(Instant, Victim, Fate)>,
    /// One replica of each service that sleeps and is cut off like all others but is never killed,
    /// so that there is somebody whose memory can be watched for long.
    elders: BTreeMap<&'static str, usize>,
    /// Session processes that others may have taken for dead, and who end when they hear of it.
    excused: Vec<Victim>,
    /// Processes that ended by themselves, and how.
    ended: Vec<(Victim, ExitStatus)>,
    memory: Memory,
    begun: Instant,
    pub history: Vec<String>,
    counts: BTreeMap<String, usize>,
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
    Terminated,
    /// Nothing that it says arrives anywhere, and it hears nothing.
    Isolated,
    /// The same on one wire.
    Held,
    Cut,
    Forgetful,
}

impl Blows {
    pub fn new(stage: Pairs, mut dice: Dice, pause: Range<u64>) -> Blows {
        let elders = Service::ALL.map(|service| (service.name(), dice.below(REPLICAS)));
        Blows {
            stage,
            dice,
            pause,
            away: vec![],
            elders: elders.into(),
            excused: vec![],
            ended: vec![],
            memory: Memory::default(),
            begun: Instant::now(),
            history: vec![],
            counts: BTreeMap::new(),
        }
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

    /// One blow, and a while to feel it; whoever has been away for long enough comes back.
    pub async fn strike(&mut self, end: Instant) {
        self.revive().await;
        let (victim, fate) = self.choose();
        if !self.is_in_trouble(victim) {
            self.hit(victim, fate).await;
        }
        let pause = self.dice.millis(self.pause.start, self.pause.end);
        self.rest((Instant::now() + pause).min(end)).await;
    }

    /// Everybody is back, and serves until the next round.
    pub async fn restore(&mut self) {
        while let Some((_, victim, fate)) = self.away.pop() {
            self.bring_back(victim, fate).await;
        }
        // Who slept for too long ends itself when it hears of it.
        self.rest(Instant::now() + LEASE).await;
        self.revive().await;
        self.note("all is well");
    }

    fn choose(&mut self) -> (Victim, Fate) {
        let others = [Service::Tools, Service::Models, Service::Triggers];
        let other = others[self.dice.below(others.len())];
        let index = self.dice.below(REPLICAS);
        let any = Service::ALL[self.dice.below(Service::ALL.len())];
        let wire = Victim::Wire(self.dice.below(self.stage.wires.len()));
        match self.dice.below(24) {
            0..4 => (self.mortal(Service::Session), Fate::Killed),
            4..6 => (Victim::Replica(Service::Session, index), Fate::Paused),
            6 => (self.mortal(Service::Session), Fate::Terminated),
            7..11 => (self.mortal(other), Fate::Killed),
            11..13 => (Victim::Replica(other, index), Fate::Paused),
            13 => (self.mortal(other), Fate::Terminated),
            14 => (Victim::Replica(any, index), Fate::Isolated),
            15..17 => (wire, Fate::Held),
            17..19 => (wire, Fate::Cut),
            19 => (Victim::Redis, Fate::Killed),
            20 => (Victim::Redis, Fate::Paused),
            21 => (Victim::Redis, Fate::Forgetful),
            _ => (Victim::Postgres, Fate::Killed),
        }
    }

    /// The replica of a service that may be killed in this run.
    fn mortal(&self, service: Service) -> Victim {
        Victim::Replica(service, (self.elders[service.name()] + 1) % REPLICAS)
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
        self.away.iter().any(|(_, away, _)| of(*away) == of(victim))
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

    async fn hit(&mut self, victim: Victim, fate: Fate) {
        let what = format!("{} {fate:?}", self.name(victim)).to_lowercase();
        self.note(&what);
        let kind = match victim {
            Victim::Replica(service, _) => service.name(),
            Victim::Wire(_) => "wire",
            Victim::Redis => "redis",
            Victim::Postgres => "postgres",
        };
        *self.counts.entry(format!("{kind} {fate:?}").to_lowercase()).or_default() += 1;
        match victim {
            // Nobody can start without Postgres, so it is away alone and not for long.
            Victim::Postgres => {
                let postgres = self.stage.world.servers.postgres().unwrap();
                postgres.kill().await.unwrap();
                sleep(self.dice.millis(0, 1500)).await;
                postgres.restart().await.unwrap();
                return self.note("postgres is back");
            }
            Victim::Redis => {
                let redis = self.stage.world.servers.redis().unwrap();
                match fate {
                    Fate::Forgetful => {
                        return redis.forget().await.unwrap();
                    }
                    Fate::Paused => redis.pause().unwrap(),
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
                Fate::Paused => self.stage.replica(service, index).pause().unwrap(),
                Fate::Terminated => self.stage.replica(service, index).dismiss().unwrap(),
                _ => self.stage.replica(service, index).kill().await.unwrap(),
            },
        }
        self.excuse(victim);
        let away = if self.is_elder(victim) { SHORTLY } else { AWAY };
        let back = Instant::now() + self.dice.millis(away.start, away.end);
        self.away.push((back, victim, fate));
    }

    async fn bring_back(&mut self, victim: Victim, fate: Fate) {
        match (victim, fate) {
            (Victim::Postgres, _) => unreachable!("it comes back at once"),
            (Victim::Redis, Fate::Paused) => {
                self.stage.world.servers.redis().unwrap().resume().unwrap();
            }
            (Victim::Redis, _) => {
                self.stage.world.servers.redis().unwrap().restart().await.unwrap();
            }
            (Victim::Wire(number), _) => {
                let proxy = &self.stage.wires[number].proxy;
                // Whoever waited too long has hung up; what it said must not arrive now, either.
                if self.dice.below(2) == 0 {
                    proxy.cut();
                }
                proxy.resume();
            }
            (Victim::Replica(service, index), Fate::Isolated) => {
                self.stage.wires_of(service, index).for_each(|wire| wire.proxy.resume());
            }
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
        let name = self.name(victim);
        self.note(&format!("{name} is back"));
    }

    async fn start(&mut self, service: Service, index: usize) {
        self.excused.retain(|victim| *victim != Victim::Replica(service, index));
        self.stage.replica(service, index).restart().await.unwrap();
    }

    /// Session processes that were silent for longer than their lease end by themselves, and
    /// nobody else does. Whoever runs them starts new ones.
    async fn revive(&mut self) {
        for service in Service::ALL {
            for index in 0..REPLICAS {
                let victim = Victim::Replica(service, index);
                if self.is_in_trouble(victim) {
                    continue;
                }
                if let Some(status) = self.end_of(victim) {
                    let tail = self.stage.replica(service, index).process().tail();
                    let excused = self.excused.contains(&victim);
                    assert!(excused, "{service} {index} ended by itself ({status})\n{tail}");
                    self.note(&format!("{service} {index} had slept for too long"));
                    self.start(service, index).await;
                }
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

    /// Remembers who may be taken for dead: session processes whose heartbeat does not arrive.
    fn excuse(&mut self, victim: Victim) {
        let silent = match victim {
            Victim::Replica(..) => Some(victim),
            Victim::Wire(number) => {
                let wire = &self.stage.wires[number];
                (wire.variable == "DATABASE_URL")
                    .then_some(Victim::Replica(wire.service, wire.index))
            }
            Victim::Redis | Victim::Postgres => None,
        };
        self.excused
            .extend(silent.filter(|silent| matches!(silent, Victim::Replica(Service::Session, _))));
    }

    async fn rest(&mut self, until: Instant) {
        loop {
            let now = Instant::now();
            let due = self.away.iter().position(|(back, ..)| *back <= now);
            if let Some(due) = due {
                let (_, victim, fate) = self.away.swap_remove(due);
                self.bring_back(victim, fate).await;
                continue;
            }
            self.reap();
            self.memory.sample(&mut self.stage.world.fleet);
            if now >= until {
                return;
            }
            let back = self.away.iter().map(|(back, ..)| *back).min().unwrap_or(until);
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
