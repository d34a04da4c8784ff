//! Passes calls on to the replica that has their workspace.
//!
//! One mechanism for all RPCs: the descriptors say where in the first message of a request the
//! workspace is named, and a request for a workspace of another replica goes there as it is, in
//! the name of the same caller, and the answer comes back as it is. Deadlines are in the headers,
//! and whoever drops a call here drops it there.
//!
//! A call is passed on once: whoever gets it that way answers it or refuses it.

mod body;
mod locate;

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use chassis::{Caller, FORWARDED, auth::Kind};
use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tonic::{Status, body::Body, service::Routes};
use tower::{Service, ServiceExt as _};

use self::{
    body::{Relayed, Replayed},
    locate::{Locator, Methods, Named},
};
use crate::{
    call::{ReplicaId, WorkspaceId},
    error::Result,
    placement::Placement,
};

/// What goes along. Credentials do not: we vouch for the caller.
const PASSED_ON: [&str; 6] =
    ["content-type", "te", "grpc-encoding", "grpc-accept-encoding", "grpc-timeout", "user-agent"];

/// When to come back for a workspace whose replica is away.
const RETRY: Duration = Duration::from_secs(2);

/// Stands in front of `routes`. The first message of a request is at most `largest` bytes.
pub fn layer(routes: Routes, placement: Arc<Placement>, largest: usize) -> anyhow::Result<Routes> {
    let methods = Arc::new(Methods::read()?);
    let forward = Forward { routes, placement, methods, largest };
    Ok(Routes::from(axum::Router::new().fallback_service(forward)))
}

#[derive(Clone)]
struct Forward {
    routes: Routes,
    placement: Arc<Placement>,
    methods: Arc<Methods>,
    largest: usize,
}

impl Service<Request<axum::body::Body>> for Forward {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<axum::body::Body>) -> Self::Future {
        let this = self.clone();
        async move { Ok(this.answer(request.map(Body::new)).await) }.boxed()
    }
}

impl Forward {
    async fn answer(self, request: Request<Body>) -> Response<Body> {
        let locator = self.methods.get(request.uri().path()).cloned();
        let caller = request.extensions().get::<Caller>().cloned();
        let (Some(locator), Some(caller)) = (locator, caller) else {
            return self.here(request).await;
        };
        match self.route(&locator, &caller, request).await {
            Ok(Routed::Here(request)) => self.here(request).await,
            Ok(Routed::Answered(response)) => response,
            Err(status) => status.into_http(),
        }
    }

    async fn here(self, request: Request<Body>) -> Response<Body> {
        let answer = self.routes.oneshot(request).await;
        answer.unwrap_or_else(|never| match never {})
    }

    async fn route(
        &self,
        locator: &Locator,
        caller: &Caller,
        request: Request<Body>,
    ) -> Result<Routed, Status> {
        let (parts, body) = request.into_parts();
        let gzip = parts.headers.get("grpc-encoding").is_some_and(|value| value == "gzip");
        let body = Replayed::read(body, self.largest).await;
        let id = body.message(gzip, self.largest).and_then(|message| locator.find(&message));
        let place = match id {
            Some(id) => self.place(locator, caller, &id).await?,
            // Whoever answers says what is missing.
            None => None,
        };
        let request = Request::from_parts(parts, Body::new(body));
        let Some(replica) = place.filter(|place| *place != self.placement.here) else {
            return Ok(Routed::Here(request));
        };
        // Only we ourselves can say that a call has been on its way.
        let forwarded = caller.kind == Kind::Service && request.headers().contains_key(FORWARDED);
        let peer = match forwarded {
            true => None,
            false => self.placement.peer(replica).await?,
        };
        let Some(peer) = peer else { return Err(away(replica)) };
        let mut vouched = peer.request(caller, ()).into_parts().0.into_headers();
        vouched.extend(passed_on(request.headers()));
        vouched.insert(FORWARDED, header(self.placement.here));
        let uri = request.uri().clone();
        let mut passed = Request::new(request.into_body());
        *passed.method_mut() = http::Method::POST;
        *passed.version_mut() = http::Version::HTTP_2;
        *passed.uri_mut() = uri;
        *passed.headers_mut() = vouched;
        match peer.channel().oneshot(passed).await {
            Ok(response) => {
                let relay = |body| Body::new(Relayed::new(body, away(replica)));
                Ok(Routed::Answered(response.map(relay)))
            }
            Err(error) => {
                tracing::warn!(%error, replica.id = %replica, "replica {replica} does not answer");
                Err(away(replica))
            }
        }
    }

    /// Whose what a request names is.
    async fn place(
        &self,
        locator: &Locator,
        caller: &Caller,
        id: &str,
    ) -> Result<Option<ReplicaId>> {
        let id: Option<WorkspaceId> = match locator.named {
            Named::Workspace => id.parse().ok(),
            // A process runs where its workspace is.
            Named::Process => match id.parse() {
                Ok(id) => self.placement.workspace_of(&caller.tenant, id).await?,
                Err(_) => None,
            },
        };
        match id {
            Some(id) => self.placement.of(&caller.tenant, id, locator.makes).await,
            None => Ok(None),
        }
    }
}

enum Routed {
    Here(Request<Body>),
    Answered(Response<Body>),
}

fn passed_on(headers: &HeaderMap) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    PASSED_ON.iter().filter_map(|name| {
        let name = HeaderName::from_static(name);
        let value = headers.get(&name)?.clone();
        Some((name, value))
    })
}

fn header(replica: ReplicaId) -> HeaderValue {
    HeaderValue::from_str(&replica.to_string()).unwrap_or(HeaderValue::from_static("replica"))
}

fn away(replica: ReplicaId) -> Status {
    chassis::unavailable(&format!("replica {replica} of tools, which has the workspace,"), RETRY)
}
