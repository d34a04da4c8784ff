//! API keys as text: `wl_`, the 26 characters of the id, `_`, and 52 that are the secret.

use rand::{TryRngCore as _, rngs::OsRng};
use secrecy::{SecretString, zeroize::Zeroizing};
use sha2::{Digest as _, Sha256};

use super::keys::KeyId;
use crate::id::{BASE32, decode_bare};

pub const PREFIX: &str = "wl_";

/// 256 random bits. They are not guessed, so a fast hash of them is enough.
pub struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    pub fn new() -> Secret {
        let mut bytes = Zeroizing::new([0; 32]);
        OsRng.try_fill_bytes(bytes.as_mut_slice()).expect("the system has randomness");
        Secret(bytes)
    }

    pub fn sha256(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_slice()).into()
    }

    /// What the owner of the key `id` keeps.
    pub fn key_text(&self, id: KeyId) -> SecretString {
        let id = BASE32.encode(id.uuid().as_bytes());
        let secret = BASE32.encode(self.0.as_slice());
        format!("{PREFIX}{id}_{secret}").into()
    }
}

/// The id and the secret in `text`, if it can be a key at all.
pub fn parse(text: &str) -> Option<(KeyId, Secret)> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let id = KeyId::from_uuid(decode_bare(id)?);
    let secret = Zeroizing::new(BASE32.decode(secret.as_bytes()).ok()?);
    Some((id, Secret(Zeroizing::new(secret.as_slice().try_into().ok()?))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn the_text_of_a_key_is_the_key() {
        let (id, secret) = (KeyId::new(), Secret::new());
        let text = secret.key_text(id);
        let (parsed_id, parsed) = parse(text.expose_secret()).unwrap();
        assert_eq!((parsed_id, parsed.sha256()), (id, secret.sha256()));
        assert_eq!(text.expose_secret().len(), 3 + 26 + 1 + 52);
    }

    proptest! {
        #[test]
        fn no_other_text_is_a_key(place in 0..82usize, character: char) {
            let text = Secret::new().key_text(KeyId::new());
            let mut other: Vec<char> = text.expose_secret().chars().collect();
            prop_assume!(other[place] != character);
            other[place] = character;
            let other: String = other.into_iter().collect();
            if let Some((id, secret)) = parse(&other) {
                let text = secret.key_text(id);
                prop_assert_eq!(text.expose_secret(), other.as_str());
            }
        }

        #[test]
        fn no_text_breaks_the_parser(text: String) {
            let _ = parse(&text);
            let _ = parse(&format!("{PREFIX}{text}"));
        }
    }
}
