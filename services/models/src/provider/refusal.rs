//! What a provider's error means, in no provider's own words. Their formats differ; where
//! they put a code and a message does not differ much.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::Failure;

/// What a provider said went wrong.
#[derive(Debug, Default, PartialEq)]
pub struct Complaint {
    /// Every code, type and status it gave, in lower case.
    codes: String,
    pub message: String,
    retry_after: Option<Duration>,
}

/// When to come back to somebody who did not say.
const REST: Duration = Duration::from_secs(5);

/// Nobody waits longer than this for a provider, whatever it asks for.
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// What is told of a message that may be of any length.
const MAX_MESSAGE_CHARACTERS: usize = 300;

impl Complaint {
    /// Reads the body of an error, or the data of an event that is one.
    pub fn read(body: &[u8]) -> Complaint {
        let Ok(value) = serde_json::from_slice::<Value>(body) else {
            return Complaint {
                message: brief(&String::from_utf8_lossy(body)),
                ..Complaint::default()
            };
        };
        // Some send a list of one.
        let value = value.get(0).unwrap_or(&value);
        Complaint::of(value.get("error").unwrap_or(value))
    }

    pub fn of(error: &Value) -> Complaint {
        let text = |name: &str| match error.get(name) {
            Some(Value::String(text)) => text.to_lowercase(),
            Some(Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        let details = error.get("details").and_then(Value::as_array).into_iter().flatten();
        let (mut reasons, mut retry_after) = (String::new(), None);
        for detail in details {
            if let Some(reason) = detail.get("reason").and_then(Value::as_str) {
                reasons += &reason.to_lowercase();
            }
            let delay = detail.get("retryDelay").and_then(Value::as_str);
            let seconds = delay.and_then(|delay| delay.strip_suffix('s')?.parse().ok());
            retry_after = seconds.and_then(seconds_of).or(retry_after);
        }
        let message = error.as_str().or_else(|| error.get("message").and_then(Value::as_str));
        let codes = ["type", "code", "status"].map(text).join(" ");
        Complaint {
            codes: format!("{codes} {reasons}"),
            message: brief(message.unwrap_or_default()),
            retry_after,
        }
    }

    /// What it means when it is the answer to a request.
    pub fn answer(self, status: StatusCode, headers: &HeaderMap) -> Failure {
        let retry_after = headers_retry_after(headers).or(self.retry_after).unwrap_or(REST);
        match status.as_u16() {
            _ if self.is_exhausted() => Failure::Auth,
            401 | 403 => Failure::Auth,
            429 => Failure::RateLimited { retry_after: retry_after.min(LONGEST_REST) },
            413 => Failure::Overflow,
            408 | 409 | 425 | 500.. => Failure::Transient(self.told(status.as_str())),
            _ => self.invalid(status.as_str()),
        }
    }

    /// What it means when it comes in the middle of an answer, where there is no status.
    pub fn event(self) -> Failure {
        let says = |words: &[&str]| words.iter().any(|word| self.codes.contains(word));
        if says(&["rate_limit", "resource_exhausted", "429"]) && !self.is_exhausted() {
            return Failure::RateLimited { retry_after: self.retry_after.unwrap_or(REST) };
        }
        if says(&["authentication", "permission", "api_key", "401", "403"]) || self.is_exhausted() {
            return Failure::Auth;
        }
        if says(&["invalid", "context_length", "content", "safety", "400", "not_found"]) {
            return self.invalid("an error");
        }
        Failure::Transient(self.told("an error"))
    }

    fn invalid(self, status: &str) -> Failure {
        let message = self.message.to_lowercase();
        let says = |words: &[&str]| {
            words.iter().any(|word| message.contains(word) || self.codes.contains(word))
        };
        if says(OVERFLOW) {
            return Failure::Overflow;
        }
        if says(REFUSED) {
            return Failure::Refused;
        }
        if says(&["api_key_invalid", "invalid_api_key", "api key not valid"]) {
            return Failure::Auth;
        }
        Failure::Invalid(self.told(status))
    }

    /// An account that has nothing left does not get better by waiting a moment.
    fn is_exhausted(&self) -> bool {
        ["insufficient_quota", "billing"].iter().any(|code| self.codes.contains(code))
    }

    fn told(self, status: &str) -> String {
        match self.message.is_empty() {
            true => format!("it answered with {status}"),
            false => format!("it answered with {status}: {}", self.message),
        }
    }
}

/// How providers and the servers that speak like them say that a prompt is too long.
const OVERFLOW: &[&str] = &[
    "context_length_exceeded",
    "exceed_context_size",
    "model_context_window_exceeded",
    "prompt is too long",
    "maximum context length",
    "exceeds the maximum number of tokens",
    "exceeds the available context size",
    "input is too long",
    "exceed context limit",
    "exceeds the context window",
];

/// How they say that they do not want to answer this.
const REFUSED: &[&str] = &[
    "content_filter",
    "content_policy",
    "content management policy",
    "responsibleaipolicyviolation",
    "content filtering policy",
    "invalid_prompt",
    "prohibited_content",
];

fn headers_retry_after(headers: &HeaderMap) -> Option<Duration> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    if let Some(milliseconds) = header("retry-after-ms").and_then(|text| text.parse::<f64>().ok()) {
        return seconds_of(milliseconds / 1000.0);
    }
    let text = header("retry-after")?;
    if let Ok(seconds) = text.parse() {
        return seconds_of(seconds);
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let now = jiff::Timestamp::try_from(SystemTime::now()).ok()?;
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

fn seconds_of(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

/// The beginning of a text from outside, on one line.
fn brief(text: &str) -> String {
    let text = text.trim().chars().map(|one| if one.is_control() { ' ' } else { one });
    text.take(MAX_MESSAGE_CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(http::HeaderName::from_static(name), value.parse().unwrap())])
    }

    fn wait(headers: &HeaderMap, body: &str) -> Duration {
        match Complaint::read(body.as_bytes()).answer(StatusCode::TOO_MANY_REQUESTS, headers) {
            Failure::RateLimited { retry_after } => retry_after,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_wait_is_read_wherever_it_is_told() {
        assert_eq!(wait(&headers("retry-after", "7"), ""), Duration::from_secs(7));
        assert_eq!(wait(&headers("retry-after", "0.5"), ""), Duration::from_millis(500));
        assert_eq!(wait(&headers("retry-after-ms", "1500"), ""), Duration::from_millis(1500));
        let date = wait(&headers("retry-after", "Tue, 31 Dec 2199 23:59:59 GMT"), "");
        assert_eq!(date, LONGEST_REST);
        let past = wait(&headers("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"), "");
        assert_eq!(past, Duration::ZERO);
        let info = r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"slow down",
            "details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}"#;
        assert_eq!(wait(&HeaderMap::new(), info), Duration::from_millis(34_500));
        assert_eq!(wait(&headers("retry-after", "soon"), "<html>"), REST);
        assert_eq!(wait(&headers("retry-after", "-1"), ""), REST);
        assert_eq!(wait(&headers("retry-after", "NaN"), ""), REST);
    }

    #[test]
    fn what_was_meant_is_told_apart_by_what_was_said() {
        let read = |status, body: &str| {
            let status = StatusCode::from_u16(status).unwrap();
            Complaint::read(body.as_bytes()).answer(status, &HeaderMap::new()).kind()
        };
        for (status, body, kind) in [
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 8192 tokens","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
                "context_overflow",
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
                "context_overflow",
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#,
                "context_overflow",
            ),
            (413, "", "context_overflow"),
            (
                400,
                r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}"#,
                "auth",
            ),
            (401, "", "auth"),
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#,
                "auth",
            ),
            (429, "{}", "rate_limit"),
            (
                400,
                r#"{"error":{"message":"The response was filtered","code":"content_filter"}}"#,
                "refused",
            ),
            (404, r#"{"error":"model \"nope\" not found, try pulling it first"}"#, "invalid"),
            (
                529,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                "transient",
            ),
            (503, "<html>bad gateway</html>", "transient"),
            (500, "", "transient"),
        ] {
            assert_eq!(read(status, body), kind, "{status} {body}");
        }
    }

    #[test]
    fn an_error_in_the_middle_is_told_apart_too() {
        for (body, kind) in [
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                "transient",
            ),
            (r#"{"error":{"type":"rate_limit_error","message":""}}"#, "rate_limit"),
            (
                r#"{"error":{"type":"server_error","code":"server_error","message":"oops"}}"#,
                "transient",
            ),
            (
                r#"{"error":{"type":"invalid_request_error","message":"prompt is too long"}}"#,
                "context_overflow",
            ),
            (r#"{"error":{"type":"authentication_error","message":"x"}}"#, "auth"),
        ] {
            assert_eq!(Complaint::read(body.as_bytes()).event().kind(), kind, "{body}");
        }
    }
}
