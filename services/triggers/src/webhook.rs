//! Webhooks: what it takes to believe a request, and what is taken from it. Decides and touches
//! nothing.

pub mod signature;
pub mod delivery;
pub mod headers;
#[cfg(test)]
mod tests;

/// Who sends, and so how it is signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    Github,
    Stripe,
    Standard,
    Slack,
    /// Anybody who signs the body: the names of the headers with the signature and with the id.
    Hmac {
        signature_header: String,
        delivery_header: String,
    },
}

/// What generic senders use unless a trigger names something else.
pub const SIGNATURE_HEADER: &str = "x-signature-256";
pub const DELIVERY_HEADER: &str = "x-delivery-id";

impl Provider {
    /// The provider of this name; of `hmac`, with the headers that a trigger names or the usual ones.
    pub fn new(name: &str, signature_header: &str, delivery_header: &str) -> Option<Provider> {
        let or = |given: &str, usual: &str| match given {
            "" => usual.to_owned(),
            given => given.to_ascii_lowercase(),
        };
        Some(match name {
            "github" => Provider::Github,
            "stripe" => Provider::Stripe,
            "standard" => Provider::Standard,
            "slack" => Provider::Slack,
            "hmac" => Provider::Hmac {
                signature_header: or(signature_header, SIGNATURE_HEADER),
                delivery_header: or(delivery_header, DELIVERY_HEADER),
            },
            _ => return None,
        })
    }
}
