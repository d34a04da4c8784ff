//! What senders prove themselves with: made here and shown once, or chosen by the sender.

use data_encoding::{BASE64, BASE64_NOPAD};
use ring::rand::{SecureRandom as _, SystemRandom};
use secrecy::SecretString;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::webhook::Provider;

/// How long a secret that somebody chose may be, in bytes.
const SHORTEST: usize = 16;
const LONGEST: usize = 200;

/// The beginning of every credential of an API trigger, by which one that leaked can be found.
const CREDENTIAL: &str = "wlt_";

/// A new secret for a webhook, in the form in which every sender takes it.
pub fn new_webhook() -> SecretString {
    format!("whsec_{}", BASE64.encode(&random())).into()
}

/// A new credential for an API trigger.
pub fn new_credential() -> SecretString {
    let text = data_encoding::BASE32_NOPAD.encode(&random()).to_lowercase();
    format!("{CREDENTIAL}{text}").into()
}

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).expect("the system has randomness");
    bytes
}

/// What is kept of a credential. It has 256 random bits, so a fast hash is enough.
pub fn hash(credential: &str) -> [u8; 32] {
    Sha256::digest(credential.as_bytes()).into()
}

/// Whether a credential is one of those that are live. Looks at all of them.
pub fn is_one_of(credential: &str, hashes: &[[u8; 32]]) -> bool {
    let given = hash(credential);
    let found = hashes.iter().fold(0, |found, hash| found | given.ct_eq(hash).unwrap_u8());
    found == 1
}

/// Why a secret that somebody chose cannot be used.
pub fn check(provider: &Provider, secret: &str) -> Result<(), String> {
    if !(SHORTEST..=LONGEST).contains(&secret.len()) {
        return Err(format!("expected {SHORTEST} to {LONGEST} bytes"));
    }
    if !secret.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        return Err("expected printable ASCII".to_owned());
    }
    if *provider == Provider::Standard {
        let key = secret.strip_prefix("whsec_").map(|text| text.trim_end_matches('='));
        let key = key.and_then(|text| BASE64_NOPAD.decode(text.as_bytes()).ok());
        if !key.is_some_and(|key| (24..=64).contains(&key.len())) {
            return Err("expected `whsec_` and the base64 of 24 to 64 bytes".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn what_is_made_here_can_be_used_everywhere() {
        let secret = new_webhook();
        for name in ["github", "stripe", "standard", "slack", "hmac"] {
            let provider = Provider::new(name, "", "").unwrap();
            assert_eq!(check(&provider, secret.expose_secret()), Ok(()), "{name}");
        }
        assert_ne!(new_webhook().expose_secret(), secret.expose_secret());
    }

    #[test]
    fn secrets_that_are_none_are_refused() {
        for (provider, secret) in [
            (Provider::Github, "short"),
            (Provider::Slack, "with\na line break in it"),
            (Provider::Standard, "whsec_c2hvcnQtYnV0LXZhbGlk"),
            (Provider::Standard, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
            (Provider::Standard, "whsec_!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!"),
        ] {
            assert!(check(&provider, secret).is_err(), "{secret}");
        }
        assert!(check(&Provider::Github, &"a".repeat(LONGEST + 1)).is_err());
    }

    #[test]
    fn a_credential_is_known_by_its_hash() {
        let (one, other) = (new_credential(), new_credential());
        let hashes = [hash(one.expose_secret()), hash(other.expose_secret())];
        assert!(is_one_of(other.expose_secret(), &hashes));
        assert!(!is_one_of(other.expose_secret(), &hashes[..1]));
        assert!(!is_one_of("", &hashes) && !is_one_of(one.expose_secret(), &[]));
        assert!(one.expose_secret().starts_with("wlt_") && one.expose_secret().len() == 56);
    }
}
