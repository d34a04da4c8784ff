use chassis::{Auth, Server, database};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{api, config::Config};

/// Runs the service until `stop`. Tests start it this way too.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let db = database::connect(&config.chassis.database, "triggers").await?;
    // Nothing of ours is stored yet: only the schema that knows the callers.
    database::migrate(&db, &database::MIGRATIONS).await?;
    let auth = Auth::new("triggers", &config.chassis.auth, db.clone()).await?;
    let routes = api::routes(&config.chassis);
    Server::new("triggers", &config.chassis, &db, auth).serve(listener, routes, stop).await
}
