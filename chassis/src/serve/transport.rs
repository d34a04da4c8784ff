//! HTTP/2 and TLS, and how patient we are with them.

use std::time::Duration;

use tonic::transport::Server;

use crate::tls;

/// Notices within 30 seconds that a caller is gone without having said so.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// After this long a caller is asked to connect anew, which is how it finds replicas
/// that were not there before. Its calls in flight are not disturbed.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(300);

/// How many calls one connection carries at a time; more of them wait for their turn.
const MAX_CONNECTION_STREAMS: u32 = 4096;

/// Enough for large messages to flow without waiting for permission.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// A prompt is one piece and not many, each of which is written and read by itself.
const MAX_FRAME_BYTES: u32 = 256 * 1024;

/// Credentials, request ids and traces fit; nothing else should be in there.
const MAX_HEADER_BYTES: u32 = 32 * 1024;

pub fn new(tls: &tls::Args) -> anyhow::Result<Server> {
    let transport = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .max_connection_age(MAX_CONNECTION_AGE)
        .max_concurrent_streams(MAX_CONNECTION_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .http2_max_header_list_size(MAX_HEADER_BYTES);
    Ok(match tls.server()? {
        Some(tls) => transport.tls_config(tls)?,
        None => transport,
    })
}
