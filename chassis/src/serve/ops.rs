//! What operators and their machines read over HTTP.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::health::Health;
use crate::telemetry;

/// Answers until `done`, through the drain as well.
pub async fn serve(
    address: SocketAddr,
    health: Arc<Health>,
    done: CancellationToken,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on METRICS_LISTEN {address}"))?;
    info!(address = %listener.local_addr()?, "serving metrics");
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/health", get(explain))
        .with_state(health);
    tokio::spawn(async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(done.cancelled_owned());
        if let Err(error) = served.await {
            warn!(%error, "metrics are not served any more");
        }
    });
    Ok(())
}

async fn explain(State(health): State<Arc<Health>>) -> impl IntoResponse {
    let status = match health.is_serving() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(health.explain()))
}

async fn metrics() -> impl IntoResponse {
    match telemetry::prometheus_text() {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            warn!(%error, "metrics cannot be shown");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
