//! Clones a git bundle. That is git's work, and git is made to run what repositories say, so it
//! does so where a hostile one can do no more than any command: in a sandbox, on a tree that
//! nobody has seen yet.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, chown},
    path::Path,
    time::Duration,
};

use sandbox::{Child, Exit, Program};
use tokio::{
    io::AsyncReadExt as _,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Git, Stage, prepare};
use crate::{
    call::WorkspaceId,
    error::{Error, Result},
    files::Workspace,
    text::shorten,
    workspaces::Limits,
};

/// How long a clone may take.
const LONGEST: Duration = Duration::from_secs(600);

/// How often somebody looks how much it has written.
const PERIOD: Duration = Duration::from_millis(500);

/// How much of what git says is repeated.
const LONGEST_QUOTE: usize = 500;

/// Checks out `HEAD`, or the first branch of a bundle that has none. The bundle is not there
/// later on, so nothing points to it.
const SCRIPT: &str = r#"
set -e
export HOME=/tmp GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
git -c core.hooksPath=/dev/null clone --quiet --template= --no-checkout archive tree
cd tree
if ! git rev-parse --quiet --verify HEAD > /dev/null; then
    branch=$(git for-each-ref --count=1 --format='%(refname:lstrip=3)' refs/remotes/origin)
    if [ -z "$branch" ]; then echo "the bundle has no branch" >&2; exit 1; fi
    git symbolic-ref HEAD "refs/heads/$branch"
    git update-ref HEAD "refs/remotes/origin/$branch"
fi
git -c core.hooksPath=/dev/null reset --quiet --hard
git remote remove origin
"#;

/// Leaves the clone in `tree` of the stage.
pub async fn clone(stage: Stage, limits: Limits, id: WorkspaceId, git: Git<'_>) -> Result<Stage> {
    let work = stage.path.join("work");
    let (folder, archive) = (work.clone(), stage.path.join("archive"));
    let preparing = move || {
        prepare(&folder)?;
        let here = folder.join("archive");
        fs::rename(archive, &here)?;
        let owner = fs::metadata(&folder)?;
        chown(&here, Some(owner.uid()), Some(owner.gid()))?;
        io::Result::Ok(fs::metadata(&here)?.len())
    };
    let sent = spawn_blocking(preparing).await.map_err(io::Error::from)??;

    let script = Program::new("bash", &["-c", SCRIPT]);
    let mut child = git.sandbox.spawn(git.profile, &work, &script).await.map_err(|error| {
        Error::Files(io::Error::other(format!("git cannot be run in a sandbox: {error}")))
    })?;
    let mut said = Vec::new();
    // Packed and checked out, and the bundle beside it.
    let bytes = limits.bytes.saturating_add(sent);
    let most = Limits { bytes, files: limits.files.saturating_mul(2) };
    let ended = tokio::select! {
        ended = timeout(LONGEST, follow(&mut child, &mut said)) => ended,
        () = overflow(&work, most) => {
            let _ = child.kill().await;
            return Err(Error::WorkspaceFull { id, limits });
        }
    };
    let _ = child.kill().await;
    let problem = match ended {
        Ok(Ok(Exit::Code(0))) => {
            let moving = move || {
                fs::rename(work.join("tree"), stage.path.join("tree"))?;
                io::Result::Ok(stage)
            };
            return Ok(spawn_blocking(moving).await.map_err(io::Error::from)??);
        }
        Ok(Ok(_)) => shorten(String::from_utf8_lossy(&said).trim(), LONGEST_QUOTE),
        Ok(Err(error)) => return Err(Error::Files(io::Error::other(error.to_string()))),
        Err(_) => format!("it takes longer than {} seconds", LONGEST.as_secs()),
    };
    let problem = format!("is no bundle that git can clone: {problem}");
    Err(Error::Invalid { field: "data", problem })
}

async fn follow(child: &mut Child, said: &mut Vec<u8>) -> Result<Exit, sandbox::Error> {
    let mut buffer = vec![0; 4096];
    loop {
        match child.output.read(&mut buffer).await? {
            0 => return child.wait().await,
            read if said.len() < 64 * 1024 => said.extend_from_slice(&buffer[..read]),
            _ => (),
        }
    }
}

/// Returns when there is more than may be.
async fn overflow(work: &Path, most: Limits) {
    loop {
        sleep(PERIOD).await;
        let work = work.to_owned();
        let measuring = move || Workspace::at(&work)?.measure(&CancellationToken::new());
        if let Ok(Ok(used)) = spawn_blocking(measuring).await
            && (used.hidden || used.bytes > most.bytes || used.files > most.files)
        {
            return;
        }
    }
}
