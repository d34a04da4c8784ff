//! One call, from its headers to the first byte of its answer: named, traced,
//! counted, admitted, authenticated, and ended in time.

use std::{
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Either, select},
};
use http::{HeaderMap, Request, Response};
use proto::{auth::v1::scope_of, error::v1::Reason};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, service::Routes};
use tonic_types::ErrorDetails;
use tower::{Layer, Service, ServiceExt as _};
use tracing::{Instrument as _, Span, field::Empty, info_span};

use super::{
    body::CallBody,
    end::{deadline, end},
    finish::finish,
    limits::{Limits, Room},
    metrics::{Measured, Metrics},
};
use crate::{
    Auth, RequestId, auth, request_id,
    status::with_details,
    telemetry::{self, TRACEPARENT},
};

/// What all calls of a server share.
#[derive(Clone)]
pub struct Calls {
    auth: Auth,
    limits: Arc<Limits>,
    metrics: Arc<Metrics>,

    /// Cancelled when calls must end.
    cut: CancellationToken,

    /// Cancelled when health has told everybody that we are draining.
    draining: CancellationToken,
}

impl Calls {
    pub fn new(
        auth: Auth,
        args: &super::Args,
        cut: CancellationToken,
        draining: CancellationToken,
    ) -> Calls {
        let limits = Arc::new(Limits::new(args));
        Calls { auth, limits, metrics: Arc::new(Metrics::new()), cut, draining }
    }

    async fn answer(self, routes: Routes, request: Request<Body>) -> Response<CallBody> {
        let path: Arc<str> = request.uri().path().into();
        let (id, id_is_good) = match RequestId::from_headers(request.headers()) {
            None => (RequestId::new(), true),
            Some(Ok(id)) => (id, true),
            Some(Err(())) => (RequestId::new(), false),
        };
        let span = span(&path, &id, request.headers());
        let call = Call { measured: self.metrics.clone().begin(label(&path)), path, id, span };

        let began = match id_is_good {
            true => self.begin(&call, routes, request).await,
            false => Err(malformed(request_id::HEADER.as_str())),
        };
        match began {
            Ok((response, room, end)) => call.respond(response, room, Some(end)),
            Err(status) => call.respond(status.into_http(), None, None),
        }
    }

    async fn begin(
        &self,
        call: &Call,
        routes: Routes,
        mut request: Request<Body>,
    ) -> Result<Began, Status> {
        let headers = request.headers();
        if headers.get(TRACEPARENT).is_some() && traceparent(headers).is_none() {
            return Err(malformed(TRACEPARENT));
        }
        let deadline = deadline(headers).map_err(|()| malformed("grpc-timeout"))?;
        if is_public(&call.path) {
            let end = end(deadline, self.draining.clone());
            let (response, end) = call.run(routes, request, end).await?;
            return Ok((response, None, end));
        }

        let Room { request: waiting, stream } = self.limits.room()?;
        let mut end = end(deadline, self.cut.clone());
        let authenticate = self.auth.authenticate(headers).instrument(call.span.clone());
        let caller = tokio::select! {
            caller = authenticate => caller?,
            status = &mut end => return Err(status),
        };
        call.span.record("tenant", caller.tenant.as_str());
        call.span.record("subject", &caller.subject);
        auth::authorize(&caller, &call.path)?;
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(call.id.clone());
        let (response, end) = call.run(routes, request, end).await?;
        drop(waiting);
        Ok((response, Some(stream), end))
    }
}

type End = BoxFuture<'static, Status>;
type Began = (Response<Body>, Option<tokio::sync::OwnedSemaphorePermit>, End);

/// Whoever wants to know whether we live, and what we speak, need not say who they are.
fn is_public(path: &str) -> bool {
    path.starts_with("/grpc.health.") || path.starts_with("/grpc.reflection.")
}

/// Only paths that exist: callers can invent others without end.
fn label(path: &str) -> &str {
    match scope_of(path).is_some() || is_public(path) {
        true => path.trim_start_matches('/'),
        false => "unknown",
    }
}

fn malformed(header: &str) -> Status {
    let message = format!("{header} is malformed");
    let metadata = vec![("header", header.to_owned())];
    with_details(Reason::InvalidMetadata, message, metadata, ErrorDetails::new())
}

fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(TRACEPARENT)?.to_str().ok()?;
    telemetry::is_traceparent(text).then_some(text)
}

fn span(path: &str, id: &RequestId, headers: &HeaderMap) -> Span {
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
    span
}

/// A call and what is told about it.
pub struct Call {
    path: Arc<str>,
    id: RequestId,
    span: Span,
    measured: Measured,
}

impl Call {
    /// Lets the service begin its answer, unless the call ends before it does.
    async fn run(
        &self,
        routes: Routes,
        request: Request<Body>,
        end: End,
    ) -> Result<(Response<Body>, End), Status> {
        let answer = AssertUnwindSafe(routes.oneshot(request)).catch_unwind();
        let answer = self.id.clone().scope(answer).instrument(self.span.clone()).boxed();
        match select(answer, end).await {
            Either::Left((Ok(Ok(response)), end)) => Ok((response, end)),
            Either::Left((Err(_), _)) => Err(self.panicked()),
            Either::Right((status, _)) => Err(status),
        }
    }

    /// Runs a piece of the answer as part of this call.
    pub fn scope<T>(&self, piece: impl FnOnce() -> T) -> T {
        self.span.in_scope(|| self.id.sync_scope(piece))
    }

    pub fn panicked(&self) -> Status {
        self.span.in_scope(|| tracing::error!("panicked"));
        let message = "internal error".to_owned();
        with_details(Reason::Internal, message, vec![], ErrorDetails::new())
    }

    /// Notes how the call ended, and completes the failure if it is one.
    pub fn finish(&mut self, headers: &mut HeaderMap) {
        let code = self.span.in_scope(|| finish(headers, &self.path, &self.id));
        self.measured.code = code;
        self.span.record("rpc.response.status_code", code as i32);
        if matches!(code, tonic::Code::Internal | tonic::Code::Unknown | tonic::Code::DataLoss) {
            self.span.record("otel.status_code", "ERROR");
        }
    }

    fn respond(
        mut self,
        mut response: Response<Body>,
        room: Option<tokio::sync::OwnedSemaphorePermit>,
        end: Option<End>,
    ) -> Response<CallBody> {
        response.headers_mut().insert(request_id::HEADER, self.id.header());
        if response.headers().contains_key("grpc-status") {
            self.finish(response.headers_mut());
        }
        response.map(|body| CallBody::new(body, self, room, end))
    }
}

impl Layer<Routes> for Calls {
    type Service = CallService;

    fn layer(&self, routes: Routes) -> CallService {
        CallService { calls: self.clone(), routes }
    }
}

#[derive(Clone)]
pub struct CallService {
    calls: Calls,
    routes: Routes,
}

impl Service<Request<Body>> for CallService {
    type Response = Response<CallBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.calls.clone().answer(self.routes.clone(), request).map(Ok).boxed()
    }
}
