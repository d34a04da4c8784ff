use std::sync::Arc;

use anyhow::Context as _;
use chassis::{Auth, Places, Server};
use sandbox::{Profile, Sandbox};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    Config, MIGRATIONS, api,
    catalog::Catalog,
    egress::{Addresses, Gateway},
    execute::Executor,
    facts, forward,
    hooks::{Commands, Hooks, Http, Signer},
    mcp::{Connector, Servers},
    metrics,
    outputs::Outputs,
    placement::Placement,
    policies::Policies,
    processes::{self, Processes},
    redact::Redactor,
    secrets::Secrets,
    store::processes::Most,
    web_search::WebSearch,
    workspace,
    workspaces::{self, Workspaces},
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
    let placement = match &config.advertise {
        Some(address) => Some(Placement::open(&config, address, &db, &auth).await?),
        None => None,
    };
    let limits =
        workspaces::Limits { bytes: config.workspace_bytes, files: config.workspace_files };
    let workspaces = Arc::new(Workspaces::new(
        db.clone(),
        config.workspaces_dir.clone(),
        limits,
        config.workspace_snapshots,
        placement.as_ref().map(|placement| placement.here),
    ));
    workspaces.adopt().await.context("cannot claim the workspaces on this disk")?;
    let (folder, retention) = (&config.outputs_dir, config.output_retention);
    let most = config.output_bytes;
    let outputs = match config.outputs.bucket()? {
        Some(bucket) => Outputs::remote(db.clone(), bucket, folder, most, retention)?,
        None => Outputs::open(db.clone(), folder, most, retention)?,
    };
    let outputs = Arc::new(outputs);
    let redactor = match &config.redact_file {
        Some(path) => Redactor::read(path)?,
        None => Redactor::default(),
    };
    let also = config.hook_secret_also.clone();
    let signer = config.hook_secret.clone().map(|secret| Signer::new(secret, also));
    let init = config.sandbox_init()?;
    let sandbox = Sandbox::new(&init).keep_prepared(config.sandbox_pool.into());
    let machine = sandbox
        .probe()
        .await
        .with_context(|| format!("cannot build a sandbox with {}", init.display()))?;
    let (tier, missing) = (machine.tier(), machine.missing());
    let minimum_tier = config.sandbox_minimum_tier;
    match tier <= minimum_tier {
        true => info!(%tier, "sandboxes are of tier {tier}"),
        false => warn!(%tier, ?missing, "sandboxes are only of tier {tier}, tools will be refused"),
    }
    let profile = Profile::at_least(minimum_tier);
    if !profile.is_strict() {
        let optional = &profile.optional;
        warn!(%minimum_tier, ?optional, "sandboxes are relaxed: tier {minimum_tier} is enough, layers may be missing");
    }

    let addresses = Addresses::new(config.egress_allow_private.clone());
    let gateway = Gateway::new(addresses, config.egress_bytes)?;
    let search = config.search.provider()?;
    let search = search.map(|provider| WebSearch::new(provider, config.search.search_per_minute));

    let commands = Commands {
        sandbox: sandbox.clone(),
        minimum_tier,
        workspaces: workspaces.clone(),
        redactor: redactor.clone(),
        room: Places::shared(config.max_executions),
    };
    let hooks = Hooks { http: Http::new(gateway.outward().clone(), signer)?, commands };

    let catalog = Arc::new(Catalog::built_in(search)?);
    let read_only = config.sandbox_read_only()?;
    let connector = Connector {
        sandbox: sandbox.clone(),
        minimum_tier,
        read_only: read_only.clone(),
        workspaces: workspaces.clone(),
        secrets: Secrets { folder: config.secrets_dir.clone() },
        redactor: redactor.clone(),
        outward: gateway.outward().clone(),
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
        minimum_tier,
        workspaces: workspaces.clone(),
        outputs: outputs.clone(),
        gateway,
        redactor,
        policies: Policies::new(db.clone()),
        hooks,
        room: Places::shared(config.max_executions),
    });
    metrics::observe(&executor);
    metrics::observe_disk(&config.workspaces_dir);
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
    let over = stop.clone();
    tokio::spawn(async move { workspaces.sweep(over).await });
    let mode = facts::mode(&profile);
    let health =
        json!({ "tier": tier, "missing": missing, "mode": mode, "minimum_tier": minimum_tier });
    let shared =
        api::Shared { db: db.clone(), executor, processes: processes.clone(), stop: stop.clone() };
    let mut routes = api::routes(&config.chassis, shared);
    if let Some(placement) = placement {
        tokio::spawn(placement.clone().beat(stop.clone()));
        routes = forward::layer(routes, placement, config.chassis.server.max_message_bytes)?;
    }
    let served = Server::new("tools", &config.chassis, &db, auth)
        .detail("sandbox", move || health.clone())
        .serve(listener, routes, stop)
        .await;
    processes.shut_down().await;
    done.cancel();
    chassis::database::close(&db).await;
    served
}

/// Brings the database up to date.
pub async fn migrate(config: &Config) -> anyhow::Result<()> {
    let db = chassis::database::connect(&config.chassis.database, "tools").await?;
    chassis::database::migrate(&db, &MIGRATIONS).await
}
