//! What happens to processes.

use local::Service;
use tests::World;
use tokio::time::{Instant, sleep, sleep_until};

use super::Dice;

/// Kills, stops and restarts processes; whatever is away comes back by itself later.
pub struct Chaos<'a> {
    world: &'a mut World,
    dice: Dice,
    away: Vec<(Instant, Victim, Fate)>,
    begun: Instant,
    /// What happened when, for people who wonder.
    pub history: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Session(usize),
    Tools,
    Models,
    Redis,
    Postgres,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Killed,
    Paused,
    Terminated,
    Forgetful,
}

impl<'a> Chaos<'a> {
    pub fn new(world: &'a mut World, dice: Dice) -> Chaos<'a> {
        Chaos { world, dice, away: vec![], begun: Instant::now(), history: vec![] }
    }

    /// One blow, and a while to feel it; whoever has been away for long enough comes back.
    pub async fn strike(&mut self) {
        let (victim, fate) = match self.dice.below(16) {
            0..3 => (Victim::Session(self.dice.below(2)), Fate::Killed),
            3..6 => (Victim::Session(self.dice.below(2)), Fate::Paused),
            6 => (Victim::Session(self.dice.below(2)), Fate::Terminated),
            7 => (Victim::Tools, Fate::Killed),
            8 => (Victim::Tools, Fate::Paused),
            9 => (Victim::Models, Fate::Killed),
            10 => (Victim::Models, Fate::Paused),
            11 => (Victim::Redis, Fate::Killed),
            12 => (Victim::Redis, Fate::Paused),
            13 | 14 => (Victim::Redis, Fate::Forgetful),
            _ => (Victim::Postgres, Fate::Killed),
        };
        if !self.away.iter().any(|(_, away, _)| *away == victim) {
            self.hit(victim, fate).await;
        }
        let pause = self.dice.millis(200, 1200);
        self.rest(Instant::now() + pause).await;
    }

    /// Everybody is back, and serves until the end.
    pub async fn restore(&mut self) {
        while let Some((_, victim, fate)) = self.away.pop() {
            self.bring_back(victim, fate).await;
        }
        for index in 0..2 {
            // Who slept for too long ends itself with its next heartbeat. Nobody but time can say
            // whether that is still to come, so none of them stays.
            let replica = self.replica(Victim::Session(index));
            if replica.process().pid().is_some() {
                replica.kill().await.unwrap();
            }
            replica.restart().await.unwrap();
        }
    }

    async fn hit(&mut self, victim: Victim, fate: Fate) {
        self.note(&format!("{victim:?} {fate:?}"));
        if let (Victim::Redis, Fate::Forgetful) = (victim, fate) {
            return self.world.servers.redis().unwrap().forget().await.unwrap();
        }
        // Nobody can start without Postgres, so it is away alone and not for long.
        if victim == Victim::Postgres {
            let postgres = self.world.servers.postgres().unwrap();
            postgres.kill().await.unwrap();
            sleep(self.dice.millis(0, 1500)).await;
            postgres.restart().await.unwrap();
            return self.note("Postgres is back");
        }
        match (victim, fate) {
            (Victim::Redis, Fate::Paused) => self.world.servers.redis().unwrap().pause().unwrap(),
            (Victim::Redis, _) => self.world.servers.redis().unwrap().kill().await.unwrap(),
            _ => {
                let replica = self.replica(victim);
                if replica.process().pid().is_none() {
                    return replica.restart().await.unwrap();
                }
                match fate {
                    Fate::Paused => replica.pause().unwrap(),
                    Fate::Terminated => replica.dismiss().unwrap(),
                    _ => replica.kill().await.unwrap(),
                }
            }
        }
        let back = Instant::now() + self.dice.millis(100, 4000);
        self.away.push((back, victim, fate));
    }

    async fn bring_back(&mut self, victim: Victim, fate: Fate) {
        match (victim, fate) {
            (Victim::Redis, Fate::Paused) => self.world.servers.redis().unwrap().resume().unwrap(),
            (Victim::Redis, _) => self.world.servers.redis().unwrap().restart().await.unwrap(),
            (_, Fate::Paused) => self.replica(victim).resume().unwrap(),
            (_, Fate::Terminated) => {
                // It may still be finishing what it does; a new one needs its port.
                let replica = self.replica(victim);
                if replica.process().pid().is_some() {
                    replica.kill().await.unwrap();
                }
                replica.restart().await.unwrap();
            }
            _ => self.replica(victim).restart().await.unwrap(),
        }
        self.note(&format!("{victim:?} is back"));
    }

    async fn rest(&mut self, until: Instant) {
        while let Some(next) = self.away.iter().map(|(back, ..)| *back).min()
            && next <= until
        {
            sleep_until(next).await;
            let due = self.away.iter().position(|(back, ..)| *back == next).unwrap();
            let (_, victim, fate) = self.away.swap_remove(due);
            self.bring_back(victim, fate).await;
        }
        sleep_until(until).await;
    }

    fn replica(&mut self, victim: Victim) -> &mut local::Replica {
        match victim {
            Victim::Session(index) => self.world.fleet.replica(Service::Session, index),
            Victim::Tools => self.world.fleet.get(Service::Tools),
            Victim::Models => self.world.fleet.get(Service::Models),
            Victim::Redis | Victim::Postgres => unreachable!("{victim:?} is not a service"),
        }
    }

    fn note(&mut self, what: &str) {
        self.history.push(format!("{:7.3} {what}", self.begun.elapsed().as_secs_f64()));
    }
}
