use std::sync::Arc;

use anyhow::Context as _;
use chassis::{Auth, Server, database};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{api, catalogue::Catalogue, config::Config, provider::Providers};

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
    // Nothing of ours is stored yet: only the schema that knows the callers.
    database::migrate(&db, &database::MIGRATIONS).await?;
    let auth = Auth::new("models", &config.chassis.auth, db.clone()).await?;
    let routes = api::routes(&config.chassis, catalogue, providers, stop.clone());
    Server::new("models", &config.chassis, &db, auth).serve(listener, routes, stop).await
}
