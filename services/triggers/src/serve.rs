use std::sync::Arc;

use chassis::{
    Auth, Server,
    database::{self, Own},
};
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::sync::CancellationToken;

use crate::{
    MIGRATIONS, api,
    clock::Clock,
    config::Config,
    credential::Credentials,
    deliver::Deliverer,
    fire::Fire,
    http::{self, Http, Known},
    mcp::{self, Tools},
    scheduler::{self, Scheduler},
    sealed::Keys,
    sessions::Sessions,
};

/// Runs the service until `stop`, then finishes what it had begun. Tests start it this way too.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let db = database::connect(&config.chassis.database, "triggers").await?;
    database::migrate(&db, &MIGRATIONS).await?;
    let auth = Auth::new("triggers", &config.chassis.auth, db.clone()).await?;
    let clock = Clock::new(config.clock_file.clone());
    let sessions = Sessions::new(&config, &auth)?;

    // What calls need stays until the last of them is answered.
    let done = CancellationToken::new();
    let _done = done.clone().drop_guard();
    let deliverer = Deliverer::start(&config, db.clone(), clock.clone(), sessions.clone());
    let fire = Fire::start(
        Own::new(db.clone(), database::silence(&config.chassis.database)),
        clock.clone(),
        config.limits.clone(),
        deliverer.clone(),
        done.clone(),
    );
    let poke = Arc::new(Notify::new());
    let scheduler = Scheduler {
        db: db.clone(),
        clock: clock.clone(),
        limits: config.limits.clone(),
        deliverer: deliverer.clone(),
        poll: config.poll,
        poke: poke.clone(),
    };
    let scheduling = tokio::spawn(stop.clone().run_until_cancelled_owned(scheduler.run()));
    let sweeping = tokio::spawn(deliverer.clone().sweep(stop.clone()));
    if !config.firing_retention.is_zero() {
        let forget = scheduler::forget(db.clone(), clock, config.firing_retention);
        tokio::spawn(stop.clone().run_until_cancelled_owned(forget));
    }

    let keys = Arc::new(match &config.http.secrets_key_file {
        Some(path) => Keys::read(path)?,
        None => Keys::default(),
    });
    let known = Known::new(db.clone(), keys.clone());
    let receiver = Http::new(&config.http, known, fire.clone());
    let drain = config.chassis.server.drain;
    let receiving = http::start(&config.http, receiver, drain, stop.clone()).await?;
    let tools = Tools::new(&config.tools_url, &config.chassis, &auth)?;
    let hearing = mcp::run(db.clone(), fire.clone(), tools.clone(), stop.clone());
    let hearing = tokio::spawn(hearing);

    let credentials = Credentials { keys };
    let routes = api::routes(&config, db.clone(), fire, sessions, tools, credentials, poke);
    let server = Server::new("triggers", &config.chassis, &db, auth);
    let served = server.serve(listener, routes, stop.clone()).await;
    stop.cancel();
    scheduling.await?;
    sweeping.await?;
    hearing.await?;
    receiving.await?;
    done.cancel();
    deliverer.finish().await;
    database::close(&db).await;
    served
}

/// Brings the database up to date.
pub async fn migrate(config: &Config) -> anyhow::Result<()> {
    let db = database::connect(&config.chassis.database, "triggers").await?;
    database::migrate(&db, &MIGRATIONS).await
}
