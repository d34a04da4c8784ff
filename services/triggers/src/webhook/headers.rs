//! Which headers of a request an agent may see.

use std::collections::BTreeMap;

use http::HeaderMap;

/// What says what a delivery is about. Everything else may hold a credential, or lead to one: cookies,
/// signatures, tokens, addresses.
const SAFE: [&str; 13] = [
    "content-type",
    "user-agent",
    "webhook-id",
    "webhook-timestamp",
    "x-github-delivery",
    "x-github-event",
    "x-github-hook-id",
    "x-github-hook-installation-target-id",
    "x-github-hook-installation-target-type",
    "x-slack-request-timestamp",
    "x-slack-retry-num",
    "x-slack-retry-reason",
    "x-request-id",
];

/// The longest value, in bytes.
const LONGEST: usize = 500;

/// The safe part of the headers, by their names in lower case; of several of one name the first.
pub fn safe(headers: &HeaderMap) -> BTreeMap<String, String> {
    let values = SAFE.iter().filter_map(|name| {
        let value = headers.get(*name)?.to_str().ok()?;
        let short = value.len() <= LONGEST;
        short.then(|| ((*name).to_owned(), value.to_owned()))
    });
    values.collect()
}

#[test]
fn nothing_that_may_be_a_credential_is_kept() {
    let mut headers = HeaderMap::new();
    let long = "a".repeat(LONGEST + 1);
    for (name, value) in [
        ("authorization", "Bearer secret"),
        ("cookie", "session=secret"),
        ("x-hub-signature-256", "sha256=secret"),
        ("stripe-signature", "t=1,v1=secret"),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-api-key", "secret"),
        ("x-github-event", "push"),
        ("x-github-event", "second"),
        ("user-agent", &long),
        ("content-type", "application/json"),
    ] {
        headers.append(name, value.parse().expect("it can be a header"));
    }
    let kept: Vec<_> = safe(&headers).into_iter().collect();
    let kept: Vec<_> = kept.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(kept, [("content-type", "application/json"), ("x-github-event", "push")]);
}
