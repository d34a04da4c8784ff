//! Secrets that have to be known again: sealed with a key of the operator's, so that whoever reads
//! the database has none of them.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};
use data_encoding::BASE64;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use secrecy::{SecretString, zeroize::Zeroizing};
use sha2::{Digest as _, Sha256};

/// How many bytes of a key's digest say which one it is.
const KEY_ID: usize = 4;

/// The operator's keys. The first seals, and all open, so that a key can be replaced.
#[derive(Default)]
pub struct Keys(Vec<Key>);

struct Key {
    id: [u8; KEY_ID],
    key: LessSafeKey,
}

/// What cannot be opened: made with a key that is not here, or altered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stored secret cannot be opened: the key it was sealed with is not in SECRETS_KEY_FILE")]
pub struct NotOpened;

impl Keys {
    /// Reads a file with a key on each line: 32 bytes as base64, the newest first.
    pub fn read(path: &Path) -> anyhow::Result<Keys> {
        let text = fs::read_to_string(path).map(Zeroizing::new);
        let text =
            text.with_context(|| format!("cannot read SECRETS_KEY_FILE {}", path.display()))?;
        let keys = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys = keys.map(|line| {
            let bytes = BASE64.decode(line.as_bytes()).ok().map(Zeroizing::new);
            let bytes = bytes.filter(|bytes| bytes.len() == 32);
            bytes
                .as_deref()
                .map(|bytes| Key::new(bytes))
                .with_context(|| format!("a line of {} is no base64 of 32 bytes", path.display()))
        });
        let keys = keys.collect::<anyhow::Result<Vec<Key>>>()?;
        ensure!(!keys.is_empty(), "SECRETS_KEY_FILE {} has no key", path.display());
        Ok(Keys(keys))
    }

    /// Seals a secret for `owner`, for whom alone it can be opened again. Nothing without a key.
    pub fn seal(&self, owner: &str, secret: &str) -> Option<Vec<u8>> {
        let Key { id, key } = self.0.first()?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).expect("the system has randomness");
        let mut sealed = secret.as_bytes().to_vec();
        key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(owner.as_bytes()),
            &mut sealed,
        )
        .expect("a secret is short");
        Some([id.as_slice(), &nonce, &sealed].concat())
    }

    pub fn open(&self, owner: &str, sealed: &[u8]) -> Result<SecretString, NotOpened> {
        let (id, rest) = sealed.split_at_checked(KEY_ID).ok_or(NotOpened)?;
        let (nonce, rest) = rest.split_at_checked(NONCE_LEN).ok_or(NotOpened)?;
        let key = self.0.iter().find(|key| key.id == id).ok_or(NotOpened)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| NotOpened)?;
        let mut bytes = Zeroizing::new(rest.to_vec());
        let opened = key.key.open_in_place(nonce, Aad::from(owner.as_bytes()), &mut bytes);
        let opened = std::str::from_utf8(opened.map_err(|_| NotOpened)?).map_err(|_| NotOpened)?;
        Ok(SecretString::from(opened.to_owned()))
    }
}

impl Key {
    fn new(bytes: &[u8]) -> Key {
        let digest = Sha256::digest([b"windlass secrets key ", bytes].concat());
        let mut id = [0; KEY_ID];
        id.copy_from_slice(&digest[..KEY_ID]);
        let key = UnboundKey::new(&AES_256_GCM, bytes).expect("a key has 32 bytes");
        Key { id, key: LessSafeKey::new(key) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use secrecy::ExposeSecret as _;

    use super::*;

    fn keys(numbers: &[u8]) -> Keys {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let lines: Vec<_> = numbers.iter().map(|number| BASE64.encode(&[*number; 32])).collect();
        fs::write(&path, format!("\n{}\n", lines.join("\n"))).unwrap();
        Keys::read(&path).unwrap()
    }

    #[test]
    fn a_key_can_be_replaced() {
        let sealed = keys(&[1]).seal("trg_1", "hush").unwrap();
        let open = |numbers: &[u8], owner: &str| {
            let opened = keys(numbers).open(owner, &sealed);
            opened.map(|secret| secret.expose_secret().to_owned())
        };
        assert_eq!(open(&[1], "trg_1"), Ok("hush".to_owned()));
        assert_eq!(open(&[2, 1], "trg_1"), Ok("hush".to_owned()));
        assert_eq!(open(&[2], "trg_1"), Err(NotOpened));
        assert_eq!(open(&[1], "trg_2"), Err(NotOpened), "it belongs to somebody else");
        assert_ne!(sealed, keys(&[1]).seal("trg_1", "hush").unwrap());
        assert!(keys(&[2, 1]).seal("trg_1", "hush").unwrap()[..KEY_ID] != sealed[..KEY_ID]);
        assert_eq!(Keys::default().seal("trg_1", "hush"), None);
    }

    #[test]
    fn a_file_without_keys_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        for text in ["", "\n", "short", &BASE64.encode(&[1; 31])] {
            fs::write(&path, text).unwrap();
            assert!(Keys::read(&path).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_was_altered_is_not_opened(place in 0..36usize, bit in 0..8u32, garbage: Vec<u8>) {
            let keys = keys(&[1]);
            let mut sealed = keys.seal("trg_1", "hush").unwrap();
            prop_assert_eq!(sealed.len(), 36);
            sealed[place] ^= 1 << bit;
            prop_assert!(keys.open("trg_1", &sealed).is_err());
            prop_assert!(keys.open("trg_1", &garbage).is_err());
        }
    }
}
