//! The last touch on every failure: whoever made it, it has a reason and a request id.

use http::HeaderMap;
use proto::error::v1::Reason;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::{RequestId, status::with_details};

/// Completes the failure in `headers`, if there is one, and says how the call ended.
pub fn finish(headers: &mut HeaderMap, path: &str, id: &RequestId) -> Code {
    let Some(status) = Status::from_header_map(headers) else { return Code::Ok };
    if status.code() == Code::Ok {
        return Code::Ok;
    }
    let mut details = status.get_error_details();
    let status = match details.error_info() {
        Some(_) => status,
        None => {
            let status = explain(status, path);
            details = status.get_error_details();
            status
        }
    };
    details.set_request_info(id.as_str(), "");
    let finished = Status::with_error_details(status.code(), status.message(), details);
    for name in ["grpc-status", "grpc-message", "grpc-status-details-bin"] {
        headers.remove(name);
    }
    if finished.add_header(headers).is_err() {
        tracing::error!(message = status.message(), "a failure does not fit into headers");
    }
    finished.code()
}

/// A reason for a failure that tonic made, which knows nothing of reasons.
fn explain(status: Status, path: &str) -> Status {
    let message = status.message();
    let (reason, metadata, message) = match status.code() {
        Code::Unimplemented => {
            let method = path.trim_start_matches('/').to_owned();
            let message = format!("{method} is not implemented here");
            (Reason::NotImplemented, vec![("method", method)], message)
        }
        Code::DeadlineExceeded => (Reason::DeadlineExceeded, vec![], message.to_owned()),
        _ if is_bad_message(&status) => {
            return crate::invalid("message", message.trim_start_matches("Error, "));
        }
        Code::Internal | Code::Unknown => return crate::internal(&status),
        // A failure of another service that we pass on as it is.
        _ => return status,
    };
    with_details(reason, message, metadata, ErrorDetails::new())
}

/// Whether tonic could not read the request, which it reports in many ways.
fn is_bad_message(status: &Status) -> bool {
    let message = status.message();
    match status.code() {
        Code::OutOfRange | Code::ResourceExhausted => {
            message.starts_with("Error, decoded message length too large")
                || message.starts_with("Error decompressing: size limit")
        }
        Code::Internal => {
            message.starts_with("failed to decode Protobuf message")
                || message.starts_with("protocol error: received message with")
                || message.starts_with("Error decompressing")
                || matches!(message, "Missing request message." | "Unexpected EOF decoding stream.")
        }
        _ => false,
    }
}
