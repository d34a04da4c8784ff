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
    outputs::Outputs,
    processes::{self, Processes},
    redact::Redactor,
    store::processes::Most,
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

    let executor = Arc::new(Executor {
        catalog: Catalog::built_in()?,
        sandbox,
        machine,
        minimum_tier: config.sandbox_minimum_tier,
        workspaces: config.workspaces_dir.clone(),
        outputs: outputs.clone(),
        redactor,
        room: Arc::new(Semaphore::new(config.max_executions)),
    });
    let limits = processes::Limits {
        most: Most {
            per_session: config.max_session_processes.into(),
            per_tenant: config.max_tenant_processes.into(),
        },
        here: config.max_processes,
        life: config.process_seconds,
    };
    let processes = Processes::new(db.clone(), executor.clone(), limits);
    // Processes are looked after until the last call has ended, and then ended.
    let done = CancellationToken::new();
    let _done = done.clone().drop_guard();
    tokio::spawn(processes.clone().host(config.output_retention, done.clone()));

    let (sweeping, over) = (outputs.clone(), stop.clone());
    tokio::spawn(async move { sweeping.sweep(over).await });
    let health = json!({ "tier": tier, "missing": missing });
    let shared =
        api::Shared { db: db.clone(), executor, processes: processes.clone(), stop: stop.clone() };
    let served = Server::new("tools", &config.chassis, &db, auth)
        .detail("sandbox", move || health.clone())
        .serve(listener, api::routes(&config.chassis, shared), stop)
        .await;
    processes.shut_down().await;
    served
}
