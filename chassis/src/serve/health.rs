//! Whether the service can serve, asked every second.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use opentelemetry::{KeyValue, global, metrics::Histogram};
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
    pings: Histogram<f64>,
}

/// Seconds that an answer takes, from a healthy one to one that nobody waits for.
const BUCKETS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.0];

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
            pings: global::meter("chassis")
                .f64_histogram("dependency.ping.duration")
                .with_description("How long Postgres and Redis took to answer")
                .with_unit("s")
                .with_boundaries(BUCKETS.to_vec())
                .build(),
        }
    }

    /// Shows the same as metrics, for as long as somebody keeps this.
    pub fn observe(self: &Arc<Health>) {
        let meter = global::meter("chassis");
        let health = Arc::downgrade(self);
        meter
            .u64_observable_gauge("service.serving")
            .with_description("Whether calls are welcome: 1 or 0")
            .with_callback(move |gauge| {
                if let Some(health) = health.upgrade() {
                    gauge.observe(health.is_serving().into(), &[] as &[KeyValue]);
                }
            })
            .build();
        let health = Arc::downgrade(self);
        meter
            .u64_observable_gauge("dependency.up")
            .with_description("Whether Postgres and Redis answer: 1 or 0")
            .with_callback(move |gauge| {
                let Some(health) = health.upgrade() else { return };
                gauge.observe(health.postgres_answers.load(Relaxed).into(), &[of("postgres")]);
                if health.redis.is_some() {
                    gauge.observe(health.redis_answers.load(Relaxed).into(), &[of("redis")]);
                }
            })
            .build();
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
        let postgres = async {
            let begun = Instant::now();
            let answers = self.postgres.answers().await;
            self.pings.record(begun.elapsed().as_secs_f64(), &[of("postgres")]);
            answers
        };
        let redis = async {
            let Some(redis) = &self.redis else { return false };
            let begun = Instant::now();
            let answers = matches!(timeout(PATIENCE, redis.ping()).await, Ok(Ok(())));
            self.pings.record(begun.elapsed().as_secs_f64(), &[of("redis")]);
            answers
        };
        let (postgres, redis) = tokio::join!(postgres, redis);
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

fn of(dependency: &'static str) -> KeyValue {
    KeyValue::new("dependency", dependency)
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
