//! Connections, and how patient we are with them.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;
use tracing::{debug, warn};

/// How many connections there may be; more of them are closed.
const MOST_CONNECTIONS: usize = 4096;

/// How long a sender may take to encrypt, and to say what it wants, also for the second time.
const HANDSHAKE: Duration = Duration::from_secs(10);
const HEADERS: Duration = Duration::from_secs(30);

/// How much the headers of a request may be, in bytes.
const LARGEST_HEAD: usize = 32 * 1024;

/// How long to rest when connections cannot be accepted, which is mostly for want of descriptors.
const REST: Duration = Duration::from_millis(100);

/// Serves until `stop`, and then lets what is under way finish.
pub async fn run(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    drain: Duration,
    stop: CancellationToken,
) {
    let connections = TaskTracker::new();
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                sleep(REST).await;
                continue;
            }
        };
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let (tls, router, stop) = (tls.clone(), router.clone(), stop.clone());
        connections.spawn(async move {
            connection(stream, tls, router, stop).await;
            drop(permit);
        });
    }
    connections.close();
    if timeout(drain, connections.wait()).await.is_err() {
        warn!(?drain, "requests still under way over HTTP, cutting them off");
    }
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    router: Router,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    match tls {
        None => serve(stream, router, stop).await,
        Some(tls) => match timeout(HANDSHAKE, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve(stream, router, stop).await,
            Ok(Err(error)) => debug!(%error, "a connection could not be encrypted"),
            Err(_) => debug!("a connection took too long to encrypt"),
        },
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    router: Router,
    stop: CancellationToken,
) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let router = router.clone();
        async move {
            match router.oneshot(request.map(Body::new)).await {
                Ok(response) => Ok::<_, Infallible>(response),
                Err(never) => match never {},
            }
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended badly");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::post;
    use rcgen::CertifiedKey;
    use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::http::encryption::acceptor;

    const REQUEST: &[u8] =
        b"POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";

    fn router() -> Router {
        Router::new().route("/echo", post(|body: String| async move { body }))
    }

    async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn requests_are_received_over_tls() {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = (folder.path().join("cert"), folder.path().join("key"));
        std::fs::write(&chain, cert.pem()).unwrap();
        std::fs::write(&key, signing_key.serialize_pem()).unwrap();
        let tls = acceptor(&chain, &key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let served =
            tokio::spawn(run(listener, Some(tls), router(), Duration::from_secs(5), stop.clone()));

        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let answer = ask(connector.connect(name, stream).await.unwrap()).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hi"), "{answer}");

        // Whoever does not encrypt is not answered, and disturbs nobody.
        assert_eq!(ask(TcpStream::connect(address).await.unwrap()).await.find("200 OK"), None);
        stop.cancel();
        served.await.unwrap();
    }

    #[tokio::test]
    async fn a_request_under_way_is_answered_before_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let begun = Arc::new(tokio::sync::Notify::new());
        let (told, stopped) = (begun.clone(), stop.clone());
        let router = Router::new().route(
            "/echo",
            post(move |body: String| async move {
                told.notify_one();
                stopped.cancelled().await;
                body
            }),
        );
        let served =
            tokio::spawn(run(listener, None, router, Duration::from_secs(5), stop.clone()));
        let asked =
            tokio::spawn(async move { ask(TcpStream::connect(address).await.unwrap()).await });
        begun.notified().await;
        stop.cancel();
        assert!(asked.await.unwrap().ends_with("hi"));
        served.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }
}
