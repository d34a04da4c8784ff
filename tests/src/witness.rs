//! What tools left behind, read from the disk and not from the system that is tested.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::{sleep, timeout};

use crate::{Session, World};

/// A file in the workspace of a session to which commands append lines.
pub struct Witness(PathBuf);

/// Longer than any tool here takes to begin.
const PATIENCE: Duration = Duration::from_secs(60);

impl Witness {
    /// Of a session of `tenant`'s; it is `witness` in the workspace.
    pub async fn of(world: &World, tenant: &str, session: &Session) -> Witness {
        let workspace = session.get().await.workspace_id;
        let workspaces = Path::new(world.fleet.dir()).join("workspaces");
        Witness(workspaces.join(tenant).join(workspace).join("witness"))
    }

    /// Every line that a command wrote.
    pub fn lines(&self) -> Vec<String> {
        match fs::read_to_string(&self.0) {
            Ok(text) => text.lines().map(str::to_owned).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
            Err(error) => panic!("cannot read {}: {error}", self.0.display()),
        }
    }

    /// Returns when a command has written `line`.
    pub async fn says(&self, line: &str) {
        let said = async {
            while !self.lines().iter().any(|said| said == line) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, said).await.expect("the command never ran");
    }
}
