//! Encryption, in and out, and who must show a certificate.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use opentelemetry::{KeyValue, global};
use rustls::{
    CertificateError, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
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
    let _ = ring::default_provider().install_default();
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

    /// Shows when the certificate ends that we serve with. It is read once, so one that was renewed
    /// counts from the next start on.
    pub fn observe(&self) -> anyhow::Result<()> {
        let end = match &self.tls_cert {
            Some(path) => end(&read(path)?).unwrap_or(0),
            None => 0,
        };
        global::meter("chassis")
            .u64_observable_gauge("tls.certificate.end")
            .with_description("When the certificate ends, in seconds since 1970; 0 is without one")
            .with_callback(move |gauge| gauge.observe(end, &[] as &[KeyValue]))
            .build();
        Ok(())
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

/// The last second of the calendar.
const NEVER: Duration = Duration::from_secs(253_402_300_799);

/// When the first certificate of a chain ends. Those who verify one know, and tell whoever asks too
/// late.
fn end(chain: &[u8]) -> Option<u64> {
    let certificate = CertificateDer::from_pem_slice(chain).ok()?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).ok()?;
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let (verifier, name) = (verifier.build().ok()?, ServerName::try_from("anybody").ok()?);
    let never = UnixTime::since_unix_epoch(NEVER);
    match verifier.verify_server_cert(&certificate, &[], &name, &[], never) {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => Some(not_after.as_secs()),
        _ => None,
    }
}

#[test]
fn a_certificate_says_when_it_ends() {
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2100, 1, 1);
    let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    assert_eq!(end(certificate.pem().as_bytes()), Some(4_102_444_800));
    assert_eq!(end(b"nothing"), None);
}
