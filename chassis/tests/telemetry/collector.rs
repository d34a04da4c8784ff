//! An OpenTelemetry collector that remembers.

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::{
    metrics::v1::{
        ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        metrics_service_server::{MetricsService, MetricsServiceServer},
    },
    trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

pub struct Collector {
    pub url: String,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    spans: Mutex<Vec<Span>>,
    metrics: Mutex<Vec<String>>,
}

#[derive(Debug, Clone)]
pub struct Span {
    pub name: String,
    pub trace: String,
    pub id: String,
    pub parent: String,
}

impl Collector {
    pub async fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Seen::default());
        let server = Server::builder()
            .add_service(TraceServiceServer::from_arc(seen.clone()))
            .add_service(MetricsServiceServer::from_arc(seen.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        tokio::spawn(server);
        Collector { url, seen }
    }

    pub fn spans(&self) -> Vec<Span> {
        self.seen.spans.lock().unwrap().clone()
    }

    /// The names of all metrics.
    pub fn metrics(&self) -> Vec<String> {
        self.seen.metrics.lock().unwrap().clone()
    }
}

#[tonic::async_trait]
impl TraceService for Seen {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        let spans = scopes.flat_map(|scope| scope.spans).map(|span| Span {
            name: span.name,
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
        });
        self.spans.lock().unwrap().extend(spans);
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Seen {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let resources = request.into_inner().resource_metrics.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_metrics);
        let names = scopes.flat_map(|scope| scope.metrics).map(|metric| metric.name);
        self.metrics.lock().unwrap().extend(names);
        Ok(Response::new(Default::default()))
    }
}
