use std::sync::Arc;

use chassis::{Auth, Redis, Server, database};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    MIGRATIONS, admission::Admission, api, bus::Bus, catalogue::live::Live, config::Config,
    health::Health, provider::scripted,
};

/// Serves on `listener` until `stop`. Tests start the service this way too.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    chassis::tls::install_default();
    let catalogue = Arc::new(Live::open(config.catalogue.clone())?);
    let health = Health::new();

    let db = database::connect(&config.chassis.database, "models").await?;
    database::migrate(&db, &MIGRATIONS).await?;
    let redis = Redis::new(&config.chassis.redis)?;
    let auth = Auth::new("models", &config.chassis.auth, db.clone()).await?;

    // The books are kept until the last call has ended.
    let done = CancellationToken::new();
    let _done = done.clone().drop_guard();
    let (without, room) = (config.limits_without_redis, config.ledger_rows as usize);
    let bus = Bus::new(redis.clone());
    let admission = Admission::start(db.clone(), bus, config.lease, without, room, &done).await?;

    let watch = tokio::spawn(catalogue.clone().watch(stop.clone()));
    let routes = api::routes(
        &config.chassis,
        catalogue.clone(),
        health.clone(),
        admission.clone(),
        stop.clone(),
    );
    let (books, seen) = (admission.clone(), catalogue.clone());
    let served = Server::new("models", &config.chassis, &db, auth)
        .redis(&redis)
        .detail("catalogue", move || seen.explain())
        .detail("breakers", move || health.explain(&catalogue.now().catalogue))
        .detail("limits", move || books.health())
        .detail("scripted", scripted::seen)
        .serve(listener, routes, stop)
        .await;
    watch.abort();
    admission.close().await;
    database::close(&db).await;
    served
}

/// Brings the database up to date.
pub async fn migrate(config: &Config) -> anyhow::Result<()> {
    let db = database::connect(&config.chassis.database, "models").await?;
    database::migrate(&db, &MIGRATIONS).await
}
