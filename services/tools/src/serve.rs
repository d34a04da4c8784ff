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
    hooks::{Commands, Hooks, Http, Signer},
    outputs::Outputs,
    policies::Policies,
    redact::Redactor,
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
    let signer = config.hook_secret.clone().map(Signer::new);
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

    let commands = Commands {
        sandbox: sandbox.clone(),
        minimum_tier: config.sandbox_minimum_tier,
        workspaces: config.workspaces_dir.clone(),
        redactor: redactor.clone(),
        room: Semaphore::new(config.max_executions),
    };
    let executor = Arc::new(Executor {
        catalog: Catalog::built_in()?,
        sandbox,
        machine,
        minimum_tier: config.sandbox_minimum_tier,
        workspaces: config.workspaces_dir.clone(),
        outputs: outputs.clone(),
        redactor,
        policies: Policies::new(db.clone()),
        hooks: Hooks { http: Http::new(config.hook_hosts.clone(), signer)?, commands },
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
