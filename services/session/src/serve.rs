use std::{io::Write as _, sync::Arc};

use anyhow::{Context as _, bail};
use chassis::{
    Auth, Redis, Tenant,
    auth::{
        Scopes,
        keys::{self, NewKey},
    },
};
use secrecy::ExposeSecret as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    MIGRATIONS, api, bus::Bus, config::Serve, courier, facts, flusher::Flusher, heart, host::Host,
    hub::Hub, ids::ReplicaId, keeper, lifecycle::Lifecycle, metrics, patrol, purge,
    store::replicas, work, worker,
};

/// Runs the service until `stop`, then finishes what it had begun.
pub async fn serve(
    config: Serve,
    listener: TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let db = chassis::database::connect(&config.chassis.database, "session").await?;
    chassis::database::migrate(&db, &MIGRATIONS).await?;
    let redis = Redis::new(&config.chassis.redis)?;
    let auth = Auth::new("session", &config.chassis.auth, db.clone()).await?;

    // What turns need stays until the last of them has ended.
    let done = CancellationToken::new();
    let _done = done.clone().drop_guard();
    let replica = ReplicaId::new();
    let bus = Bus::start(redis.clone(), replica, done.clone());
    let silence = chassis::database::silence(&config.chassis.database);
    let flusher = Flusher::start(&db, &bus, replica, config.flushers, silence, &done);
    let hub = Hub::start(&bus, db.clone(), done.clone());
    let lifecycle = Lifecycle::start(&bus, db.clone(), done.clone());
    let host = Arc::new(Host::new(replica, db.clone(), bus, flusher, &config, &auth)?);

    metrics::observe(&host);
    replicas::register(&db, replica, &listener.local_addr()?.to_string()).await?;
    let lane = heart::lane(&db, &config)?;
    tokio::spawn(heart::beat(host.clone(), lane, stop.clone(), done.clone()));
    let nudges = host.bus.nudges(done.clone());
    tokio::spawn(patrol::run(host.clone(), nudges, done.clone()));
    tokio::spawn(done.clone().run_until_cancelled_owned(courier::run(host.clone())));
    tokio::spawn(purge::run(db.clone(), stop.clone()));
    tokio::spawn(stop.clone().run_until_cancelled_owned(keeper::run(host.clone())));
    tokio::spawn(stop.clone().run_until_cancelled_owned(facts::run(host.clone())));
    tokio::spawn(stop.clone().run_until_cancelled_owned(facts::tell(host.clone())));
    tokio::spawn(stop.clone().run_until_cancelled_owned(work::run(host.clone())));
    let working = tokio::spawn(worker::run(host.clone(), stop.clone()));

    let server = chassis::Server::new("session", &config.chassis, &db, auth).redis(&redis);
    let routes = api::routes(host, hub, lifecycle, stop.clone());
    let served = server.serve(listener, routes, stop.clone()).await;
    stop.cancel();
    working.await?;
    let left = replicas::leave(&db, replica).await;
    // Whoever works in the background is not to find its connections gone.
    done.cancel();
    chassis::database::close(&db).await;
    left?;
    served
}

/// Brings the database up to date.
pub async fn migrate(config: &Serve) -> anyhow::Result<()> {
    let db = chassis::database::connect(&config.chassis.database, "session").await?;
    chassis::database::migrate(&db, &MIGRATIONS).await
}

/// Creates a key and prints it, the only time anybody sees it.
pub async fn mint_key(
    config: &Serve,
    tenant: Tenant,
    subject: String,
    scopes: &[String],
) -> anyhow::Result<()> {
    let known = Scopes::from_names(scopes.iter().map(String::as_str));
    if known.names().len() != scopes.len() {
        bail!("scopes are read, run, configure and admin, each once; got {}", scopes.join(","));
    }
    let db = chassis::database::connect(&config.chassis.database, "session").await?;
    chassis::database::migrate(&db, &MIGRATIONS).await?;
    let name = "minted on the command line".to_owned();
    let new = NewKey { tenant, subject, name, scopes: known, expires_at: None };
    let (_, secret) = keys::create(&db, new).await.context("cannot create the key")?;
    writeln!(std::io::stdout(), "{}", secret.expose_secret())?;
    Ok(())
}
