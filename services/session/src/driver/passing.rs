use std::error::Error as _;

use proto::error::v1::Reason;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Whether a failure of another service says that the same call may work a moment later, or
/// elsewhere.
pub fn is_passing(status: &Status) -> bool {
    let details = status.get_error_details();
    match details.error_info().and_then(|info| Reason::from_str_name(&info.reason)) {
        Some(
            Reason::DependencyUnavailable
            | Reason::Stopping
            | Reason::Overloaded
            | Reason::DeadlineExceeded,
        ) => true,
        Some(_) => false,
        // A broken connection has no reason of ours. What the transport says has a source and any
        // code; a server that goes away in peace is INTERNAL.
        None => {
            status.source().is_some()
                || matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled)
        }
    }
}
