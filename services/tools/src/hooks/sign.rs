//! How whoever is called knows that it was us, in the manner of Standard Webhooks.

use chassis::Tenant;
use data_encoding::BASE64;
use hmac::{Hmac, Mac as _};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::Sha256;

use crate::hook::Hook;

/// Makes a key for each hook out of one secret, so that none has to be stored, and whoever is
/// told one knows no other.
pub struct Signer {
    secret: SecretString,
    /// Signs too, while receivers change from one to the other.
    also: Option<SecretString>,
}

impl Signer {
    pub fn new(secret: SecretString, also: Option<SecretString>) -> Signer {
        Signer { secret, also }
    }

    /// The key in the form in which receivers are configured with it.
    pub fn shown(&self, tenant: &Tenant, hook: &Hook) -> String {
        format!("whsec_{}", BASE64.encode(&key(&self.secret, tenant, hook)))
    }

    /// The value of `webhook-signature`: a receiver believes what any of them proves.
    pub fn sign(
        &self,
        tenant: &Tenant,
        hook: &Hook,
        id: &str,
        timestamp: &str,
        body: &str,
    ) -> String {
        let sign = |secret| {
            let signature = mac(&key(secret, tenant, hook), &[id, ".", timestamp, ".", body]);
            format!("v1,{}", BASE64.encode(&signature))
        };
        [Some(&self.secret), self.also.as_ref()]
            .into_iter()
            .flatten()
            .map(sign)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn key(secret: &SecretString, tenant: &Tenant, hook: &Hook) -> [u8; 32] {
    // A project's name may hold anything but this.
    let names = ["hook\0", tenant.as_str(), "\0", &hook.project, "\0", &hook.id];
    mac(secret.expose_secret().as_bytes(), &names)
}

fn mac(key: &[u8], pieces: &[&str]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    pieces.iter().for_each(|piece| mac.update(piece.as_bytes()));
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hook::{Event, Target};

    #[test]
    fn while_the_secret_changes_old_and_new_keys_prove_a_call() {
        let tenant: Tenant = "acme".parse().unwrap();
        let hook = Hook {
            project: String::new(),
            id: "guard".to_owned(),
            event: Event::Stop,
            tools: String::new(),
            target: Target::Url("https://example.com".to_owned()),
            timeout: Duration::from_secs(1),
            fail_open: false,
            rank: 0,
        };
        let signed = |signer: &Signer| signer.sign(&tenant, &hook, "msg_1", "1", "{}");
        let (old, new) = (Signer::new("old".into(), None), Signer::new("new".into(), None));
        let both = Signer::new("new".into(), Some("old".into()));
        assert_eq!(signed(&both), format!("{} {}", signed(&new), signed(&old)));
        assert_eq!(both.shown(&tenant, &hook), new.shown(&tenant, &hook), "the one to change to");
    }
}
