use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::host::Host;

/// How many hosts, and how many refusals, are told of one by one.
const MOST_REACHED: usize = 100;
const MOST_REFUSED: usize = 20;

/// What one call reached and was refused, and how much it may still send and receive.
#[derive(Debug)]
pub struct Ledger {
    /// How many bytes are left of what a call may use.
    left: AtomicU64,
    over: AtomicBool,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    reached: BTreeMap<(Host, SocketAddr), Traffic>,
    /// What there was no room for.
    others: Traffic,
    /// Each with how often it happened.
    refused: BTreeMap<String, u64>,
    other_refusals: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub connections: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// What a call did, in the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub reached: Vec<Reached>,
    /// All connections beside those.
    pub others: Traffic,
    /// One sentence for each thing that was refused.
    pub refused: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Reached {
    pub host: Host,
    pub address: SocketAddr,
    pub traffic: Traffic,
}

/// The call has used up what it may send and receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this call may not send and receive any more")]
pub struct Exhausted;

impl Ledger {
    pub fn new(bytes: u64) -> Ledger {
        Ledger {
            left: AtomicU64::new(bytes),
            over: AtomicBool::new(false),
            entries: Mutex::default(),
        }
    }

    /// Counts what goes over one connection.
    pub fn open(self: &Arc<Self>, host: Host, address: SocketAddr) -> Meter {
        let traffic = Traffic { connections: 1, ..Traffic::default() };
        Meter { ledger: self.clone(), host, address, traffic }
    }

    pub fn refuse(&self, reason: String) {
        self.change(|entries| {
            if let Some(count) = entries.refused.get_mut(&reason) {
                *count += 1;
            } else if entries.refused.len() < MOST_REFUSED {
                entries.refused.insert(reason, 1);
            } else {
                entries.other_refusals += 1;
            }
        });
    }

    /// What is known by now; what is still connected is not in it.
    pub fn record(&self) -> Record {
        let entries = self.change(std::mem::take);
        let reached = entries.reached.into_iter();
        let reached = reached.map(|((host, address), traffic)| Reached { host, address, traffic });
        let refused = entries.refused.into_iter().map(|(reason, count)| match count {
            1 => reason,
            count => format!("{reason} ({count} times)"),
        });
        let others = (entries.other_refusals > 0)
            .then(|| format!("{} other refusals", entries.other_refusals));
        Record {
            reached: reached.collect(),
            others: entries.others,
            refused: refused.chain(others).collect(),
        }
    }

    fn use_up(&self, bytes: u64) -> Result<(), Exhausted> {
        let use_up = |left: u64| left.checked_sub(bytes);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, use_up) {
            Ok(_) => Ok(()),
            Err(_) => {
                // Whatever is still under way ends as well.
                self.left.store(0, Ordering::Relaxed);
                if !self.over.swap(true, Ordering::Relaxed) {
                    self.refuse(Exhausted.to_string());
                }
                Err(Exhausted)
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Entries) -> T) -> T {
        // Nothing in here panics halfway.
        change(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One connection. What it counted is on record once it is dropped.
#[derive(Debug)]
pub struct Meter {
    ledger: Arc<Ledger>,
    host: Host,
    address: SocketAddr,
    traffic: Traffic,
}

impl Meter {
    pub fn sent(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.traffic.sent_bytes += bytes as u64;
        self.ledger.use_up(bytes as u64)
    }

    pub fn received(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.traffic.received_bytes += bytes as u64;
        self.ledger.use_up(bytes as u64)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.ledger.change(|entries| {
            let key = (self.host.clone(), self.address);
            let known = entries.reached.contains_key(&key);
            let total = match known || entries.reached.len() < MOST_REACHED {
                true => entries.reached.entry(key).or_default(),
                false => &mut entries.others,
            };
            total.connections += self.traffic.connections;
            total.sent_bytes += self.traffic.sent_bytes;
            total.received_bytes += self.traffic.received_bytes;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_is_bounded_and_all_of_it_counted() {
        let ledger = Arc::new(Ledger::new(u64::MAX));
        for index in 0..300 {
            let host = Host::new(&format!("h{}.example", index % 150), 443).unwrap();
            let mut meter = ledger.open(host, "192.0.2.1:443".parse().unwrap());
            meter.sent(2).unwrap();
            meter.received(3).unwrap();
            ledger.refuse(format!("reason {}", index % 30));
        }
        let Record { reached, others, refused } = ledger.record();
        assert_eq!((reached.len(), refused.len()), (MOST_REACHED, MOST_REFUSED + 1));
        let twice = Traffic { connections: 2, sent_bytes: 4, received_bytes: 6 };
        assert!(reached.iter().all(|reached| reached.traffic == twice));
        assert_eq!(others, Traffic { connections: 100, sent_bytes: 200, received_bytes: 300 });
        assert_eq!(refused[0], "reason 0 (10 times)");
        assert_eq!(refused[MOST_REFUSED], "100 other refusals");
    }

    #[test]
    fn a_call_uses_up_what_it_may_use() {
        let ledger = Arc::new(Ledger::new(10));
        let open =
            || ledger.open(Host::new("a.example", 80).unwrap(), "192.0.2.1:80".parse().unwrap());
        let (mut one, mut other) = (open(), open());
        one.sent(6).unwrap();
        other.received(4).unwrap();
        assert_eq!(one.received(1), Err(Exhausted));
        assert_eq!(other.sent(1), Err(Exhausted));
        drop((one, other));
        assert_eq!(ledger.record().refused, [Exhausted.to_string()]);
    }
}
