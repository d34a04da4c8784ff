//! The only ways out: who may be reached, and by whom.
//!
//! Nothing in a sandbox has a network, and nothing in this process connects to a host that
//! somebody else named, except through here. [`Outward`] is the way out for what runs in this
//! process. A command gets an [`Egress`]: a proxy that listens inside of its sandbox and
//! connects outside of it, for as long as the call lasts.

pub mod address;
pub mod outward;
mod hello;
mod ledger;
mod plain;
mod proxy;
mod traffic;
mod tunnel;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, io, net::TcpListener as StdTcpListener, sync::Arc};

use sandbox::{PROXY_PORT, Profile};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use reqwest::redirect::Policy;

use self::proxy::Omitted;
pub use self::{
    address::{Addresses, Allowance},
    ledger::{Ledger, Meter, Reached, Record, Traffic},
    outward::{Outward, Refusal, cause},
};
use crate::host::{Grant, Host};

/// The layer that a refusal is put on record with.
pub const LAYER: &str = "egress";

/// Who we say we are.
const USER_AGENT: &str = concat!("windlass/", env!("CARGO_PKG_VERSION"));

/// The ways out of this service, as its operator wants them.
#[derive(Clone)]
pub struct Gateway {
    outward: Outward,
    client: reqwest::Client,
    /// How much one call may send and receive.
    bytes: u64,
}

impl Gateway {
    pub fn new(addresses: Addresses, bytes: u64) -> reqwest::Result<Gateway> {
        let outward = Outward::new(addresses);
        let client = outward.builder().redirect(Policy::none()).user_agent(USER_AGENT).build()?;
        Ok(Gateway { outward, client, bytes })
    }

    /// A client that goes nowhere by itself. Whoever uses it asks [`Outward::check`] first.
    pub fn client(&self) -> &reqwest::Client {
        &self.client
    }

    pub fn outward(&self) -> &Outward {
        &self.outward
    }

    /// A record of what one call reaches.
    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::new(Ledger::new(self.bytes))
    }
}

/// The way out for one call, or for anything else that lives in a sandbox of its own.
pub struct Egress {
    way: Arc<Way>,
    hosts: Vec<String>,
}

/// What a proxy goes by.
struct Way {
    outward: Outward,
    grants: Vec<Grant>,
    ledger: Arc<Ledger>,
    omitted: Omitted,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Egress {
    /// Absent when nothing was granted. What cannot be read grants nothing.
    pub fn for_call(gateway: &Gateway, hosts: &[String]) -> Option<Egress> {
        let grants: Vec<Grant> = hosts.iter().filter_map(|host| Grant::new(host)).collect();
        let way = Way {
            outward: gateway.outward.clone(),
            ledger: gateway.ledger(),
            omitted: Omitted::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            grants,
        };
        match way.grants.is_empty() {
            true => None,
            false => Some(Egress { way: Arc::new(way), hosts: hosts.to_vec() }),
        }
    }

    /// A profile that also opens the door for the proxy, and tells programs of it.
    pub fn profile(&self, profile: &Profile) -> Profile {
        let mut profile = Profile { proxy: true, ..profile.clone() };
        profile.env.extend(environment(PROXY_PORT));
        profile
    }

    /// Lets out whatever comes to the door of a sandbox.
    pub fn start(self, door: StdTcpListener) -> io::Result<Proxy> {
        door.set_nonblocking(true)?;
        let door = TcpListener::from_std(door)?;
        let Egress { way, hosts } = self;
        way.clone().spawn(proxy::serve(way.clone(), door));
        Ok(Proxy { way, hosts })
    }
}

impl Way {
    fn admits(&self, host: &Host) -> bool {
        self.grants.iter().any(|grant| grant.covers(host))
    }

    /// Runs something until it ends or the proxy does.
    fn spawn(self: Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.stop.clone().cancelled_owned();
        self.tasks.spawn(async move {
            tokio::select! {
                () = work => (),
                () = stopped => (),
            }
        });
    }
}

/// A proxy at work. Dropping it ends every connection.
pub struct Proxy {
    way: Arc<Way>,
    hosts: Vec<String>,
}

impl Proxy {
    /// What was granted, as it was written.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Ends every connection and says what there was.
    pub async fn finish(self) -> Record {
        self.way.stop.cancel();
        self.way.tasks.close();
        self.way.tasks.wait().await;
        self.way.ledger.record()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.way.stop.cancel();
    }
}

/// The variables by which programs find a proxy that listens at `port`, in the several
/// spellings that they look for. What they started themselves they reach without it.
fn environment(port: u16) -> BTreeMap<String, String> {
    let proxy = format!("http://127.0.0.1:{port}");
    let none = "localhost,127.0.0.1,::1";
    let named = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"].map(|name| (name, proxy.as_str()));
    let both = named.into_iter().chain([("NO_PROXY", none)]).flat_map(|(name, value)| {
        [name.to_owned(), name.to_lowercase()].map(|name| (name, value.to_owned()))
    });
    // Node looks at them only when it is told to.
    both.chain([("NODE_USE_ENV_PROXY".into(), "1".into())]).collect()
}
