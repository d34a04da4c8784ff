//! Logs to stdout, traces and metrics to an OpenTelemetry collector if there is
//! one, and metrics to whoever scrapes them.

mod fields;
mod trace_context;

use std::sync::LazyLock;

use anyhow::Context as _;
use opentelemetry::{global, trace::TracerProvider as _};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{
    Resource, metrics::SdkMeterProvider, propagation::TraceContextPropagator,
    trace::SdkTracerProvider,
};
use prometheus::{Registry, TextEncoder};
use tracing_subscriber::{
    EnvFilter, Layer as _, filter::LevelFilter, fmt, layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use fields::GrowingFields;
pub(crate) use trace_context::{HEADER as TRACEPARENT, is_traceparent};
pub use trace_context::{set_parent, trace_id, traceparent};

#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Which logs to keep, in `tracing` filter syntax.
    #[arg(long, env = "LOG", default_value = "info")]
    pub log: String,

    /// Logs for machines or for people.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: Format,

    /// OpenTelemetry collector to send traces and metrics to, over gRPC. Unset: none are sent.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    #[default]
    Json,
    Text,
}

/// What the metrics endpoint shows. Instruments come from `opentelemetry::global::meter`.
static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::new);

/// Flushes what is buffered when dropped; keep it until `main` returns.
pub struct Guard {
    traces: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

/// Switches on the lights, once per process.
pub fn init(service: &'static str, args: &Args) -> anyhow::Result<Guard> {
    crate::tls::install_default();
    global::set_text_map_propagator(TraceContextPropagator::new());
    let traces = traces(service, args).context("cannot send traces")?;
    let metrics = metrics(service, args).context("cannot keep metrics")?;
    global::set_meter_provider(metrics.clone());

    let logs = match args.log_format {
        Format::Json => {
            fmt::layer().json().flatten_event(true).fmt_fields(GrowingFields::default()).boxed()
        }
        Format::Text => fmt::layer().boxed(),
    };
    // Each has a filter of its own, so that whoever wants fewer logs still has all traces.
    let logs = logs.with_filter(EnvFilter::try_new(&args.log).context("LOG is not a filter")?);
    let spans = tracing_opentelemetry::layer()
        .with_tracer(traces.tracer(service))
        // Would look at the clock whenever a call or a turn goes on, which is for every word of a model.
        .with_tracked_inactivity(false)
        .with_filter(LevelFilter::INFO);
    tracing_subscriber::registry().with(logs).with(spans).try_init()?;
    Ok(Guard { traces, metrics })
}

/// Without a collector spans go nowhere, and still have the ids that events,
/// logs and calls to other services are joined by.
fn traces(service: &'static str, args: &Args) -> anyhow::Result<SdkTracerProvider> {
    let mut provider = SdkTracerProvider::builder().with_resource(resource(service));
    if let Some(endpoint) = &args.otlp_endpoint {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
        provider = provider.with_batch_exporter(exporter);
    }
    Ok(provider.build())
}

fn metrics(service: &'static str, args: &Args) -> anyhow::Result<SdkMeterProvider> {
    let scraped = opentelemetry_prometheus::exporter().with_registry(REGISTRY.clone()).build()?;
    let mut provider =
        SdkMeterProvider::builder().with_resource(resource(service)).with_reader(scraped);
    if let Some(endpoint) = &args.otlp_endpoint {
        let exporter = MetricExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
        provider = provider.with_periodic_exporter(exporter);
    }
    Ok(provider.build())
}

fn resource(service: &'static str) -> Resource {
    Resource::builder()
        .with_service_name(service)
        .with_attribute(opentelemetry::KeyValue::new("service.namespace", "windlass"))
        .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}

/// All metrics of this process as Prometheus reads them.
pub fn prometheus_text() -> anyhow::Result<String> {
    Ok(TextEncoder::new().encode_to_string(&REGISTRY.gather())?)
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(error) = self.traces.shutdown() {
            tracing::warn!(%error, "traces lost on shutdown");
        }
        if let Err(error) = self.metrics.shutdown() {
            tracing::warn!(%error, "metrics lost on shutdown");
        }
    }
}
