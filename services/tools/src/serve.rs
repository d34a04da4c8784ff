use std::sync::Arc;

use anyhow::Context as _;
use chassis::{Auth, Server};
use sandbox::Sandbox;
use serde_json::json;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    Config, MIGRATIONS, api,
    catalog::Catalog,
    execute::Executor,
    mcp::{Connector, PrivateHosts, Servers},
    outputs::Outputs,
    redact::Redactor,
    secrets::Secrets,
    workspace,
};

/// Runs the service until `stop`.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let db = chassis::database::connect(&config.chassis.database, "tools").await?;
    chassis::database::migrate(&db, &MIGRATIONS).await?;
    let auth = Auth::new("tools", &config.chassis.auth, db.clone()).await?;

    workspace::create_root(&config.workspaces_dir).with_context(|| {
        format!("cannot make WORKSPACES_DIR {}", config.workspaces_dir.display())
    })?;
    let (folder, retention) = (&config.outputs_dir, config.output_retention);
    let outputs = Outputs::open(db.clone(), folder, config.output_bytes, retention)?;
    let outputs = Arc::new(outputs);
    let redactor = match &config.redact_file {
        Some(path) => Redactor::read(path)?,
        None => Redactor::default(),
    };
    let init = config.sandbox_init()?;
    let sandbox = Sandbox::new(&init);
    let machine = sandbox
        .probe()
        .await
        .with_context(|| format!("cannot build a sandbox with {}", init.display()))?;
    let (tier, missing) = (machine.tier(), machine.missing());
    match tier <= config.sandbox_minimum_tier {
        true => info!(%tier, "sandboxes are of tier {tier}"),
        false => warn!(%tier, ?missing, "sandboxes are only of tier {tier}, tools will be refused"),
    }

    let catalog = Arc::new(Catalog::built_in()?);
    let read_only = config.sandbox_read_only()?;
    let connector = Connector {
        sandbox: sandbox.clone(),
        minimum_tier: config.sandbox_minimum_tier,
        read_only: read_only.clone(),
        workspaces: config.workspaces_dir.clone(),
        secrets: Secrets { folder: config.secrets_dir.clone() },
        redactor: redactor.with(&[]),
        private_hosts: PrivateHosts(config.mcp_private_hosts.clone()),
    };
    let (idle, most) = (config.mcp_idle, config.mcp_connections);
    let built_in = catalog.with([], vec![]);
    let servers = Arc::new(Servers::new(db.clone(), connector, built_in, idle, most));
    let executor = Arc::new(Executor {
        catalog,
        servers,
        sandbox,
        read_only,
        machine,
        minimum_tier: config.sandbox_minimum_tier,
        workspaces: config.workspaces_dir.clone(),
        outputs: outputs.clone(),
        redactor,
        room: Arc::new(Semaphore::new(config.max_executions)),
    });
    let (sweeping, over) = (outputs.clone(), stop.clone());
    tokio::spawn(async move { sweeping.sweep(over).await });
    let health = json!({ "tier": tier, "missing": missing });
    Server::new("tools", &config.chassis, &db, auth)
        .detail("sandbox", move || health.clone())
        .serve(listener, api::routes(&config.chassis, db, executor), stop)
        .await
}
