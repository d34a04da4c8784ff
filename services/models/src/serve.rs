use std::sync::Arc;

use anyhow::Context as _;
use chassis::{Auth, Redis, Server, database};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    MIGRATIONS,
    admission::Admission,
    api,
    bus::Bus,
    catalogue::Catalogue,
    config::Config,
    provider::{Providers, scripted},
};

/// Serves on `listener` until `stop`. Tests start the service this way too.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let catalogue = Arc::new(Catalogue::built_in()?);
    let providers = Providers::built_in();
    for model in catalogue.models() {
        let name = model.name();
        providers.get(&model.provider).with_context(|| format!("nobody provides {name}"))?;
    }

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

    let routes =
        api::routes(&config.chassis, catalogue, providers, admission.clone(), stop.clone());
    let books = admission.clone();
    let served = Server::new("models", &config.chassis, &db, auth)
        .redis(&redis)
        .detail("limits", move || books.health())
        .detail("scripted", scripted::seen)
        .serve(listener, routes, stop)
        .await;
    admission.close().await;
    served
}
