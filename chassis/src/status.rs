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

/// All there is room for is under way; the caller may try again soon.
pub fn overloaded(message: impl Into<String>) -> Status {
    let details = ErrorDetails::with_retry_info(Some(RETRY));
    with_details(Reason::Overloaded, message.into(), vec![], details)
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
    if has_code(error, &UNSTORABLE) {
        return invalid("request", "a text in it contains NUL, which no text here may");
    }
    internal(error)
}

/// A NUL in a text, and in a text inside of JSON. Fields whose form is known are refused by name
/// before they come this far; this is for all others, and nothing was written.
const UNSTORABLE: [&str; 2] = ["22021", "22P05"];

/// What passes: 08 is a broken connection, 25006 a primary that became a standby, 25P03 a
/// transaction that we were too busy to go on with, 40 a conflict, 53 exhausted resources, 55P03 a
/// lock and 57014 a statement that took too long, 57P0x a server that stops, starts or dropped us.
const PASSING: [&str; 8] = ["08", "25006", "25P03", "40", "53", "55P03", "57014", "57P0"];

fn is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() != io::ErrorKind::InvalidData,
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(_) => has_code(error, &PASSING),
        // Whoever stands before Postgres takes the connection and hangs up when there is none; sqlx
        // reads nothing where it expects a word about TLS.
        sqlx::Error::Protocol(problem) => problem.contains("response from SSLRequest: 0x00"),
        _ => false,
    }
}

fn has_code(error: &sqlx::Error, classes: &[&str]) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| classes.iter().any(|class| code.starts_with(class)))
}

/// A failure travels in headers, of which callers take few KiB: what repeats a caller's own words is
/// cut. Whoever sends more breaks the connection, with all other calls on it.
const LONGEST_MESSAGE: usize = 1_000;
const LONGEST_VALUE: usize = 256;

fn cut(mut text: String, longest: usize) -> String {
    text.truncate(text.floor_char_boundary(longest));
    text
}

/// The one place where a status is put together. Whatever is about a field says so in both
/// ways that callers know: in our metadata and as a violation.
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
    if let (Some(field), None) = (metadata.get("field"), details.bad_request()) {
        details.add_bad_request_violation(field, &message);
    }
    details.set_error_info(reason.as_str_name(), DOMAIN, metadata);
    Status::with_error_details(reason.code(), message, details)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_a_field_names_it_as_a_violation() {
        let about_a_page = vec![("field", "page_token".to_owned())];
        let message = "not one of ours".to_owned();
        let status =
            with_details(Reason::InvalidCursor, message, about_a_page, ErrorDetails::new());
        let violations = status.get_error_details().bad_request().unwrap().field_violations.clone();
        let [violation] = &violations[..] else { panic!("{violations:?}") };
        assert_eq!(
            (violation.field.as_str(), violation.description.as_str()),
            ("page_token", "not one of ours")
        );

        let status = invalid("title", "at most 200 characters");
        let violations = status.get_error_details().bad_request().unwrap().field_violations.clone();
        assert_eq!(violations.len(), 1, "a violation is told twice: {violations:?}");
    }

    #[test]
    fn a_failure_fits_into_headers_whatever_it_is_about() {
        let long = "🪢".repeat(1 << 18);
        let status = invalid("message", long.as_str());
        assert!(status.message().len() + status.details().len() < 4_096);
        let error = io::Error::other(long.clone());
        let status = super::status(Reason::InvalidField, &error, vec![("field", long)]);
        assert!(status.message().len() + status.details().len() < 4_096);
    }
}
