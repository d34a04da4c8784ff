//! One call: its name, its span, its count, and how it ends.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Either, select},
};
use http::{HeaderMap, Request, Response};
use proto::{auth::v1::scope_of, error::v1::Reason};
use tonic::{Code, Status, body::Body, service::Routes};
use tonic_types::ErrorDetails;
use tower::ServiceExt as _;
use tracing::{Instrument as _, Span, field::Empty, info_span};

use super::{
    body::CallBody,
    finish::finish,
    metrics::{Measured, Metrics},
    weight::Weight,
};
use crate::{
    Place, RequestId, request_id,
    status::with_details,
    telemetry::{self, TRACEPARENT},
};

pub struct Call {
    pub path: Arc<str>,
    pub id: RequestId,
    pub span: Span,
    measured: Measured,
}

/// An answer that has begun.
pub struct Began {
    pub response: Response<Body>,

    /// Resolves when the answer must end.
    pub end: BoxFuture<'static, Status>,

    /// Given back when it has.
    pub room: Option<(Place, Weight)>,
}

impl Call {
    pub fn new(path: &str, id: RequestId, headers: &HeaderMap, metrics: &Arc<Metrics>) -> Call {
        let method = label(path);
        let span = info_span!(
            "call",
            otel.name = method,
            otel.kind = "server",
            otel.status_code = Empty,
            rpc.system = "grpc",
            rpc.method = method,
            rpc.response.status_code = Empty,
            request.id = id.as_str(),
            trace.id = Empty,
            tenant = Empty,
            subject = Empty,
        );
        if let Some(parent) = traceparent(headers) {
            telemetry::set_parent(&span, parent);
        }
        if let Some(trace) = span.in_scope(telemetry::trace_id) {
            span.record("trace.id", trace);
        }
        Call { path: path.into(), id, span, measured: metrics.clone().begin(method) }
    }

    /// Lets the service begin its answer, unless the call ends before it does.
    pub async fn run(
        &self,
        routes: Routes,
        request: Request<Body>,
        end: BoxFuture<'static, Status>,
    ) -> Result<Began, Status> {
        let answer = AssertUnwindSafe(routes.oneshot(request)).catch_unwind();
        let answer = self.id.clone().scope(answer).instrument(self.span.clone()).boxed();
        match select(answer, end).await {
            Either::Left((Ok(Ok(response)), end)) => Ok(Began { response, end, room: None }),
            Either::Left((Err(_), _)) => Err(self.panicked()),
            Either::Right((status, _)) => Err(status),
        }
    }

    pub fn respond(mut self, began: Result<Began, Status>) -> Response<CallBody> {
        let (mut response, end, room) = match began {
            Ok(Began { response, end, room }) => (response, Some(end), room),
            Err(status) => (status.into_http(), None, None),
        };
        response.headers_mut().insert(request_id::HEADER, self.id.header());
        if response.headers().contains_key(Status::GRPC_STATUS) {
            self.finish(response.headers_mut());
        }
        response.map(|body| CallBody::new(body, self, end, room))
    }

    /// Runs a piece of the answer as part of this call.
    pub fn scope<T>(&self, piece: impl FnOnce() -> T) -> T {
        self.span.in_scope(|| self.id.sync_scope(piece))
    }

    /// One bug ends one call. What was said in panic is on stderr.
    pub fn panicked(&self) -> Status {
        self.span.in_scope(|| tracing::error!(path = &*self.path, "panicked"));
        let message = "internal error".to_owned();
        with_details(Reason::Internal, message, vec![], ErrorDetails::new())
    }

    /// Notes how the call ended, and completes the failure if it is one.
    pub fn finish(&mut self, headers: &mut HeaderMap) {
        let code = self.span.in_scope(|| finish(headers, &self.path, &self.id));
        self.measured.code = code;
        self.span.record("rpc.response.status_code", code as i32);
        if matches!(code, Code::Internal | Code::Unknown | Code::DataLoss) {
            self.span.record("otel.status_code", "ERROR");
        }
    }
}

/// Whoever wants to know whether we live, and what we speak, need not say who they are.
/// To the letter: what only begins like these may be invented.
pub fn is_public(path: &str) -> bool {
    const PUBLIC: [&str; 4] = [
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ];
    PUBLIC.contains(&path)
}

/// Only paths that exist: callers can invent others without end.
fn label(path: &str) -> &str {
    match scope_of(path).is_some() || is_public(path) {
        true => path.trim_start_matches('/'),
        false => "unknown",
    }
}

pub fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(TRACEPARENT)?.to_str().ok()?;
    telemetry::is_traceparent(text).then_some(text)
}
