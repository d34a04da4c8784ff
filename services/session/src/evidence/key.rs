//! Keys that packs are signed with: Ed25519, in the PEM files that everybody writes.

use std::fmt;

use data_encoding::BASE64;
use ring::{
    rand::SystemRandom,
    signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey},
};
use sha2::{Digest as _, Sha256};

use crate::seal::hex;

const PRIVATE: &str = "PRIVATE KEY";
const PUBLIC: &str = "PUBLIC KEY";

/// What stands before the 32 bytes of an Ed25519 key in a `SubjectPublicKeyInfo`.
const PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A key that signs.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    id: String,
}

impl SigningKey {
    /// Reads a PKCS #8 key, such as `evidence new-key` and `openssl genpkey` write.
    pub fn read(text: &str) -> Result<SigningKey, String> {
        let der = decode(text, PRIVATE)?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der)
            .map_err(|error| format!("is not an Ed25519 key in PKCS #8: {error}"))?;
        let id = id(pair.public_key().as_ref());
        Ok(SigningKey { pair, id })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn sign(&self, bytes: &[u8]) -> String {
        hex(self.pair.sign(bytes).as_ref())
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SigningKey").field(&self.id).finish()
    }
}

/// A key that checks.
#[derive(Debug, Clone)]
pub struct PublicKey {
    bytes: Vec<u8>,
    id: String,
}

impl PublicKey {
    pub fn read(text: &str) -> Result<PublicKey, String> {
        let der = decode(text, PUBLIC)?;
        match der.strip_prefix(&PREFIX) {
            Some(bytes) if bytes.len() == 32 => {
                Ok(PublicKey { bytes: bytes.to_vec(), id: id(bytes) })
            }
            _ => Err("is not an Ed25519 public key".to_owned()),
        }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn verify(&self, bytes: &[u8], signature: &str) -> bool {
        // Only the one way to write it, or a letter could change its case unnoticed.
        let Ok(signature) = data_encoding::HEXLOWER.decode(signature.as_bytes()) else {
            return false;
        };
        UnparsedPublicKey::new(&ED25519, &self.bytes).verify(bytes, &signature).is_ok()
    }
}

/// A new key: the private and the public half as PEM, and the id.
pub fn new_key() -> Result<(String, String, String), String> {
    let problem = |_| "there is no randomness".to_owned();
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(problem)?;
    let private = encode(document.as_ref(), PRIVATE);
    let key = SigningKey::read(&private)?;
    let public = [&PREFIX[..], key.pair.public_key().as_ref()].concat();
    Ok((private, encode(&public, PUBLIC), key.id))
}

/// Tells keys apart; not a secret.
fn id(public: &[u8]) -> String {
    format!("ed25519:{}", &hex(&Sha256::digest(public))[..32])
}

fn encode(der: &[u8], label: &str) -> String {
    let text = BASE64.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn decode(text: &str, label: &str) -> Result<Vec<u8>, String> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let body = text.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
    let (body, _) = body.ok_or_else(|| format!("has no {label} in PEM"))?;
    let body: String = body.split_whitespace().collect();
    BASE64.decode(body.as_bytes()).map_err(|error| format!("is not PEM: {error}"))
}
