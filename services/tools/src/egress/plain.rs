//! Requests without encryption, each of which names its host.
//!
//! A request is read as a whole and written anew, by the same parser and printer that speak to
//! everybody else here. So what the host gets is what was checked, and a request cannot hide
//! another one in a length that two readers understand differently.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::{
    Way,
    proxy::{Body, Denied, Omitted, Room, reach},
};
use crate::host::Host;

/// How long a host may take to begin its answer.
const ANSWER: Duration = Duration::from_secs(300);

const PORT: u16 = 80;

pub async fn forward(
    way: &Arc<Way>,
    room: Room,
    request: Request<Incoming>,
) -> Result<Response<Body>, Denied> {
    let host = target(&request, way.omitted)?;
    let stream = reach(way, &host).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    way.clone().spawn(async move {
        let _ = connection.await;
        drop(room);
    });
    let answering = sender.send_request(rewrite(request, &host, way.omitted)?);
    let Ok(response) = timeout(ANSWER, answering).await else {
        return Err(Denied::Failed(format!("{host} does not answer")));
    };
    let mut response = response?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Denied::Failed(format!("{host} wants to speak something else than HTTP")));
    }
    strip(response.headers_mut());
    Ok(response.map(|body| body.boxed_unsync()))
}

/// The one host that a request is for.
fn target(request: &Request<Incoming>, omitted: Omitted) -> Result<Host, Denied> {
    let uri = request.uri();
    let (Some("http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(Denied::Malformed(
            "this is a proxy: it takes requests for http:// URLs, and CONNECT for all others",
        ));
    };
    let host = Host::of_authority(authority.as_str(), Some(PORT))
        .ok_or(Denied::Malformed("the URL has no host that can be reached"))?;
    // By this the host decides whom it is asked for, whatever the URL said.
    let same = |value: &HeaderValue| {
        let named = value.to_str().ok().and_then(|text| Host::of_authority(text, Some(PORT)));
        named.as_ref() == Some(&host)
    };
    let headers = request.headers().get_all(header::HOST);
    if !omitted.host_header() && (!headers.iter().all(same) || headers.iter().count() > 1) {
        let reason = format!("a request to {host} names another host in its header");
        return Err(Denied::Forbidden(reason));
    }
    Ok(host)
}

/// The request as the host is to see it. How its body is framed is up to whoever writes it.
fn rewrite(
    request: Request<Incoming>,
    host: &Host,
    omitted: Omitted,
) -> Result<Request<Incoming>, Denied> {
    let (mut parts, body) = request.into_parts();
    let named = parts.headers.remove(header::HOST).filter(|_| omitted.host_header());
    strip(&mut parts.headers);
    parts.headers.remove(header::CONTENT_LENGTH);
    let usual = match host.port {
        PORT => host.name.clone(),
        _ => host.to_string(),
    };
    let malformed = |_| Denied::Malformed("the URL has no host that can be reached");
    let usual = HeaderValue::try_from(usual).map_err(malformed)?;
    parts.headers.insert(header::HOST, named.unwrap_or(usual));
    parts.uri = match parts.uri.path_and_query() {
        Some(path) => Uri::from(path.clone()),
        None => Uri::from_static("/"),
    };
    parts.version = http::Version::HTTP_11;
    parts.extensions.clear();
    Ok(Request::from_parts(parts, body))
}

/// Removes what is between two neighbours, and not between the two ends.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let always = [
        header::CONNECTION,
        HeaderName::from_static("proxy-connection"),
        HeaderName::from_static("keep-alive"),
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    for name in always.iter().chain(&named) {
        headers.remove(name);
    }
}
