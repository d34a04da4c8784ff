//! What every call goes through before a service sees it: named, traced, counted,
//! admitted, authenticated.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Request, Response};
use proto::error::v1::Reason;
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, service::Routes};
use tonic_types::ErrorDetails;
use tower::{Layer, Service};
use tracing::{Instrument as _, record_all};

use super::{
    body::CallBody,
    call::{Began, Call, is_public, traceparent},
    end::{deadline, end},
    limits::{Limits, Room},
    metrics::Metrics,
};
use crate::{Auth, RequestId, auth, request_id, status::with_details, telemetry::TRACEPARENT};

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
        let path = request.uri().path();
        let given = RequestId::from_headers(request.headers());
        let id = given.clone().ok().flatten().unwrap_or_default();
        let call = Call::new(path, id, request.headers(), &self.metrics);
        let began = match given {
            Ok(_) => self.begin(&call, routes, request).await,
            Err(_) => Err(malformed(request_id::HEADER.as_str())),
        };
        call.respond(began)
    }

    async fn begin(
        &self,
        call: &Call,
        routes: Routes,
        request: Request<Body>,
    ) -> Result<Began, Status> {
        let headers = request.headers();
        if headers.contains_key(TRACEPARENT) && traceparent(headers).is_none() {
            return Err(malformed(TRACEPARENT));
        }
        let deadline = deadline(headers).map_err(|_| malformed("grpc-timeout"))?;
        if is_public(&call.path) {
            let end = end(deadline, self.draining.clone());
            return call.run(routes, request, end).await;
        }

        let entry = self.limits.enter()?;
        let mut end = end(deadline, self.cut.clone());
        let authenticate = self.auth.authenticate(headers).instrument(call.span.clone());
        let caller = tokio::select! {
            caller = authenticate => caller?,
            status = &mut end => return Err(status),
        };
        record_all!(call.span, tenant = caller.tenant.as_str(), subject = caller.subject);
        auth::authorize(&caller, &call.path)?;
        let Room { request: waiting, weight, stream } =
            self.limits.room(entry, &caller, request.headers())?;

        let mut request = request.map(|body| weight.of(body));
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(call.id.clone());
        let began = call.run(routes, request, end).await?;
        drop(waiting);
        Ok(Began { room: Some((stream, weight)), ..began })
    }
}

fn malformed(header: &str) -> Status {
    let message = format!("{header} is malformed");
    let metadata = vec![("header", header.to_owned())];
    with_details(Reason::InvalidMetadata, message, metadata, ErrorDetails::new())
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
