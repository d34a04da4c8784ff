use std::sync::Arc;

use chassis::{Auth, Server, database};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{api, catalogue::live::Live, config::Config, health::Health};

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
    // Nothing of ours is stored yet: only the schema that knows the callers.
    database::migrate(&db, &database::MIGRATIONS).await?;
    let auth = Auth::new("models", &config.chassis.auth, db.clone()).await?;
    let watch = tokio::spawn(catalogue.clone().watch(stop.clone()));
    let routes = api::routes(&config.chassis, catalogue.clone(), health.clone(), stop.clone());
    let server = Server::new("models", &config.chassis, &db, auth);
    let server = server.detail("catalogue", {
        let catalogue = catalogue.clone();
        move || catalogue.explain()
    });
    let server = server.detail("breakers", move || health.explain(&catalogue.now().catalogue));
    let served = server.serve(listener, routes, stop).await;
    watch.abort();
    served
}
