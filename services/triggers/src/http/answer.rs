//! What senders are told.

use axum::{
    Json,
    http::{
        HeaderValue, StatusCode,
        header::{RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    firing::{Drop, Receipt},
    ids::FiringId,
};

/// When to come back after we were busy, in seconds.
const RETRY: i64 = 1;

#[derive(Debug, PartialEq)]
pub enum Answer {
    /// It is stored and becomes a turn.
    Accepted(FiringId),

    /// It is on record and becomes none, and sending it again would not help.
    Dropped(FiringId, Drop),

    /// What a sender wants to hear back before it sends anything.
    Challenge(String),
    Refused(Refusal),
}

/// What is not taken.
#[derive(Debug, PartialEq)]
pub enum Refusal {
    Malformed(&'static str),
    Unbelieved,
    NotFound,
    TooSlow,
    TooLarge(usize),
    Throttled { seconds: i64, limit: &'static str },
    Busy,
}

impl Answer {
    pub fn of(receipt: Receipt, now: Timestamp) -> Answer {
        match receipt.drop {
            None => Answer::Accepted(receipt.id),
            Some(Drop::Throttled) => Refusal::flooded(now).into(),
            Some(Drop::Quota) => {
                let seconds = until_next(now, 24 * 60 * 60);
                Refusal::Throttled { seconds, limit: "quota" }.into()
            }
            Some(drop) => Answer::Dropped(receipt.id, drop),
        }
    }
}

impl Refusal {
    /// A trigger has fired as often as it may this minute.
    pub fn flooded(now: Timestamp) -> Refusal {
        Refusal::Throttled { seconds: until_next(now, 60), limit: "max_per_minute" }
    }
}

/// Seconds until the next whole minute or day.
fn until_next(now: Timestamp, period: i64) -> i64 {
    period - now.as_second().rem_euclid(period)
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Answer {
        Answer::Refused(refusal)
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let said = |status, body: Value| (status, Json(body)).into_response();
        match self {
            Answer::Accepted(id) => {
                said(StatusCode::ACCEPTED, json!({ "status": "accepted", "firing_id": id }))
            }
            Answer::Dropped(id, drop) => {
                let body = json!({ "status": "dropped", "reason": drop.as_str(), "firing_id": id });
                said(StatusCode::OK, body)
            }
            Answer::Challenge(challenge) => said(StatusCode::OK, json!({ "challenge": challenge })),
            Answer::Refused(refusal) => refusal.into_response(),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, error, message) = match &self {
            Refusal::Malformed(problem) => {
                (StatusCode::BAD_REQUEST, "malformed", (*problem).to_owned())
            }
            Refusal::Unbelieved => (
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "the signature or credential is missing, old or wrong".to_owned(),
            ),
            Refusal::NotFound => {
                (StatusCode::NOT_FOUND, "not_found", "there is no such trigger".to_owned())
            }
            Refusal::TooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "too_slow",
                "the request did not arrive in time".to_owned(),
            ),
            Refusal::TooLarge(most) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_large",
                format!("the body is larger than {most} bytes"),
            ),
            Refusal::Throttled { limit, .. } => (
                StatusCode::TOO_MANY_REQUESTS,
                "throttled",
                format!("{limit} of this trigger is used up"),
            ),
            Refusal::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                "this server cannot take it now, try again".to_owned(),
            ),
        };
        let body = Json(json!({ "error": error, "message": message }));
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        match self {
            Refusal::Throttled { seconds, .. } => {
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            Refusal::Busy => {
                headers.insert(RETRY_AFTER, HeaderValue::from(RETRY));
            }
            Refusal::Unbelieved => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Refusal::Malformed(_) | Refusal::NotFound => (),
            Refusal::TooSlow | Refusal::TooLarge(_) => (),
        }
        response
    }
}

pub async fn nothing_here() -> Response {
    Refusal::NotFound.into_response()
}

#[test]
fn a_throttle_says_when_it_is_over() {
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let retry = |text: &str| match Refusal::flooded(at(text)) {
        Refusal::Throttled { seconds, .. } => seconds,
        _ => 0,
    };
    assert_eq!(retry("2026-01-01T00:00:00Z"), 60);
    assert_eq!(retry("2026-01-01T00:00:59.5Z"), 1);
}
