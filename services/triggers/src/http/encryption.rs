use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio_rustls::TlsAcceptor;

/// How to serve with a certificate that strangers know, which is not the one that our services show
/// each other.
pub fn acceptor(cert: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    chassis::tls::install_default();
    let unreadable = |path: &Path| format!("cannot read {}", path.display());
    let chain = CertificateDer::pem_file_iter(cert).with_context(|| unreadable(cert))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().with_context(|| unreadable(cert))?;
    let secret = PrivateKeyDer::from_pem_file(key).with_context(|| unreadable(key))?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .context("HTTP_TLS_CERT and HTTP_TLS_KEY do not belong together")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
