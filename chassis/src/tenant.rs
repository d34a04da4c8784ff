use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Who owns what a call touches. Everything stored belongs to exactly one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tenant(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to 64 characters of a-z, 0-9, _ and -")]
pub struct ParseTenantError;

impl Tenant {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Tenant {
    type Error = ParseTenantError;

    fn try_from(text: String) -> Result<Tenant, ParseTenantError> {
        let allowed = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        match (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            true => Ok(Tenant(text)),
            false => Err(ParseTenantError),
        }
    }
}

impl FromStr for Tenant {
    type Err = ParseTenantError;

    fn from_str(text: &str) -> Result<Tenant, ParseTenantError> {
        text.to_owned().try_into()
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl From<Tenant> for String {
    fn from(tenant: Tenant) -> String {
        tenant.0
    }
}

crate::text_in_postgres!(Tenant);

#[test]
fn a_tenant_is_a_short_plain_word() {
    for good in ["a", "acme", "acme-2_eu", &"a".repeat(64)] {
        assert!(good.parse::<Tenant>().is_ok(), "{good}");
    }
    for bad in ["", "Acme", "a b", "a/b", "ä", "a\n", &"a".repeat(65)] {
        assert!(bad.parse::<Tenant>().is_err(), "{bad}");
    }
}
