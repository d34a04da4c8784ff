use tonic::Status;
use tonic_types::StatusExt as _;

/// A failure in one line: `NotFound REASON_SESSION_NOT_FOUND: session ses_… not found`.
pub fn explain(status: &Status) -> String {
    format!("{:?} {}: {}", status.code(), reason(status), status.message())
}

/// The machine-readable reason, without which no failure may leave the system.
pub fn reason(status: &Status) -> String {
    match status.get_details_error_info() {
        Some(info) => info.reason,
        None => panic!("a failure without a reason: {status:?}"),
    }
}
