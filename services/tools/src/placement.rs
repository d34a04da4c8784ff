//! Which replica has a workspace, where each has a disk of its own.
//!
//! A replica is its disk: the disk has an id, and whoever starts with it says in the database
//! where it is reached. A workspace is placed once, on whoever first uses it, and stays there.

use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Context as _;
use chassis::{Auth, Peer, Tenant};
use moka::sync::Cache;
use sqlx::PgPool;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    Config,
    call::{ReplicaId, WorkspaceId},
    error::Result,
    store::{replicas, workspaces},
};

/// How often a replica says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How long a place is believed: a workspace that was deleted may be made again elsewhere.
const PLACE: Duration = Duration::from_secs(10);

/// How long an address is believed.
const ADDRESS: Duration = Duration::from_secs(2);

const MOST_KNOWN: u64 = 100_000;

/// The file in the directory of all workspaces that says whose disk it is.
const IDENTITY: &str = ".replica";

pub struct Placement {
    pub here: ReplicaId,
    address: String,
    db: PgPool,
    auth: Auth,
    tls: chassis::tls::Args,
    places: Cache<(Tenant, WorkspaceId), ReplicaId>,
    addresses: Cache<ReplicaId, String>,

    /// By address. There are as many as there are replicas.
    peers: Mutex<HashMap<String, Peer>>,
}

impl Placement {
    pub async fn open(
        config: &Config,
        address: &str,
        db: &PgPool,
        auth: &Auth,
    ) -> anyhow::Result<Arc<Placement>> {
        let here = identity(&config.workspaces_dir).context("cannot tell whose disk this is")?;
        let placement = Placement {
            here,
            address: address.to_owned(),
            db: db.clone(),
            auth: auth.clone(),
            tls: config.chassis.tls.clone(),
            places: Cache::builder().max_capacity(MOST_KNOWN).time_to_live(PLACE).build(),
            addresses: Cache::builder().max_capacity(MOST_KNOWN).time_to_live(ADDRESS).build(),
            peers: Mutex::default(),
        };
        // An address that nobody could call is noticed here, and not by the others.
        placement.peer_at(address)?;
        replicas::beat(db, here, address).await?;
        info!(replica.id = %here, address, "workspaces are on the disk of replica {here}");
        Ok(Arc::new(placement))
    }

    /// Says that we are there, until `stop`.
    pub async fn beat(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = interval(HEARTBEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Err(error) = replicas::beat(&self.db, self.here, &self.address).await {
                warn!(%error, "cannot say that this replica is there, trying again");
            }
        }
    }

    /// Whose a workspace is. One that is nobody's becomes ours if it is to be used.
    pub async fn of(
        &self,
        tenant: &Tenant,
        id: WorkspaceId,
        claim: bool,
    ) -> Result<Option<ReplicaId>> {
        let key = (tenant.clone(), id);
        if let Some(place) = self.places.get(&key) {
            return Ok(Some(place));
        }
        let found = workspaces::get(&self.db, tenant, id).await?;
        let place = match found.and_then(|found| found.replica_id) {
            None if claim => {
                workspaces::claim(&self.db, tenant, id, Some(self.here)).await?.replica_id
            }
            place => place,
        };
        if let Some(place) = place {
            self.places.insert(key, place);
        }
        Ok(place)
    }

    /// The way to another replica. `None`: nobody has ever heard of it.
    pub async fn peer(&self, replica: ReplicaId) -> Result<Option<Peer>> {
        let address = match self.addresses.get(&replica) {
            Some(address) => address,
            None => {
                let Some((address, silence)) = replicas::find(&self.db, replica).await? else {
                    return Ok(None);
                };
                if silence > HEARTBEAT.as_secs_f64() * 3.0 {
                    warn!(replica.id = %replica, silence, "replica {replica} is silent");
                }
                self.addresses.insert(replica, address.clone());
                address
            }
        };
        Ok(self.peer_at(&address).ok())
    }

    fn peer_at(&self, address: &str) -> anyhow::Result<Peer> {
        let mut peers = self.peers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(peer) = peers.get(address) {
            return Ok(peer.clone());
        }
        let peer = Peer::new("tools", address, &self.tls, &self.auth)?;
        peers.insert(address.to_owned(), peer.clone());
        Ok(peer)
    }
}

/// The id of a disk, which it gets with its first start.
fn identity(root: &Path) -> anyhow::Result<ReplicaId> {
    let path = root.join(IDENTITY);
    if !path.exists() {
        let new = tempfile::NamedTempFile::new_in(root)?;
        fs::write(new.path(), ReplicaId::new().to_string())?;
        new.as_file().sync_all()?;
        match new.persist_noclobber(&path) {
            Ok(_) => fs::File::open(root)?.sync_all()?,
            // Somebody else starts here at the same time.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => (),
            Err(error) => return Err(error.error.into()),
        }
    }
    let text = fs::read_to_string(&path)?;
    text.trim().parse().with_context(|| format!("{} holds no id", path.display()))
}

#[test]
fn a_disk_keeps_its_identity() {
    let disk = tempfile::tempdir().unwrap();
    let first = identity(disk.path()).unwrap();
    assert_eq!(identity(disk.path()).unwrap(), first);
    fs::write(disk.path().join(IDENTITY), "nobody").unwrap();
    assert!(identity(disk.path()).is_err());
}
