//! How failures look from outside.

use std::{collections::HashMap, error::Error, io, time::Duration};

use proto::error::v1::Reason;
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt as _};

/// The namespace of our reasons.
pub const DOMAIN: &str = "windlass";

/// When to come back after something we depend on did not answer.
pub const RETRY: Duration = Duration::from_secs(1);

/// A failure the caller can act on: a code, a sentence, and a machine-readable reason.
pub fn status(reason: Reason, error: &dyn Error, metadata: Vec<(&str, String)>) -> Status {
    with_details(reason, error.to_string(), metadata, ErrorDetails::new())
}

/// A failure that is our fault: logged here, once, and kept from the caller.
pub fn internal(error: &(dyn Error + 'static)) -> Status {
    tracing::error!(error, "internal error");
    with_details(Reason::Internal, "internal error".to_owned(), vec![], ErrorDetails::new())
}

/// A request field is missing, malformed, too long or out of range.
pub fn invalid(field: &str, problem: impl Into<String>) -> Status {
    let problem = cut(problem.into(), LONGEST_MESSAGE);
    let message = format!("invalid {field}: {problem}");
    let details = ErrorDetails::with_bad_request_violation(field, problem);
    with_details(Reason::InvalidField, message, vec![("field", field.to_owned())], details)
}

/// Something we depend on does not answer; the caller may try again after `retry_after`.
pub fn unavailable(dependency: &str, retry_after: Duration) -> Status {
    let message = format!("{dependency} does not answer");
    let details = ErrorDetails::with_retry_info(Some(retry_after));
    let metadata = vec![("dependency", dependency.to_owned())];
    with_details(Reason::DependencyUnavailable, message, metadata, details)
}

/// What a caller is told when Postgres failed: to come back, if it is away or has
/// no connection to spare, and else that we are at fault.
pub fn database_error(error: &sqlx::Error) -> Status {
    if is_away(error) {
        tracing::warn!(%error, "postgres does not answer");
        return unavailable("postgres", RETRY);
    }
    internal(error)
}

/// What passes: 08 is a broken connection, 25006 a primary that became a standby, 25P03 a
/// transaction that we were too busy to go on with, 40 a conflict, 53 exhausted resources, 55P03 a
/// lock and 57014 a statement that took too long, 57P0x a server that stops, starts or dropped us.
const PASSING: [&str; 8] = ["08", "25006", "25P03", "40", "53", "55P03", "57014", "57P0"];

fn is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() != io::ErrorKind::InvalidData,
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(error) => {
            error.code().is_some_and(|code| PASSING.iter().any(|class| code.starts_with(class)))
        }
        _ => false,
    }
}

/// A failure travels in headers, of which callers take few KiB: what repeats a caller's own words is
/// cut. Whoever sends more breaks the connection, with all other calls on it.
const LONGEST_MESSAGE: usize = 1_000;
const LONGEST_VALUE: usize = 256;

fn cut(mut text: String, longest: usize) -> String {
    text.truncate(text.floor_char_boundary(longest));
    text
}

/// The one place where a status is put together.
pub fn with_details(
    reason: Reason,
    message: String,
    metadata: Vec<(&str, String)>,
    mut details: ErrorDetails,
) -> Status {
    let message = cut(message, LONGEST_MESSAGE);
    let metadata: HashMap<String, String> = metadata
        .into_iter()
        .map(|(key, value)| (key.to_owned(), cut(value, LONGEST_VALUE)))
        .collect();
    details.set_error_info(reason.as_str_name(), DOMAIN, metadata);
    Status::with_error_details(reason.code(), message, details)
}

#[test]
fn a_failure_fits_into_headers_whatever_it_is_about() {
    let long = "🪢".repeat(1 << 18);
    let status = invalid("message", long.as_str());
    assert!(status.message().len() + status.details().len() < 4_096);
    let error = io::Error::other(long.clone());
    let status = self::status(Reason::InvalidField, &error, vec![("field", long)]);
    assert!(status.message().len() + status.details().len() < 4_096);
}
