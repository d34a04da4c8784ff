use std::{fs, io, net::TcpListener, path::Path, sync::Arc, time::Duration};

use chassis::{Caller, Peer, tls};
use proto::models::v1::{ListModelsRequest, model_service_client::ModelServiceClient};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ServerConfig, ServerConnection,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::task::spawn_blocking;
use tonic::Status;

use crate::rig::{Rig, acme, args};

/// An authority, and one certificate for `localhost` that it signed.
fn certificates() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut authority = CertificateParams::new([]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &authority).unwrap();
    fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
    fs::write(folder.path().join("cert.pem"), leaf.pem()).unwrap();
    fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
    folder
}

async fn rig(db: PgPool, folder: &Path, mutual: bool) -> Rig {
    let file = |flag: &str, name: &str| format!("--{flag}={}", folder.join(name).display());
    let mut flags = vec![file("tls-cert", "cert.pem"), file("tls-key", "key.pem")];
    if mutual {
        flags.push(file("tls-client-ca", "ca.pem"));
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Rig::with(db, args(&flags)).await
}

/// Calls over TLS with the certificates in these folders.
async fn call(rig: &Rig, authority: Option<&Path>, identity: Option<&Path>) -> Result<(), Status> {
    let tls = tls::Args {
        tls_ca: authority.map(|folder| folder.join("ca.pem")),
        tls_cert: identity.map(|folder| folder.join("cert.pem")),
        tls_key: identity.map(|folder| folder.join("key.pem")),
        tls_client_ca: None,
    };
    let url = rig.url.replace("http://127.0.0.1", "https://localhost");
    let peer = Peer::new("models", &url, &tls, &rig.auth).unwrap();
    let request = peer.request(&Caller::service(acme(), "test"), ListModelsRequest::default());
    ModelServiceClient::new(peer.channel()).list_models(request).await.map(drop)
}

#[sqlx::test]
async fn a_caller_checks_who_serves(db: PgPool) {
    let (ours, theirs) = (certificates(), certificates());
    let rig = rig(db, ours.path(), false).await;
    call(&rig, Some(ours.path()), None).await.unwrap();
    call(&rig, Some(theirs.path()), None).await.unwrap_err();
    call(&rig, None, None).await.unwrap_err();
    rig.list("in plain text").await.unwrap_err();
}

#[sqlx::test]
async fn a_server_that_is_refused_hears_why(db: PgPool) {
    let (ours, theirs) = (certificates(), certificates());
    let mut rig = Rig::start(db).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rig.url = format!("http://{}", listener.local_addr().unwrap());
    let refused = spawn_blocking({
        let config = server(theirs.path());
        move || handshake(&listener, config)
    });
    call(&rig, Some(ours.path()), None).await.unwrap_err();
    let heard = refused.await.unwrap().unwrap_err().downcast::<rustls::Error>().unwrap();
    assert!(matches!(heard, rustls::Error::AlertReceived(_)), "{heard}");
}

fn server(folder: &Path) -> Arc<ServerConfig> {
    tls::install_default();
    let cert = CertificateDer::from_pem_file(folder.join("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    Arc::new(config.with_single_cert(vec![cert], key).unwrap())
}

/// Serves whoever comes first, until both sides trust each other or do not.
fn handshake(listener: &TcpListener, config: Arc<ServerConfig>) -> io::Result<()> {
    let (mut wire, _) = listener.accept()?;
    wire.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut connection = ServerConnection::new(config).unwrap();
    connection.complete_io(&mut wire).map(drop)
}

#[sqlx::test]
async fn a_server_checks_who_calls(db: PgPool) {
    let (ours, theirs) = (certificates(), certificates());
    let rig = rig(db, ours.path(), true).await;
    call(&rig, Some(ours.path()), Some(ours.path())).await.unwrap();
    call(&rig, Some(ours.path()), Some(theirs.path())).await.unwrap_err();
    call(&rig, Some(ours.path()), None).await.unwrap_err();
}
