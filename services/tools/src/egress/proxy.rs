use std::{convert::Infallible, io, sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tracing::{debug, warn};

use super::{Way, outward::Refusal, plain, traffic::Counted, tunnel};
use crate::host::Host;

/// How many connections a call may have at once; further ones wait.
const MOST_CONNECTIONS: usize = 64;

/// What the head of a request may be, and how long it may take to arrive.
const LARGEST_HEAD: usize = 32 * 1024;
const MOST_HEADERS: usize = 100;
const HEAD: Duration = Duration::from_secs(30);

pub type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// The room that a connection takes, kept for as long as anything of it lasts.
pub type Room = Arc<OwnedSemaphorePermit>;

/// Why a request was not passed on.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// It is none that a proxy could pass on.
    #[error("{0}")]
    Malformed(&'static str),
    /// It leads where this call may not go, which is put on record.
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    Failed(String),
}

/// Checks that are left out to show that they are what stops an attempt. Only tests can.
#[derive(Debug, Clone, Copy, Default)]
pub struct Omitted {
    #[cfg(test)]
    pub host_header: bool,
    #[cfg(test)]
    pub server_name: bool,
}

#[cfg(test)]
impl Omitted {
    pub fn host_header(self) -> bool {
        self.host_header
    }

    pub fn server_name(self) -> bool {
        self.server_name
    }
}

#[cfg(not(test))]
impl Omitted {
    pub fn host_header(self) -> bool {
        false
    }

    pub fn server_name(self) -> bool {
        false
    }
}

/// Takes what comes, as far as there is room for it.
pub async fn serve(way: Arc<Way>, listener: TcpListener) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                way.clone().spawn(connection(way.clone(), stream, Arc::new(permit)));
            }
            Err(error) => {
                // Mostly that this process has too many files open.
                warn!(%error, "a connection out of a sandbox cannot be taken, trying again");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(way: Arc<Way>, stream: TcpStream, room: Room) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| answer(way.clone(), room.clone(), request));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_headers(MOST_HEADERS)
        .max_header_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    if let Err(error) = served.await {
        debug!(%error, "a connection out of a sandbox ended early");
    }
}

async fn answer(
    way: Arc<Way>,
    room: Room,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let answered = match *request.method() == Method::CONNECT {
        true => tunnel::open(&way, room, request).await,
        false => plain::forward(&way, room, request).await,
    };
    Ok(answered.unwrap_or_else(|denied| {
        if let Denied::Forbidden(reason) = &denied {
            way.ledger.refuse(reason.clone());
        }
        denied.into()
    }))
}

/// Reaches a host, if this call may.
pub async fn reach(way: &Way, host: &Host) -> Result<Counted, Denied> {
    // First of all: also a question to a name server tells somebody something.
    if !way.admits(host) {
        return Err(Denied::Forbidden(format!("{host} was not granted")));
    }
    let stream = way.outward.connect(host).await?;
    let address = stream.peer_addr()?;
    Ok(Counted::new(stream, way.ledger.open(host.clone(), address)))
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Denied {
        match refusal.is_violation() {
            true => Denied::Forbidden(refusal.to_string()),
            false => Denied::Failed(refusal.to_string()),
        }
    }
}

impl From<io::Error> for Denied {
    fn from(error: io::Error) -> Denied {
        Denied::Failed(error.to_string())
    }
}

impl From<hyper::Error> for Denied {
    fn from(error: hyper::Error) -> Denied {
        Denied::Failed(error.to_string())
    }
}

/// What a program is told, which mostly shows it to whoever runs it.
impl From<Denied> for Response<Body> {
    fn from(denied: Denied) -> Response<Body> {
        let status = match denied {
            Denied::Malformed(_) => StatusCode::BAD_REQUEST,
            Denied::Forbidden(_) => StatusCode::FORBIDDEN,
            Denied::Failed(_) => StatusCode::BAD_GATEWAY,
        };
        let text = Full::from(format!("the egress proxy of this sandbox: {denied}\n"));
        let mut response = Response::new(text.map_err(|never| match never {}).boxed_unsync());
        *response.status_mut() = status;
        let kind = header::HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}
