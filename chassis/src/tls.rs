//! Encryption, in and out, and who must show a certificate.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

#[derive(Debug, Clone, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Certificate chain (PEM) to serve with and to show to other services. Unset: no TLS.
    #[arg(long, env, requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key (PEM) of TLS_CERT.
    #[arg(long, env, requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Authority (PEM) that must have signed every caller's certificate. Unset: callers need none.
    #[arg(long, env, requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,

    /// Authority (PEM) that signed the certificates of the other services. Unset: the public ones.
    #[arg(long, env)]
    pub tls_ca: Option<PathBuf>,
}

/// Makes ring the process's cryptography; rustls panics when nobody has chosen.
pub fn install_default() {
    // An error says that somebody chose before, which is what we want.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

impl Args {
    /// How to serve; `None` is without TLS.
    pub fn server(&self) -> anyhow::Result<Option<ServerTlsConfig>> {
        install_default();
        let Some(identity) = self.identity()? else { return Ok(None) };
        let config = ServerTlsConfig::new().identity(identity);
        Ok(Some(match &self.tls_client_ca {
            Some(path) => config.client_ca_root(Certificate::from_pem(read(path)?)),
            None => config,
        }))
    }

    /// How to call others whose URL begins with `https`.
    pub fn client(&self) -> anyhow::Result<ClientTlsConfig> {
        install_default();
        let config = match &self.tls_ca {
            Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
            None => ClientTlsConfig::new().with_enabled_roots(),
        };
        Ok(match self.identity()? {
            Some(identity) => config.identity(identity),
            None => config,
        })
    }

    fn identity(&self) -> anyhow::Result<Option<Identity>> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Ok(Some(Identity::from_pem(read(cert)?, read(key)?))),
            _ => Ok(None),
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
