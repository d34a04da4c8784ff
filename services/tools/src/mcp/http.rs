//! Messages over streamable HTTP.
//!
//! What the library's own client does, with an end to how much it takes in: an answer that is
//! no stream is otherwise read to its end, however far that is.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use futures::{StreamExt as _, stream::BoxStream};
use http::{HeaderName, HeaderValue, StatusCode, header};
use reqwest::{Client, Response, redirect::Policy};
use rmcp::{
    ErrorData,
    model::{ClientJsonRpcMessage, ClientRequest, ServerJsonRpcMessage},
    transport::streamable_http_client::{
        SseError, StreamableHttpClient, StreamableHttpClientTransport,
        StreamableHttpClientTransportConfig, StreamableHttpError, StreamableHttpPostResponse,
    },
};
use secrecy::{ExposeSecret as _, SecretString};
use sse_stream::{Sse, SseStream};
use url::Url;

use super::LONGEST_MESSAGE;
use crate::egress::Outward;

const SESSION: &str = "mcp-session-id";
const JSON: &str = "application/json";
const STREAM: &str = "text/event-stream";

type Failed = StreamableHttpError<reqwest::Error>;

/// The way to a server, with its secrets as headers.
pub fn transport(
    url: &str,
    secrets: &BTreeMap<String, SecretString>,
    outward: &Outward,
) -> Result<StreamableHttpClientTransport<Bounded>, String> {
    let parsed = Url::parse(url).map_err(|error| error.to_string())?;
    outward.check(&parsed).map_err(|refusal| refusal.to_string())?;
    let client = outward
        .builder()
        // Another server is not where the secrets are meant for.
        .redirect(Policy::none())
        .build()
        .map_err(|error| error.to_string())?;
    let mut headers = HashMap::new();
    for (key, value) in secrets {
        let name = HeaderName::from_bytes(key.as_bytes()).map_err(|error| error.to_string())?;
        let mut value = HeaderValue::from_str(value.expose_secret())
            .map_err(|_| format!("the secret for {key} cannot be the value of a header"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    config.custom_headers = headers;
    config.max_sse_event_size = LONGEST_MESSAGE;
    // A call is sent once. A session that is over is a connection that is.
    config.reinit_on_expired_session = false;
    Ok(StreamableHttpClientTransport::with_client(Bounded(client), config))
}

/// A client that takes in only so much.
#[derive(Debug, Clone)]
pub struct Bounded(Client);

impl StreamableHttpClient for Bounded {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let mut request = self.0.post(&*uri).header(header::ACCEPT, format!("{STREAM}, {JSON}"));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(session_id) = &session_id {
            request = request.header(SESSION, &**session_id);
        }
        let request = request.header(header::CONTENT_TYPE, JSON);
        let response = request.body(serde_json::to_vec(&message)?).send().await?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session_id.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let text = |name| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        let kind = text(header::CONTENT_TYPE.as_str()).unwrap_or_default();
        let session = text(SESSION);
        if status.is_success() && kind.starts_with(STREAM) {
            return Ok(StreamableHttpPostResponse::Sse(events(response), session));
        }
        let body = body(response).await?;
        let answer = serde_json::from_slice::<ServerJsonRpcMessage>(&body);
        let expects_answer = matches!(message, ClientJsonRpcMessage::Request(_));
        match (status.is_success(), answer) {
            (true, Ok(answer)) => Ok(StreamableHttpPostResponse::Json(answer, session)),
            (true, Err(_)) if !expects_answer => Ok(StreamableHttpPostResponse::Accepted),
            (true, Err(_)) => Err(unexpected(format!("{kind:?} is no answer"))),
            (false, answer) => refused(status, answer.ok(), &message, session_id.is_some()),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failed> {
        self.0.delete_session(uri, session_id, auth_header, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        self.0
            .get_stream_with_max_sse_event_size(
                uri,
                session_id,
                last_event_id,
                auth_header,
                headers,
                LONGEST_MESSAGE,
            )
            .await
    }
}

/// An answer that says no. A server that is asked in a version of the protocol that it does not
/// know says so with this; the library then asks in an older one.
fn refused(
    status: StatusCode,
    answer: Option<ServerJsonRpcMessage>,
    message: &ClientJsonRpcMessage,
    in_session: bool,
) -> Result<StreamableHttpPostResponse, Failed> {
    let secret = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let error = match answer {
        Some(ServerJsonRpcMessage::Error(error)) => Some(error.error),
        _ => None,
    };
    if let ClientJsonRpcMessage::Request(request) = message
        && !secret
        && status.is_client_error()
    {
        let probe = matches!(request.request, ClientRequest::DiscoverRequest(_)) && !in_session;
        let none = || probe.then(|| ErrorData::invalid_request(format!("HTTP {status}"), None));
        if let Some(error) = error.or_else(none) {
            let answer = ServerJsonRpcMessage::error(error, Some(request.id.clone()));
            return Ok(StreamableHttpPostResponse::Json(answer, None));
        }
    }
    Err(unexpected(format!("HTTP {status}")))
}

fn unexpected(what: String) -> Failed {
    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(what))
}

/// All of an answer, or nothing of one that is too long.
async fn body(mut response: Response) -> Result<Vec<u8>, Failed> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if body.len() + piece.len() > LONGEST_MESSAGE {
            return Err(unexpected("an answer of more than 4 MiB".into()));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// The events that belong to one answer. There are few of them, so together they may be no
/// longer than some long ones.
fn events(response: Response) -> BoxStream<'static, Result<Sse, SseError>> {
    let mut left = 4 * LONGEST_MESSAGE;
    let pieces = response.bytes_stream().map(move |piece| {
        let piece = piece.map_err(std::io::Error::other)?;
        left = left.checked_sub(piece.len()).ok_or_else(|| {
            std::io::Error::other("an answer is longer than four of the longest messages")
        })?;
        Ok::<_, std::io::Error>(piece)
    });
    SseStream::from_bytes_stream(pieces).boxed()
}
