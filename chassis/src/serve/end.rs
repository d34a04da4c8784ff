//! What ends a call that does not end by itself.

use std::{future::pending, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use http::HeaderMap;
use proto::error::v1::Reason;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic_types::ErrorDetails;

use crate::{request_id::Malformed, status::with_details};

/// Resolves when the caller's deadline has passed or `stop` is cancelled.
pub fn end(deadline: Option<Instant>, stop: CancellationToken) -> BoxFuture<'static, Status> {
    let passed = async move {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => pending().await,
        }
    };
    async move {
        tokio::select! {
            () = passed => deadline_exceeded(),
            () = stop.cancelled() => stopping(),
        }
    }
    .boxed()
}

pub fn deadline_exceeded() -> Status {
    let message = "the deadline has passed".to_owned();
    with_details(Reason::DeadlineExceeded, message, vec![], ErrorDetails::new())
}

/// What a stream that ends because the server stops tells its reader.
pub fn stopping() -> Status {
    let message = "this server is stopping, call again".to_owned();
    with_details(Reason::Stopping, message, vec![], ErrorDetails::new())
}

/// The transport enforces the same deadline without giving a reason, so ours is a little earlier.
const HEAD_START: Duration = Duration::from_millis(2);

/// When a call that arrives now must be over.
pub fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, Malformed> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let timeout = value.to_str().ok().and_then(parse).ok_or(Malformed)?;
    Ok(Instant::now().checked_add(timeout.saturating_sub(HEAD_START)))
}

/// How long the caller waits, if it said so: for calls that answer something else in time.
pub fn time_left<T>(request: &tonic::Request<T>) -> Option<Duration> {
    parse(request.metadata().get("grpc-timeout")?.to_str().ok()?)
}

/// At most eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[test]
fn timeouts_are_digits_and_a_unit() {
    assert_eq!(parse("20S"), Some(Duration::from_secs(20)));
    assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
    for wrong in ["", "S", "20", "20s", "-1S", "+1S", "123456789S", "1.5S", "1ä"] {
        assert_eq!(parse(wrong), None, "{wrong}");
    }
}
