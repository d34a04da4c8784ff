//! Where Postgres keeps its data, and who owns it.

use std::{
    env, fs,
    os::unix::fs::{chown, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sys::signal::Signal,
    unistd::{User, geteuid},
};

use crate::{keep, process};

/// A data directory that `initdb` has made, and what is needed to run a server on it.
pub struct Cluster {
    pub bin: PathBuf,
    pub data: PathBuf,
    /// Whom to run as when we are root, which Postgres refuses to be.
    pub user: Option<User>,
}

impl Cluster {
    pub const SUPERUSER: &str = "windlass";

    /// Opens the cluster in `dir` and makes it first if it is not there.
    pub fn open(dir: &Path, password: &str) -> Result<Cluster> {
        let (bin, user) = (binaries()?, user()?);
        let home = home(&dir.join("postgres"), user.as_ref())?;
        let cluster = Cluster { bin, data: home.join("data"), user };
        if !cluster.data.exists() {
            cluster.init(&home, password)?;
        }
        Ok(cluster)
    }

    /// Whether the server could preload a library that packagers may leave out.
    pub fn has_library(&self, name: &str) -> bool {
        let pg_config = Command::new(self.bin.join("pg_config")).arg("--pkglibdir").output();
        pg_config.is_ok_and(|output| {
            let dir = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            Path::new(&dir).join(name).with_extension("so").exists()
        })
    }

    /// Runs `initdb` beside the final place, so that an interrupted run leaves no half cluster behind.
    fn init(&self, home: &Path, password: &str) -> Result<()> {
        let (draft, pwfile) = (home.join("data.new"), home.join("password"));
        if draft.exists() {
            fs::remove_dir_all(&draft)?;
        }
        keep::text(&pwfile, password)?;
        give(&pwfile, self.user.as_ref())?;
        let output = process::command(self.bin.join("initdb"), Signal::SIGKILL, self.user.as_ref())
            .args(["--username", Cluster::SUPERUSER, "--auth=scram-sha-256"])
            .args(["--encoding=UTF8", "--locale=C.UTF-8"])
            .arg("--pgdata")
            .arg(&draft)
            .arg("--pwfile")
            .arg(&pwfile)
            .current_dir(home)
            .output()
            .context("cannot run setpriv, which is part of util-linux")?;
        fs::remove_file(&pwfile)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "initdb failed ({})\n{errors}", output.status);
        fs::rename(&draft, &self.data).context("cannot move the new cluster to its place")
    }
}

/// Finds the server's programs: Debian keeps them out of the path, a folder per version.
fn binaries() -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut debian: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    debian.sort();
    let bin = env::split_paths(&path)
        .chain(debian.into_iter().rev())
        .find(|bin| bin.join("initdb").exists() && bin.join("postgres").exists())
        .context("Postgres is not installed: run deploy/local/install.sh, or set DATABASE_URL")?;
    // Where some programs are only linked to, the others are in the place they lead to.
    let server = bin.join("postgres").canonicalize()?;
    Ok(server.parent().map(Path::to_owned).unwrap_or(bin))
}

fn user() -> Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some(user));
        }
    }
    bail!("Postgres does not run as root, and there is no user `postgres` or `nobody` to run it as")
}

/// The directory that belongs to the server's user. If that user cannot reach
/// `path` (a clone under `/root`, say) it is a link to a place that can be reached.
fn home(path: &Path, user: Option<&User>) -> Result<PathBuf> {
    let Some(user) = user else { return keep::dir(path) };
    if !path.exists() {
        // A dangling link: something cleaned the temporary directory it led to.
        if path.is_symlink() {
            fs::remove_file(path)?;
        }
        fs::create_dir(path)?;
        give(path, Some(user))?;
        if !can_write(user, path)? {
            fs::remove_dir(path)?;
            let elsewhere = keep::scratch()?.keep();
            give(&elsewhere, Some(user))?;
            ensure!(can_write(user, &elsewhere)?, "{} cannot write temporary files", user.name);
            symlink(elsewhere, path)?;
        }
    }
    Ok(path.canonicalize()?)
}

fn give(path: &Path, user: Option<&User>) -> Result<()> {
    let Some(user) = user else { return Ok(()) };
    chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
        .with_context(|| format!("cannot give {} to {}", path.display(), user.name))
}

fn can_write(user: &User, path: &Path) -> Result<bool> {
    let mut test = process::command("test", Signal::SIGKILL, Some(user));
    let status = test.arg("-w").arg(path).current_dir("/").status()?;
    Ok(status.success())
}
