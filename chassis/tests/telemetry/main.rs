//! What a collector and a scraper see of a call. One test, because a process
//! switches on its lights once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../server/probe.rs"]
mod probe;
#[allow(dead_code, reason = "this test does not need all its verbs")]
#[path = "../server/rig.rs"]
mod rig;
mod collector;

use chassis::{Caller, Peer, telemetry};
use proto::models::v1::ListModelsRequest;
use sqlx::PgPool;
use tracing::{Instrument as _, info_span};

use collector::Collector;
use rig::{Rig, acme, args, bearer, free_port};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const METHOD: &str = "windlass.models.v1.ModelService/ListModels";

#[sqlx::test]
async fn a_call_is_traced_and_counted(db: PgPool) {
    let collector = Collector::start().await;
    let scraped = format!("127.0.0.1:{}", free_port().await);
    let endpoint = format!("--otlp-endpoint={}", collector.url);
    let args = args(&[&endpoint, &format!("--metrics-listen={scraped}"), "--log=warn"]);
    let guard = telemetry::init("models", &args.telemetry).unwrap();
    assert_eq!(telemetry::traceparent(), None, "there is no span here");
    let rig = Rig::with(db, args).await;

    // From outside, with a trace of the caller's.
    let (_, key) = rig.key(&["read"]).await;
    let mut request = bearer(&key, ListModelsRequest::default());
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    rig.models().list_models(request).await.unwrap();

    // From another service, later, under the trace of a call that is long over.
    let span = info_span!("turn");
    telemetry::set_parent(&span, &parent);
    async {
        assert_eq!(telemetry::trace_id().as_deref(), Some(TRACE));
        let peer = Peer::new("models", &rig.url, &rig.args.tls, &rig.auth).unwrap();
        let request = peer.request(&Caller::service(acme(), "sweep"), ListModelsRequest::default());
        rig.models().list_models(request).await.unwrap();
    }
    .instrument(span)
    .await;

    let metrics = reqwest::get(format!("http://{scraped}/metrics")).await.unwrap();
    let text = metrics.text().await.unwrap();
    let count = text.lines().find(|line| line.starts_with("grpc_server_requests_total")).unwrap();
    assert!(count.contains(&format!("method=\"{METHOD}\"")), "{count}");
    assert!(count.ends_with(" 2"), "{count}");
    assert!(text.contains("grpc_server_duration_seconds_bucket"), "{text}");

    // Dropping the guard flushes, and waits for the collector, so not on this thread.
    tokio::task::spawn_blocking(|| drop(guard)).await.unwrap();
    let spans = collector.spans();
    let calls: Vec<_> = spans.iter().filter(|span| span.name == METHOD).collect();
    assert_eq!(calls.len(), 2, "{spans:?}");
    assert!(calls.iter().all(|span| span.trace == TRACE), "{calls:?}");
    let turn = spans.iter().find(|span| span.name == "turn").unwrap();
    assert!(calls.iter().any(|span| span.parent == turn.id), "{spans:?}");
    assert!(collector.metrics().contains(&"grpc.server.requests".to_owned()));
}
