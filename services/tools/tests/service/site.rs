//! A web server of the test's own.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivateKeyDer},
};

#[derive(Clone, Default)]
pub struct Site {
    pub port: u16,
    pages: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    /// The heads of all requests.
    heard: Arc<Mutex<Vec<String>>>,
}

impl Site {
    pub async fn start() -> Site {
        Site::listen(None).await
    }

    /// One that is encrypted, with a certificate for `localhost` that nobody signed.
    pub async fn encrypted() -> Site {
        chassis::tls::install_default();
        let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(signed.signing_key.serialize_der().into());
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![signed.cert.der().clone()], key)
            .unwrap();
        Site::listen(Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn listen(tls: Option<TlsAcceptor>) -> Site {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let site = Site { port, ..Site::default() };
        let serving = site.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (site, tls) = (serving.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => site.answer(stream).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                site.answer(stream).await;
                            }
                        }
                    }
                });
            }
        });
        site
    }

    /// A page with these headers, one per line.
    pub fn page(&self, path: &str, status: u16, headers: &str, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let headers: String = headers.lines().map(|line| format!("{line}\r\n")).collect();
        let head = format!("HTTP/1.1 {status} Fine\r\n{headers}content-length: {}\r\n", body.len());
        let answer = [format!("{head}connection: close\r\n\r\n").as_bytes(), body].concat();
        self.pages.lock().unwrap().insert(path.to_owned(), answer);
    }

    pub fn html(&self, path: &str, body: &str) {
        self.page(path, 200, "content-type: text/html; charset=utf-8", body);
    }

    pub fn redirect(&self, path: &str, to: &str) {
        self.page(path, 302, &format!("location: {to}"), "");
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://localhost:{}{path}", self.port)
    }

    pub fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }

    async fn answer(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(next) => head.push(next),
                Err(_) => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let target = head.split(' ').nth(1).unwrap().to_owned();
        let path = target.split('?').next().unwrap();
        let page = self.pages.lock().unwrap().get(path).cloned();
        self.heard.lock().unwrap().push(head);
        // What there is no page for is never answered.
        let Some(page) = page else { return std::future::pending().await };
        let _ = stream.write_all(&page).await;
        let _ = stream.shutdown().await;
    }
}
