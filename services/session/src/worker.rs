//! Claims turns that are ready and runs them.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use chassis::Tenant;
use redis::aio::MultiplexedConnection;
use sqlx::PgConnection;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tracing::{info, warn};

use crate::{
    driver::{self, Known, Start},
    host::Host,
    ids::SessionId,
    store::{
        self,
        turns::{Claim, Context},
    },
};

/// A wake-up that was lost costs this long.
const SWEEP: Duration = Duration::from_secs(1);

/// How often to look while nobody can wake us.
const ALONE: Duration = Duration::from_millis(100);

/// How long nobody is asked who is ready when it was only tenants who had their part.
const REST: Duration = Duration::from_millis(20);

/// How many sessions are claimed in one round trip.
const CLAIMS: usize = 64;

/// How long turns that are cut off have to say so.
const FAREWELL: Duration = Duration::from_secs(5);

/// The room there is for turns on this replica, of which one tenant has a part.
pub struct Places {
    most: usize,
    room: chassis::Places,
    turns: TaskTracker,
    /// Ends the turns that last longer than a drain may take.
    cut: CancellationToken,
    /// How many sessions the last sweep found ready.
    ready: AtomicUsize,
    /// A turn ended, and its tenant had no room for another one.
    freed: Notify,
}

/// Room for one turn, until it is dropped.
#[derive(Debug)]
pub struct Place {
    _room: chassis::Place,
    _turn: TaskTrackerToken,
}

impl Places {
    pub fn new(turns: usize) -> Places {
        Places {
            most: turns,
            room: chassis::Places::shared(turns),
            turns: TaskTracker::new(),
            cut: CancellationToken::new(),
            ready: AtomicUsize::new(0),
            freed: Notify::new(),
        }
    }

    /// How many turns run here.
    pub fn running(&self) -> usize {
        self.turns.len()
    }

    /// How many sessions waited for a worker when this process last looked. It counts no further
    /// than it could have claimed, all those of tenants who have their part as one, and does not look
    /// while it has no room.
    pub fn ready(&self) -> usize {
        self.ready.load(Relaxed)
    }

    /// None, where turns of the tenant had better run elsewhere: it is full here, they have their
    /// part, or it is about to stop.
    pub fn take(&self, tenant: &Tenant) -> Option<Place> {
        let room = self.room.try_take(tenant)?;
        let place = Place { _room: room, _turn: self.turns.token() };
        // Asked when the turn is counted, so that who waits for the last of them misses none.
        (!self.turns.is_closed()).then_some(place)
    }

    /// Places for as many as can have one, and the others.
    fn take_each(
        &self,
        ready: Vec<(Tenant, SessionId)>,
    ) -> (HashMap<SessionId, Place>, Vec<(Tenant, SessionId)>) {
        let (mut places, mut aside) = (HashMap::with_capacity(ready.len()), vec![]);
        for (tenant, id) in ready {
            match self.take(&tenant) {
                Some(place) => drop(places.insert(id, place)),
                None => aside.push((tenant, id)),
            }
        }
        (places, aside)
    }

    /// For how many turns that nobody waits for: half of the room is kept for those that somebody
    /// does.
    pub fn spare(&self) -> usize {
        (self.most - self.most / 2).saturating_sub(self.room.taken())
    }

    /// For how many of them of one tenant, who has a part of this too.
    pub fn spare_of(&self, tenant: &Tenant) -> usize {
        let half = self.most - self.most / 2;
        (half - half / 4).saturating_sub(self.room.taken_by(tenant)).min(self.spare())
    }

    /// For how many turns there is room, whose ever they are.
    fn left(&self) -> usize {
        self.most.saturating_sub(self.room.taken())
    }

    /// Gives the place of a turn back, and has somebody look for another one if one may have
    /// been left for want of it.
    fn give_back(&self, place: Place, tenant: &Tenant) {
        let full = self.left() == 0 || self.room.is_full(tenant);
        drop(place);
        if full {
            self.freed.notify_one();
        }
    }
}

/// Runs a turn that was claimed.
pub async fn work(
    host: Arc<Host>,
    place: Place,
    claim: Claim,
    context: Context,
    known: Option<Known>,
) {
    let (cut, tenant) = (host.places.cut.clone(), claim.tenant.clone());
    driver::run(host.clone(), claim, context, known, Start::Claimed, cut).await;
    host.places.give_back(place, &tenant);
}

/// Runs turns until `stop`, then lets those under way finish for as long as a drain may take.
pub async fn run(host: Arc<Host>, stop: CancellationToken) {
    claim(&host, &stop).await;

    let Places { turns, cut, .. } = &host.places;
    turns.close();
    if timeout(host.config.chassis.server.drain, turns.wait()).await.is_err() {
        info!(turns = turns.len(), "turns still run, cutting them off");
        cut.cancel();
        let _ = timeout(FAREWELL, turns.wait()).await;
    }
}

/// Claims until `stop`. Only waiting is broken off: what Postgres was asked to claim may be ours
/// whether or not anybody hears the answer, and nobody else would drive it while this one drains.
async fn claim(host: &Arc<Host>, stop: &CancellationToken) {
    let mut sweep_at = Instant::now();
    // Whether the last look left out tenants who had their part, and of whom somebody waits.
    let mut left = false;
    // With whom the next look begins.
    let mut first = None;
    let mut told = pin!(told(host, None, vec![], false));
    loop {
        let (mut places, look) = tokio::select! {
            () = stop.cancelled() => return,
            (connection, ready) = &mut told => {
                // With nobody to tell us there is nothing but looking.
                let alone = connection.is_none();
                let (places, aside) = host.places.take_each(ready);
                let rest = places.is_empty() && !aside.is_empty();
                told.set(self::told(host, connection, aside, rest));
                (places, alone)
            }
            () = host.places.freed.notified(), if left => (HashMap::new(), true),
            () = sleep_until(sweep_at) => (HashMap::new(), true),
        };
        let mut more = false;
        if look {
            sweep_at = Instant::now() + SWEEP;
            let limit = host.places.left().min(CLAIMS);
            let found = if limit == 0 { None } else { sweep(host, first.as_ref(), limit).await };
            // Of whom nobody asked, nobody knows.
            let (found, others) = found.unwrap_or((vec![], true));
            first = found.first().map(|(tenant, _)| tenant.clone());
            let full = found.len() >= limit;
            let (found, aside) = host.places.take_each(found);
            left = others || !aside.is_empty();
            more = full && aside.is_empty();
            places.extend(found);
        }
        if places.is_empty() {
            continue;
        }
        let ids: Vec<_> = places.keys().copied().collect();
        let claims =
            host.lanes.run(async |db: &mut _| store::turns::claim(db, host.replica, &ids).await);
        match claims.await {
            Ok(claims) => {
                // Somebody may have been faster with all of them, and will be with the rest.
                if more && !claims.is_empty() {
                    sweep_at = Instant::now();
                }
                for (claim, context) in claims {
                    if let Some(place) = places.remove(&claim.session_id) {
                        tokio::spawn(work(host.clone(), place, claim, context, None));
                    }
                }
            }
            Err(error) => {
                warn!(%error, "cannot claim turns");
                sleep(ALONE).await;
            }
        }
    }
}

/// Waits until there is room and then for somebody to say what is ready. No connection comes back
/// where nobody can.
///
/// Those `aside` found no place, because their tenants have their part here. They go behind all others,
/// so that nobody waits for them, another process may have a place, and each has its turn; after
/// nothing but such ones there is a `rest`.
async fn told(
    host: &Host,
    connection: Option<MultiplexedConnection>,
    aside: Vec<(Tenant, SessionId)>,
    rest: bool,
) -> (Option<MultiplexedConnection>, Vec<(Tenant, SessionId)>) {
    let Some(mut open) = connection else {
        let connection = host.bus.blocking().await.ok();
        if connection.is_none() {
            sleep(ALONE).await;
        }
        return (connection, vec![]);
    };
    let hear = async {
        if !aside.is_empty() {
            host.bus.put_back(&mut open, &aside).await?;
        }
        if rest {
            sleep(REST).await;
        }
        // Whoever has no room leaves the turns to others.
        let limit = host.places.room.free().await.clamp(1, CLAIMS);
        host.bus.ready(&mut open, limit).await
    };
    match hear.await {
        Ok(ready) => (Some(open), ready),
        Err(error) => {
            warn!(%error, "nobody wakes the workers, looking for turns instead");
            // One that refuses does so at once.
            sleep(ALONE).await;
            (None, vec![])
        }
    }
}

/// What is ready although nobody told us, except that of tenants who have their part, and whether
/// anything of theirs is. None: nobody can say.
async fn sweep(
    host: &Host,
    first: Option<&Tenant>,
    limit: usize,
) -> Option<(Vec<(Tenant, SessionId)>, bool)> {
    let full = host.places.room.full();
    let look = host.lanes.run(async |db: &mut PgConnection| {
        let ready = store::turns::ready(&mut *db, first, &full, limit as i64).await?;
        let others = !full.is_empty() && store::turns::wait(db, &full).await?;
        Ok((ready, others))
    });
    match look.await {
        Ok((ready, others)) => {
            host.places.ready.store(ready.len() + usize::from(others), Relaxed);
            Some((ready, others))
        }
        Err(error) => {
            warn!(%error, "cannot look for turns");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use chassis::{Auth, Redis};
    use sqlx::PgPool;

    use super::*;
    use crate::{bus::Bus, flusher::Flusher, testing::World};

    /// A replica as `serve` makes it, that has nobody to talk to but Postgres.
    async fn host(world: &World, turns: usize, done: &CancellationToken) -> Arc<Host> {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            serve: crate::config::Serve,
        }
        let secret = "0123456789abcdef0123456789abcdef";
        let turns = turns.to_string();
        let flags = ["session", "--auth-internal-secret", secret, "--max-turns", &turns];
        let flags = flags.into_iter().chain(["--redis-url", "redis://localhost:1", "--drain", "1"]);
        let config = <Flags as clap::Parser>::parse_from(flags).serve;
        let redis = Redis::new(&config.chassis.redis).unwrap();
        let auth = Auth::new("session", &config.chassis.auth, world.db.clone()).await.unwrap();
        let bus = Bus::start(redis, world.replica, done.clone());
        let silence = Duration::from_secs(15);
        let flusher = Flusher::start(&world.db, &bus, world.replica, 1, silence, done);
        let db = world.db.clone();
        Arc::new(Host::new(world.replica, db, bus, flusher, &config, &auth).unwrap())
    }

    async fn until(mut holds: impl AsyncFnMut() -> bool) {
        let begun = Instant::now();
        while !holds().await {
            assert!(begun.elapsed() < Duration::from_secs(20), "it never is so");
            sleep(Duration::from_millis(5)).await;
        }
    }

    #[sqlx::test(migrator = "crate::MIGRATIONS")]
    async fn a_claim_that_was_sent_before_the_stop_is_driven(db: PgPool) {
        let world = World::new(db).await;
        let (done, stop) = (CancellationToken::new(), CancellationToken::new());
        let _done = done.clone().drop_guard();
        let host = host(&world, 4, &done).await;
        let id = world.session().await;
        world.submit(id, "hello").await;

        // The claim is under way for as long as somebody else has the turns.
        let mut others = world.db.begin().await.unwrap();
        sqlx::query("lock table session.turn").execute(&mut *others).await.unwrap();
        let working = tokio::spawn(run(host.clone(), stop.clone()));
        let waits = "select exists (select from pg_stat_activity where datname = current_database()
                     and wait_event_type = 'Lock' and query like '%session.claim%')";
        until(async || sqlx::query_scalar(waits).fetch_one(&world.db).await.unwrap()).await;
        stop.cancel();
        sleep(Duration::from_millis(100)).await;
        others.commit().await.unwrap();

        until(async || world.state(id).await.epoch == 1).await;
        until(async || host.driven.contains(id, 1)).await;
        working.abort();
    }

    #[sqlx::test(migrator = "crate::MIGRATIONS")]
    async fn no_tenant_has_all_the_places_of_turns(db: PgPool) {
        let world = World::new(db.clone()).await;
        let other = World { db, tenant: "other".parse().unwrap(), replica: world.replica };
        let (done, stop) = (CancellationToken::new(), CancellationToken::new());
        let _done = done.clone().drop_guard();
        let host = host(&world, 4, &done).await;
        for _ in 0..8 {
            let id = world.session().await;
            world.submit(id, "hello").await;
        }
        let held = host.places.take(&world.tenant).unwrap();
        let working = tokio::spawn(run(host.clone(), stop.clone()));
        let owned =
            "select count(*) from session.run_state where tenant_id = $1 and owner is not null";
        let owned = async |world: &World| -> i64 {
            let owned = sqlx::query_scalar(owned).bind(&world.tenant);
            owned.fetch_one(&world.db).await.unwrap()
        };
        until(async || owned(&world).await == 2).await;
        assert!(host.places.take(&world.tenant).is_none());

        // Behind all that wait, and yet there is a place for it.
        let last = other.session().await;
        other.submit(last, "hello").await;
        until(async || other.state(last).await.owner.is_some()).await;
        assert_eq!(owned(&world).await, 2);
        assert!(host.places.take(&other.tenant).is_none(), "there are more than there should be");
        host.places.give_back(held, &world.tenant);
        until(async || owned(&world).await == 3).await;
        working.abort();
    }

    #[tokio::test]
    async fn a_place_that_somebody_may_wait_for_is_told_of() {
        let places = Places::new(4);
        let (acme, other): (Tenant, Tenant) = ("acme".parse().unwrap(), "other".parse().unwrap());
        let freed = async || timeout(Duration::ZERO, places.freed.notified()).await.is_ok();
        let held: Vec<_> = (0..4).map_while(|_| places.take(&acme)).collect();
        assert_eq!(held.len(), 3);
        let its = places.take(&other).unwrap();
        assert_eq!((places.left(), places.spare_of(&acme), places.running()), (0, 0, 4));

        // There was none for anybody.
        places.give_back(its, &other);
        assert!(freed().await);
        let its = places.take(&other).unwrap();
        let mut held = held.into_iter();
        drop(held.next());
        // Nobody of this tenant was left for want of a place.
        places.give_back(its, &other);
        assert!(!freed().await);
        let again = places.take(&acme).unwrap();
        places.give_back(again, &acme);
        assert!(freed().await);

        drop(held);
        assert_eq!((places.spare(), places.spare_of(&acme)), (2, 2));
        places.turns.close();
        assert!(places.take(&acme).is_none(), "a turn began after the last of them");
        assert_eq!(places.running(), 0);
    }
}
