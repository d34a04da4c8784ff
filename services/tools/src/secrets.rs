//! Secrets that tenants refer to by name. Their values are files that the operator provides, one
//! directory per tenant, so that nobody can name the secret of somebody else.

use std::{
    collections::BTreeMap,
    io::{self, Read as _},
    path::PathBuf,
};

use chassis::Tenant;
use secrecy::SecretString;

/// In bytes.
const LONGEST: u64 = 16 * 1024;

/// Where secrets are. Nowhere, unless the operator says so.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    pub folder: Option<PathBuf>,
}

/// A plain word, so that it cannot lead anywhere else.
pub fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && !text.starts_with('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

impl Secrets {
    /// The values of references, or which of them has none.
    pub async fn resolve(
        &self,
        tenant: &Tenant,
        references: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, SecretString>, String> {
        let mut values = BTreeMap::new();
        for (key, name) in references {
            let value = self.read(tenant, name).await.map_err(|error| {
                // What is wrong with the file is for the operator, and not for the tenant.
                tracing::warn!(%error, tenant.id = %tenant, "secret {name:?} cannot be read");
                format!("there is no secret {name:?}")
            })?;
            values.insert(key.clone(), value);
        }
        Ok(values)
    }

    async fn read(&self, tenant: &Tenant, name: &str) -> io::Result<SecretString> {
        let folder = self.folder.as_ref().filter(|_| is_name(name));
        let path = folder.ok_or(io::ErrorKind::NotFound)?.join(tenant.as_str()).join(name);
        let read = move || {
            let mut text = String::new();
            let file = std::fs::File::open(path)?;
            if !file.metadata()?.is_file() || file.metadata()?.len() > LONGEST {
                return Err(io::ErrorKind::InvalidData.into());
            }
            file.take(LONGEST).read_to_string(&mut text)?;
            // Editors end files with a line break.
            let text = text.strip_suffix('\n').unwrap_or(&text);
            let text = text.strip_suffix('\r').unwrap_or(text);
            match text.is_empty() || text.contains('\0') {
                true => Err(io::ErrorKind::InvalidData.into()),
                false => Ok(SecretString::from(text.to_owned())),
            }
        };
        tokio::task::spawn_blocking(read).await?
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use secrecy::ExposeSecret as _;

    use super::*;

    #[tokio::test]
    async fn a_tenant_can_name_its_own_secrets_only() {
        let folder = tempfile::tempdir().unwrap();
        for (tenant, name, value) in [
            ("acme", "token", "one\n"),
            ("other", "token", "two"),
            ("other", "only", "three"),
            ("acme", "empty", "\n"),
        ] {
            fs::create_dir_all(folder.path().join(tenant)).unwrap();
            fs::write(folder.path().join(tenant).join(name), value).unwrap();
        }
        let secrets = Secrets { folder: Some(folder.path().to_owned()) };
        let acme = "acme".parse().unwrap();
        let resolve = async |name: &str| {
            let references = [("KEY".to_owned(), name.to_owned())].into();
            let values = secrets.resolve(&acme, &references).await?;
            Ok(values["KEY"].expose_secret().to_owned())
        };
        assert_eq!(resolve("token").await, Ok("one".to_owned()));
        for name in ["only", "../other/only", "empty", ".", "..", "", "a/b"] {
            assert_eq!(resolve(name).await, Err(format!("there is no secret {name:?}")));
        }
        let nowhere = Secrets::default();
        let references = [("KEY".to_owned(), "token".to_owned())].into();
        assert!(nowhere.resolve(&acme, &references).await.is_err());
    }
}
