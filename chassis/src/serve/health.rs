//! Whether the service can serve, asked every second.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::{Map, Value, json};
use sqlx::{
    ConnectOptions as _, Connection as _, PgConnection, PgPool, postgres::PgConnectOptions,
};
use tokio::{
    sync::Mutex,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic_health::{ServingStatus, server::HealthReporter};
use tracing::{info, warn};

use super::names::grpc_services;
use crate::Redis;

const PERIOD: Duration = Duration::from_secs(1);

/// Longer than an answer takes, shorter than callers wait.
const PATIENCE: Duration = Duration::from_secs(2);

type Detail = Box<dyn Fn() -> Value + Send + Sync>;

pub struct Health {
    service: &'static str,

    /// Whom callers may ask about: everything, this service, each part of its contract.
    names: Vec<String>,
    postgres: Postgres,
    pub redis: Option<Redis>,
    pub details: Vec<(&'static str, Detail)>,
    postgres_answers: AtomicBool,
    redis_answers: AtomicBool,
    draining: AtomicBool,
}

impl Health {
    pub fn new(service: &'static str, db: &PgPool) -> Health {
        let mut names = grpc_services(service);
        names.extend([String::new(), service.to_owned()]);
        Health {
            service,
            names,
            postgres: Postgres::new(db),
            redis: None,
            details: Vec::new(),
            postgres_answers: AtomicBool::new(false),
            redis_answers: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        }
    }

    /// Keeps `reporter` up to date until `stop`, and says on `draining` that all were told.
    pub async fn watch(
        self: Arc<Self>,
        reporter: HealthReporter,
        stop: CancellationToken,
        draining: CancellationToken,
    ) {
        let watch = async {
            let mut ticks = interval(PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                // Whoever watches is told about changes only.
                if self.check().await {
                    self.report(&reporter).await;
                }
            }
        };
        stop.run_until_cancelled(watch).await;
        self.draining.store(true, Relaxed);
        self.report(&reporter).await;
        draining.cancel();
    }

    /// Asks everybody we depend on, and says whether anything has changed.
    pub async fn check(&self) -> bool {
        let redis = async {
            match &self.redis {
                Some(redis) => matches!(timeout(PATIENCE, redis.ping()).await, Ok(Ok(()))),
                None => false,
            }
        };
        let (postgres, redis) = tokio::join!(self.postgres.answers(), redis);
        let postgres = has_changed("postgres", &self.postgres_answers, postgres);
        let redis = has_changed("redis", &self.redis_answers, redis);
        postgres || redis
    }

    pub async fn report(&self, reporter: &HealthReporter) {
        let status = |serving| match serving {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        let draining = self.draining.load(Relaxed);
        let serving = self.is_serving();
        for name in &self.names {
            reporter.set_service_status(name, status(serving)).await;
        }
        if self.redis.is_some() {
            let redis = !draining && self.redis_answers.load(Relaxed);
            reporter.set_service_status("redis", status(redis)).await;
        }
    }

    pub fn is_serving(&self) -> bool {
        self.postgres_answers.load(Relaxed) && !self.draining.load(Relaxed)
    }

    /// Everything there is to know, for people and dashboards.
    pub fn explain(&self) -> Value {
        let answers = |answers: &AtomicBool| match answers.load(Relaxed) {
            true => "ok",
            false => "away",
        };
        let mut dependencies = Map::new();
        dependencies.insert("postgres".into(), answers(&self.postgres_answers).into());
        if self.redis.is_some() {
            dependencies.insert("redis".into(), answers(&self.redis_answers).into());
        }
        let degraded = self.redis.is_some() && !self.redis_answers.load(Relaxed);
        let details: Map<String, Value> =
            self.details.iter().map(|(name, detail)| ((*name).to_owned(), detail())).collect();
        json!({
            "service": self.service,
            "serving": self.is_serving(),
            "draining": self.draining.load(Relaxed),
            "degraded": degraded,
            "dependencies": dependencies,
            "details": details,
        })
    }
}

fn has_changed(dependency: &str, answered: &AtomicBool, answers: bool) -> bool {
    match (answered.swap(answers, Relaxed), answers) {
        (false, true) => info!(dependency, "{dependency} answers"),
        (true, false) => warn!(dependency, "{dependency} does not answer"),
        _ => return false,
    }
    true
}

/// A connection of its own: a pool that is busy says nothing about Postgres.
struct Postgres {
    options: Arc<PgConnectOptions>,
    connection: Mutex<Option<PgConnection>>,
}

impl Postgres {
    fn new(db: &PgPool) -> Postgres {
        Postgres { options: db.connect_options(), connection: Mutex::new(None) }
    }

    async fn answers(&self) -> bool {
        let mut kept = self.connection.lock().await;
        let ping = async {
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.options.connect().await?,
            };
            connection.ping().await?;
            Ok::<_, sqlx::Error>(connection)
        };
        match timeout(PATIENCE, ping).await {
            Ok(Ok(connection)) => {
                *kept = Some(connection);
                true
            }
            _ => false,
        }
    }
}
