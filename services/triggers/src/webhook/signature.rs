//! Whether a request was signed by somebody who has the secret.
//!
//! What is signed is the body as it came. A signature is compared in constant time, and all live
//! secrets are tried, so that one can be replaced while the sender still uses the other.

use data_encoding::{BASE64, BASE64_NOPAD, HEXLOWER_PERMISSIVE};
use hmac::{Hmac, Mac as _};
use http::HeaderMap;
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq as _};

use super::Provider;

/// How far the time in a signature may be from ours, in seconds, as the senders' own documentation
/// recommends.
pub const TOLERANCE: i64 = 300;

/// How many signatures of one request are looked at: senders that change their secrets have two.
const MOST_SIGNATURES: usize = 10;

/// Why a request is not believed. Callers are told no more than that; these are for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("a header of the signature is missing or given twice")]
    Missing,
    #[error("a header of the signature cannot be read")]
    Malformed,
    #[error("it was signed too long ago, or in the future")]
    Stale,
    #[error("the signature is not that of any live secret")]
    Wrong,
}

/// Believes a request or does not. `secrets` are as people were shown them.
pub fn verify(
    provider: &Provider,
    secrets: &[&str],
    headers: &HeaderMap,
    body: &[u8],
    now: i64,
) -> Result<(), Refused> {
    match provider {
        Provider::Github => {
            let header = one(headers, "x-hub-signature-256")?;
            let digits = header.strip_prefix("sha256=").ok_or(Refused::Malformed)?;
            signed(secrets, plain, &[body], &[hex(digits)?])
        }
        Provider::Stripe => {
            let (time, signatures) = stripe(one(headers, "stripe-signature")?)?;
            // Checked last, so that the time an answer takes says nothing of the secret.
            let verdict = signed(secrets, plain, &[time.as_bytes(), b".", body], &signatures);
            verdict.and(fresh(time, now))
        }
        Provider::Standard => {
            let id = one(headers, "webhook-id")?;
            let time = one(headers, "webhook-timestamp")?;
            let signatures = standard(one(headers, "webhook-signature")?)?;
            let pieces = [id.as_bytes(), b".", time.as_bytes(), b".", body];
            signed(secrets, standard_key, &pieces, &signatures).and(fresh(time, now))
        }
        Provider::Slack => {
            let time = one(headers, "x-slack-request-timestamp")?;
            let header = one(headers, "x-slack-signature")?;
            let digits = header.strip_prefix("v0=").ok_or(Refused::Malformed)?;
            let pieces = [b"v0:", time.as_bytes(), b":", body];
            signed(secrets, plain, &pieces, &[hex(digits)?]).and(fresh(time, now))
        }
        Provider::Hmac { signature_header, .. } => {
            let header = one(headers, signature_header)?;
            let digits = header.strip_prefix("sha256=").unwrap_or(header);
            let signature = hex(digits).or_else(|_| base64(digits))?;
            signed(secrets, plain, &[body], &[signature])
        }
    }
}

/// A digest of HMAC-SHA256.
type Signature = [u8; 32];

/// Whether any of the signatures is that of any of the secrets. Looks at all of them.
fn signed(
    secrets: &[&str],
    key: fn(&str) -> Vec<u8>,
    pieces: &[&[u8]],
    signatures: &[Signature],
) -> Result<(), Refused> {
    let mut found = Choice::from(0);
    for secret in secrets {
        let expected = mac(&key(secret), pieces);
        for signature in signatures {
            found |= expected.ct_eq(signature);
        }
    }
    match bool::from(found) {
        true => Ok(()),
        false => Err(Refused::Wrong),
    }
}

pub fn mac(key: &[u8], pieces: &[&[u8]]) -> Signature {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    pieces.iter().for_each(|piece| mac.update(piece));
    mac.finalize().into_bytes().into()
}

/// Most senders take the secret as it is written.
pub fn plain(secret: &str) -> Vec<u8> {
    secret.as_bytes().to_vec()
}

/// Standard Webhooks write it as base64 behind a prefix. One that cannot be read is not stored.
pub fn standard_key(secret: &str) -> Vec<u8> {
    let text = secret.strip_prefix("whsec_").unwrap_or(secret);
    let text = text.trim_end_matches('=');
    BASE64_NOPAD.decode(text.as_bytes()).unwrap_or_else(|_| plain(secret))
}

/// A header that is there exactly once: of two, somebody else might look at the other.
pub fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Refused> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().map_err(|_| Refused::Malformed),
        _ => Err(Refused::Missing),
    }
}

fn hex(digits: &str) -> Result<Signature, Refused> {
    let bytes = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).map_err(|_| Refused::Malformed)?;
    bytes.try_into().map_err(|_| Refused::Malformed)
}

fn base64(text: &str) -> Result<Signature, Refused> {
    let bytes = BASE64.decode(text.as_bytes()).map_err(|_| Refused::Malformed)?;
    bytes.try_into().map_err(|_| Refused::Malformed)
}

/// `t=1492774577,v1=5257a8…,v1=…,v0=…`: the time, and the signatures of the one scheme that is live.
fn stripe(header: &str) -> Result<(&str, Vec<Signature>), Refused> {
    let (mut time, mut signatures) = (None, Vec::new());
    for pair in header.split(',') {
        match pair.trim().split_once('=') {
            Some(("t", value)) if time.is_none() => time = Some(value),
            Some(("t", _)) | None => return Err(Refused::Malformed),
            Some(("v1", value)) if signatures.len() < MOST_SIGNATURES => {
                signatures.push(hex(value)?)
            }
            Some(_) => (),
        }
    }
    Ok((time.ok_or(Refused::Malformed)?, signatures))
}

/// `v1,K5oZ… v1,g0hM… v1a,…`: those made with a shared secret.
fn standard(header: &str) -> Result<Vec<Signature>, Refused> {
    let ours = header.split(' ').filter_map(|signature| signature.strip_prefix("v1,"));
    ours.take(MOST_SIGNATURES).map(base64).collect()
}

/// Whether a number of seconds since 1970 is about now.
fn fresh(time: &str, now: i64) -> Result<(), Refused> {
    // The number's own reader would take a sign.
    let digits = time.len() <= 15 && time.bytes().all(|byte| byte.is_ascii_digit());
    let time: i64 = time.parse().ok().filter(|_| digits).ok_or(Refused::Malformed)?;
    match time.abs_diff(now) <= TOLERANCE.unsigned_abs() {
        true => Ok(()),
        false => Err(Refused::Stale),
    }
}
