//! An OpenTelemetry collector that remembers spans.

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::{
    collector::{
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::any_value::Value,
    resource::v1::Resource,
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
    /// Everything that came, in words.
    text: Mutex<String>,
}

#[derive(Debug, Clone)]
pub struct Span {
    /// The `service.name` of the process that made it.
    pub service: String,
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

    /// All that was ever sent, attributes, events and metrics included.
    pub fn text(&self) -> String {
        self.seen.text.lock().unwrap().clone()
    }
}

#[tonic::async_trait]
impl TraceService for Seen {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.text.lock().unwrap().push_str(&format!("{:?}\n", request.get_ref()));
        let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
        for resource in request.into_inner().resource_spans {
            let service = service_name(resource.resource.unwrap_or_default());
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.spans.lock().unwrap().extend(spans.map(|span| Span {
                service: service.clone(),
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
            }));
        }
        Ok(Response::new(Default::default()))
    }
}

fn service_name(resource: Resource) -> String {
    let name = resource.attributes.into_iter().find(|attribute| attribute.key == "service.name");
    match name.and_then(|name| name.value?.value) {
        Some(Value::StringValue(name)) => name,
        other => panic!("spans of nobody: {other:?}"),
    }
}

#[tonic::async_trait]
impl MetricsService for Seen {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.text.lock().unwrap().push_str(&format!("{:?}\n", request.get_ref()));
        Ok(Response::new(Default::default()))
    }
}
