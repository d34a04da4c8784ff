//! A store that speaks as much of S3 as we do, believes no signature that it has not checked,
//! and fails when it is told to.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;

pub const ID: &str = "the-id";
pub const SECRET: &str = "the/secret+key";
const LARGEST: usize = 64 << 20;

/// What happens to a request instead of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// 503, as a store says that is asked too much.
    Busy,
    /// Half of the body, and then nothing.
    Cut,
    /// It was done, and the answer got lost.
    Lost,
}

#[derive(Default)]
struct Shelves {
    objects: BTreeMap<String, Bytes>,
    uploads: BTreeMap<String, BTreeMap<u32, Bytes>>,
    /// Which method the next faults happen to.
    faults: Vec<(Method, Fault)>,
    requests: Vec<String>,
}

#[derive(Clone)]
pub struct S3 {
    pub address: SocketAddr,
    shelves: Arc<Mutex<Shelves>>,
}

impl S3 {
    pub async fn start() -> S3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = S3 { address, shelves: Arc::default() };
        let router = Router::new().fallback(answer).with_state(store.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        store
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn objects(&self) -> BTreeMap<String, Bytes> {
        self.shelves.lock().unwrap().objects.clone()
    }

    /// Uploads in parts that nobody has ended.
    pub fn unfinished(&self) -> usize {
        self.shelves.lock().unwrap().uploads.len()
    }

    /// Puts something else in the place of everything.
    pub fn replace(&self, text: &'static str) {
        let objects = &mut self.shelves.lock().unwrap().objects;
        objects.values_mut().for_each(|object| *object = Bytes::from_static(text.as_bytes()));
    }

    pub fn fail(&self, method: Method, faults: &[Fault]) {
        let faults = faults.iter().map(|fault| (method.clone(), *fault));
        self.shelves.lock().unwrap().faults.extend(faults);
    }

    /// What was asked since this was asked.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shelves.lock().unwrap().requests)
    }

    fn fault(&self, method: &Method) -> Option<Fault> {
        let faults = &mut self.shelves.lock().unwrap().faults;
        let found = faults.iter().position(|(other, _)| other == method)?;
        Some(faults.remove(found).1)
    }
}

async fn answer(State(store): State<S3>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, LARGEST).await.unwrap();
    if !signed(&parts, &body) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let fault = store.fault(&parts.method);
    if fault == Some(Fault::Busy) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let done = serve(&store, &parts, body);
    match fault {
        Some(Fault::Lost) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Some(Fault::Cut) => cut(done).await,
        Some(Fault::Busy) | None => done,
    }
}

async fn cut(whole: Response) -> Response {
    let (parts, body) = whole.into_parts();
    let body = to_bytes(body, LARGEST).await.unwrap();
    let half = Ok(body.slice(..body.len() / 2));
    let pieces = futures::stream::iter([half, Err(std::io::Error::other("cut"))]);
    let mut response = Response::from_parts(parts, Body::from_stream(pieces));
    response.headers_mut().insert(header::CONTENT_LENGTH, body.len().into());
    response
}

fn serve(store: &S3, parts: &Parts, body: Bytes) -> Response {
    let mut shelves = store.shelves.lock().unwrap();
    let key = parts.uri.path().to_owned();
    let query: BTreeMap<&str, &str> = parts
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .collect();
    shelves.requests.push(format!("{} {key}", parts.method));
    let upload = query.get("uploadId").map(ToString::to_string);
    match (parts.method.as_str(), upload) {
        ("PUT", Some(upload)) => match shelves.uploads.get_mut(&upload) {
            Some(pieces) => {
                let number = query["partNumber"].parse().unwrap();
                pieces.insert(number, body);
                ([(header::ETAG, format!("\"{number}\""))], "").into_response()
            }
            None => missing(),
        },
        ("PUT", None) => {
            shelves.objects.insert(key, body);
            ([(header::ETAG, "\"whole\"")], "").into_response()
        }
        ("POST", None) => {
            let upload = format!("upload{}", shelves.requests.len());
            shelves.uploads.insert(upload.clone(), BTreeMap::new());
            let answer = "InitiateMultipartUploadResult";
            format!("<{answer}><UploadId>{upload}</UploadId></{answer}>").into_response()
        }
        ("POST", Some(upload)) => match shelves.uploads.remove(&upload) {
            Some(pieces) => {
                let whole: Vec<Bytes> = pieces.into_values().collect();
                shelves.objects.insert(key, whole.concat().into());
                let answer = "CompleteMultipartUploadResult";
                format!("<{answer}><ETag>whole</ETag></{answer}>").into_response()
            }
            None => missing(),
        },
        ("DELETE", Some(upload)) => {
            shelves.uploads.remove(&upload);
            StatusCode::NO_CONTENT.into_response()
        }
        ("DELETE", None) => {
            shelves.objects.remove(&key);
            StatusCode::NO_CONTENT.into_response()
        }
        ("GET" | "HEAD", _) => match shelves.objects.get(&key) {
            Some(object) => piece(&parts.headers, object),
            None => missing(),
        },
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

fn missing() -> Response {
    (StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>").into_response()
}

fn piece(headers: &HeaderMap, object: &Bytes) -> Response {
    let described = [("etag", "\"whole\""), ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT")];
    let Some(range) = headers.get(header::RANGE) else {
        // Said even where the body itself is not asked for.
        let length = [(header::CONTENT_LENGTH, object.len())];
        return (described, length, object.clone()).into_response();
    };
    let range = range.to_str().unwrap().strip_prefix("bytes=").unwrap();
    let (start, end) = range.split_once('-').unwrap();
    let start: usize = start.parse().unwrap();
    let end = end.parse().map_or(object.len(), |last: usize| (last + 1).min(object.len()));
    let place = format!("bytes {start}-{}/{}", end - 1, object.len());
    let range = [(header::CONTENT_RANGE, place)];
    (StatusCode::PARTIAL_CONTENT, described, range, object.slice(start..end)).into_response()
}

/// Whether a request was signed by whoever knows the secret, for exactly this (Signature
/// Version 4).
fn signed(parts: &Parts, body: &[u8]) -> bool {
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let Some(authorization) = header("authorization") else { return false };
    let field = |name: &str| {
        let (_, rest) = authorization.split_once(&format!("{name}="))?;
        Some(rest.split(',').next()?.trim())
    };
    let (Some(credential), Some(names), Some(signature)) =
        (field("Credential"), field("SignedHeaders"), field("Signature"))
    else {
        return false;
    };
    let (id, scope) = credential.split_once('/').unwrap();
    let digest = header("x-amz-content-sha256").unwrap_or_default();
    if id != ID || digest != hex(Sha256::digest(body)) {
        return false;
    }
    let pairs = parts.uri.query().into_iter().flat_map(|query| query.split('&'));
    let mut query: Vec<String> = pairs
        .map(|pair| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") })
        .collect();
    query.sort();
    let query = query.join("&");
    let headers: String = names
        .split(';')
        .map(|name| format!("{name}:{}\n", header(name).unwrap_or_default().trim()))
        .collect();
    let canonical =
        format!("{}\n{}\n{query}\n{headers}\n{names}\n{digest}", parts.method, parts.uri.path());
    let date = header("x-amz-date").unwrap_or_default();
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(Sha256::digest(canonical)));
    let key = scope
        .split('/')
        .fold(format!("AWS4{SECRET}").into_bytes(), |key, part| hmac(&key, part.as_bytes()));
    hex(hmac(&key, text.as_bytes())) == signature
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    HEXLOWER.encode(bytes.as_ref())
}

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    match key.len() > block.len() {
        true => block[..32].copy_from_slice(&Sha256::digest(key)),
        false => block[..key.len()].copy_from_slice(key),
    }
    let (inner, outer) = (block.map(|byte| byte ^ 0x36), block.map(|byte| byte ^ 0x5c));
    let inner = Sha256::new().chain_update(inner).chain_update(text).finalize();
    Sha256::new().chain_update(outer).chain_update(inner).finalize().to_vec()
}
