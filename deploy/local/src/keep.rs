//! What a data directory remembers between runs: secrets and ports.

use std::{
    env,
    fs::{self, DirBuilder, File, Permissions},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use data_encoding::BASE64;
use nix::unistd::geteuid;
use tempfile::TempDir;

use crate::port;

/// Creates the data directory unless it exists, and says where it really is.
pub fn dir(path: &Path) -> Result<PathBuf> {
    DirBuilder::new()
        .recursive(true)
        .mode(dir_mode())
        .create(path)
        .and_then(|()| path.canonicalize())
        .with_context(|| format!("cannot create {}", path.display()))
}

/// A data directory that goes away when it is dropped. Root's is where the user
/// that Postgres runs as can reach it, wherever `TMPDIR` points.
pub fn scratch() -> Result<TempDir> {
    let parent = if geteuid().is_root() { "/var/tmp".into() } else { env::temp_dir() };
    tempfile::Builder::new()
        .prefix("windlass-")
        .permissions(Permissions::from_mode(dir_mode()))
        .tempdir_in(&parent)
        .with_context(|| format!("cannot create a directory in {}", parent.display()))
}

/// The port kept at `path` if it is still free, and otherwise a new one that is kept from now on.
pub fn port(path: &Path) -> Result<u16> {
    let kept = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    let port = port::prefer(kept)?;
    text(path, &port.to_string())?;
    Ok(port)
}

/// The secret kept at `path`, or a new one that is kept from now on.
pub fn secret(path: &Path) -> Result<String> {
    if let Ok(kept) = fs::read_to_string(path) {
        return Ok(kept);
    }
    let secret = random();
    text(path, &secret)?;
    Ok(secret)
}

/// A file with a key of 32 bytes as base64, the same from now on.
pub fn key(path: &Path) -> Result<PathBuf> {
    if !path.exists() {
        text(path, &BASE64.encode(&rand::random::<[u8; 32]>()))?;
    }
    Ok(path.to_owned())
}

/// Keeps `text` at `path` for our eyes only, whole or not at all.
pub fn text(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_added_extension("new");
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&draft, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// 128 bits that nobody can guess, in a form that fits into URLs and database names.
pub fn random() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Private to us, except that root must let the user that Postgres runs as walk through.
fn dir_mode() -> u32 {
    if geteuid().is_root() { 0o711 } else { 0o700 }
}
