use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    Provider, delivery,
    signature::{self, Refused, TOLERANCE, verify},
};

/// A request as a sender's own documentation has it, or as it says to make one.
struct Example {
    provider: Provider,
    secret: &'static str,
    headers: Vec<(&'static str, String)>,
    body: &'static str,
    /// When it was signed; of providers that do not say, any time.
    time: i64,
}

fn hmac() -> Provider {
    Provider::new("hmac", "", "").unwrap()
}

fn examples() -> Vec<Example> {
    let slack = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow\
        &channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner\
        &command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands\
        %2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN\
        &trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    let github = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    vec![
        Example {
            provider: Provider::Github,
            secret: "It's a Secret to Everybody",
            headers: vec![("x-hub-signature-256", format!("sha256={github}"))],
            body: "Hello, World!",
            time: 0,
        },
        Example {
            provider: Provider::Standard,
            secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            headers: vec![
                ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek".into()),
                ("webhook-timestamp", "1614265330".into()),
                ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=".into()),
            ],
            body: r#"{"test": 2432232314}"#,
            time: 1_614_265_330,
        },
        Example {
            provider: Provider::Slack,
            secret: "8f742231b10e8888abcd99yyyzzz85a5",
            headers: vec![
                ("x-slack-request-timestamp", "1531420618".into()),
                (
                    "x-slack-signature",
                    "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503".into(),
                ),
            ],
            body: slack,
            time: 1_531_420_618,
        },
        Example {
            provider: Provider::Stripe,
            secret: "whsec_test_secret",
            headers: vec![(
                "stripe-signature",
                "t=1492774577,\
                 v1=174d5523cfbe4e1b5329c200cb77563aab3083d19aed8962b99a62deedaeffe7,\
                 v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"
                    .into(),
            )],
            body: r#"{"id":"evt_1NG8Du2eZvKYlo2CUI79vXWy","object":"event","type":"payment_intent.succeeded"}"#,
            time: 1_492_774_577,
        },
        Example {
            provider: hmac(),
            secret: "It's a Secret to Everybody",
            headers: vec![("x-signature-256", github.into())],
            body: "Hello, World!",
            time: 0,
        },
    ]
}

fn map(headers: &[(&'static str, String)]) -> HeaderMap {
    let header = |(name, value): &(&'static str, String)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    };
    headers.iter().map(header).collect()
}

impl Example {
    fn verdict(&self, secrets: &[&str], now: i64) -> Result<(), Refused> {
        verify(&self.provider, secrets, &map(&self.headers), self.body.as_bytes(), now)
    }
}

#[test]
fn what_senders_document_is_believed() {
    for example in examples() {
        assert_eq!(
            example.verdict(&[example.secret], example.time),
            Ok(()),
            "{:?}",
            example.provider
        );
    }
}

#[test]
fn a_secret_can_be_replaced_while_the_old_one_is_in_use() {
    for example in examples() {
        for (secrets, expected) in [
            (&["whsec_bmV3", example.secret][..], Ok(())),
            (&[example.secret, "whsec_bmV3"], Ok(())),
            (&["whsec_bmV3"], Err(Refused::Wrong)),
            (&[], Err(Refused::Wrong)),
        ] {
            assert_eq!(example.verdict(secrets, example.time), expected);
        }
    }
}

#[test]
fn what_was_signed_at_another_time_is_refused() {
    for example in examples().iter().filter(|example| example.time > 0) {
        for (offset, expected) in [
            (TOLERANCE, Ok(())),
            (-TOLERANCE, Ok(())),
            (TOLERANCE + 1, Err(Refused::Stale)),
            (-TOLERANCE - 1, Err(Refused::Stale)),
        ] {
            assert_eq!(example.verdict(&[example.secret], example.time + offset), expected);
        }
    }
}

#[test]
fn any_of_several_signatures_may_be_the_right_one() {
    let mut examples = examples();
    let other = signature::mac(b"another", &[b"other"]);
    let (hex, base64) =
        (data_encoding::HEXLOWER.encode(&other), data_encoding::BASE64.encode(&other));
    examples[1].headers[2].1 = format!("v1,{base64} v1a,ignored {}", examples[1].headers[2].1);
    examples[3].headers[0].1 = format!("v1={hex},{}", examples[3].headers[0].1);
    for example in [&examples[1], &examples[3]] {
        assert_eq!(example.verdict(&[example.secret], example.time), Ok(()));
    }
    // Of the same header twice, somebody else might look at the other.
    for example in &examples {
        let mut headers = map(&example.headers);
        let name = HeaderName::from_static(example.headers[0].0);
        headers.append(name, HeaderValue::from_static("another"));
        let verdict = verify(
            &example.provider,
            &[example.secret],
            &headers,
            example.body.as_bytes(),
            example.time,
        );
        assert_eq!(verdict, Err(Refused::Missing));
    }
}

#[test]
fn a_delivery_is_known_by_its_sender_s_id_or_by_its_body() {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"),
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("x-delivery-id", "with spaces"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let payload = json!({ "id": "evt_1", "event_id": "Ev1" });
    let id = |provider: &Provider| delivery::id(provider, &headers, b"body", &payload);
    assert_eq!(id(&Provider::Github), "72d3162e-cc78-11e3-81ab-4c9367dc0958");
    assert_eq!(id(&Provider::Standard), "msg_p5jXN8AQM9LWM0D4loKWxJek");
    assert_eq!(id(&Provider::Stripe), "evt_1");
    assert_eq!(id(&Provider::Slack), "Ev1");
    let digest = id(&hmac());
    assert!(digest.starts_with("sha256-") && digest.len() == 71, "{digest}");
    let none = |body: &[u8]| delivery::id(&Provider::Slack, &HeaderMap::new(), body, &Value::Null);
    assert_eq!(none(b"one"), none(b"one"));
    assert_ne!(none(b"one"), none(b"two"));
}

/// Changes one thing, or nothing that means anything.
#[derive(Debug, Clone)]
enum Change {
    Body { place: usize, byte: u8 },
    Grow(Vec<u8>),
    Header { which: usize, place: usize, character: char },
    Drop(usize),
    Time(i64),
    Secret { place: usize, character: char },
}

fn change() -> impl Strategy<Value = Change> {
    let printable = prop::char::range('!', '~');
    prop_oneof![
        (0..2000usize, any::<u8>()).prop_map(|(place, byte)| Change::Body { place, byte }),
        prop::collection::vec(any::<u8>(), 1..20).prop_map(Change::Grow),
        (0..3usize, 0..300usize, printable.clone())
            .prop_map(|(which, place, character)| Change::Header { which, place, character }),
        (0..3usize).prop_map(Change::Drop),
        prop_oneof![TOLERANCE + 1..1_000_000, -1_000_000..-TOLERANCE].prop_map(Change::Time),
        (0..60usize, printable).prop_map(|(place, character)| Change::Secret { place, character }),
    ]
}

/// The same text with another character in one place.
fn replaced(text: &str, place: usize, character: char) -> String {
    let place = place % text.chars().count();
    text.chars().enumerate().map(|(at, old)| if at == place { character } else { old }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn whatever_is_changed_is_not_believed(which in 0..5usize, change in change()) {
        let Example { provider, secret, mut headers, body, time } = examples().remove(which);
        let (mut body, mut secret, mut now) = (body.as_bytes().to_vec(), secret.to_owned(), time);
        match change {
            Change::Body { place, byte } => {
                let place = place % body.len();
                prop_assume!(body[place] != byte);
                body[place] = byte;
            }
            Change::Grow(more) => body.extend(more),
            Change::Header { which, place, character } => {
                let which = which % headers.len();
                let (_, value) = &mut headers[which];
                // What Stripe signs with its older scheme means nothing, here as anywhere.
                let signed = value.find(",v0=").unwrap_or(value.len());
                let changed = replaced(&value[..signed], place, character);
                // Digits of either case are the same.
                prop_assume!(!changed.eq_ignore_ascii_case(&value[..signed]));
                *value = changed;
            }
            Change::Drop(which) => {
                let which = which % headers.len();
                headers.remove(which);
            }
            Change::Time(offset) => {
                prop_assume!(time > 0);
                now += offset;
            }
            Change::Secret { place, character } => {
                let changed = replaced(&secret, place, character);
                let same = match provider {
                    Provider::Standard => {
                        signature::standard_key(&changed) == signature::standard_key(&secret)
                    }
                    _ => changed == secret,
                };
                prop_assume!(!same);
                secret = changed;
            }
        }
        let headers = map(&headers);
        prop_assert!(verify(&provider, &[&secret], &headers, &body, now).is_err());
    }

    #[test]
    fn no_header_breaks_a_reader(
        which in 0..5usize,
        header in prop::collection::vec(any::<u8>(), 0..120),
        text in r"(t=|v1=|v0=|v1,|sha256=|[0-9a-f]{1,70}|[A-Za-z0-9+/=]{44}|[ ,=.;]){0,12}",
    ) {
        let example = examples().remove(which);
        for value in [header.as_slice(), text.as_bytes()] {
            let Ok(value) = HeaderValue::from_bytes(value) else { continue };
            for (name, _) in &example.headers {
                let mut headers = map(&example.headers);
                headers.insert(*name, value.clone());
                let _ = verify(&example.provider, &[example.secret], &headers, b"", example.time);
                let _ = delivery::id(&example.provider, &headers, b"", &Value::Null);
                let _ = super::headers::safe(&headers);
            }
        }
    }

    #[test]
    fn what_was_signed_is_believed(secret in "[ -~]{1,60}", body: Vec<u8>, time in 0..4_000_000_000i64) {
        let hex = |pieces: &[&[u8]]| {
            data_encoding::HEXLOWER.encode(&signature::mac(secret.as_bytes(), pieces))
        };
        let at = time.to_string();
        let stripe = format!("t={at},v1={}", hex(&[at.as_bytes(), b".", &body]));
        let slack = format!("v0={}", hex(&[b"v0:", at.as_bytes(), b":", &body]));
        for (provider, headers) in [
            (Provider::Github, vec![("x-hub-signature-256", format!("sha256={}", hex(&[&body])))]),
            (hmac(), vec![("x-signature-256", format!("sha256={}", hex(&[&body])))]),
            (Provider::Stripe, vec![("stripe-signature", stripe)]),
            (Provider::Slack, vec![("x-slack-signature", slack), ("x-slack-request-timestamp", at.clone())]),
        ] {
            prop_assert_eq!(verify(&provider, &[&secret], &map(&headers), &body, time), Ok(()));
        }
    }
}
