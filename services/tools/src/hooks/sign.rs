//! How whoever is called knows that it was us, in the manner of Standard Webhooks.

use chassis::Tenant;
use data_encoding::BASE64;
use hmac::{Hmac, Mac as _};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::Sha256;

use crate::hook::Hook;

/// Makes a key for each hook out of one secret, so that none has to be stored, and whoever is
/// told one knows no other.
pub struct Signer(SecretString);

impl Signer {
    pub fn new(secret: SecretString) -> Signer {
        Signer(secret)
    }

    /// The key in the form in which receivers are configured with it.
    pub fn shown(&self, tenant: &Tenant, hook: &Hook) -> String {
        format!("whsec_{}", BASE64.encode(&self.key(tenant, hook)))
    }

    /// The value of `webhook-signature`.
    pub fn sign(
        &self,
        tenant: &Tenant,
        hook: &Hook,
        id: &str,
        timestamp: &str,
        body: &str,
    ) -> String {
        let key = self.key(tenant, hook);
        let signature = mac(&key, &[id, ".", timestamp, ".", body]);
        format!("v1,{}", BASE64.encode(&signature))
    }

    fn key(&self, tenant: &Tenant, hook: &Hook) -> [u8; 32] {
        // A project's name may hold anything but this.
        let names = ["hook\0", tenant.as_str(), "\0", &hook.project, "\0", &hook.id];
        mac(self.0.expose_secret().as_bytes(), &names)
    }
}

fn mac(key: &[u8], pieces: &[&str]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    pieces.iter().for_each(|piece| mac.update(piece.as_bytes()));
    mac.finalize().into_bytes().into()
}
