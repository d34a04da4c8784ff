//! Reads what a workspace says about itself. What cannot be read is not there, except while nobody
//! is there who could read it.

use std::time::Duration;

use chassis::Caller;
use futures::{StreamExt as _, stream};
use proto::tools::v1::{ListFilesRequest, ReadFileRequest, file::Kind};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::Host;
use crate::{
    ids::WorkspaceId,
    passing::is_passing,
    surroundings::{
        self, MAX_INSTRUCTIONS, MAX_SKILL, MAX_SKILL_FILES, MAX_SKILL_HEAD, MAX_SKILLS, Skill,
        Surroundings,
    },
};

/// Longer than this nobody waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

const INSTRUCTIONS: &str = "AGENTS.md";
const AGENTS: &str = ".agents";
const SKILLS: &str = ".agents/skills";

/// How many files are read at a time.
const AT_ONCE: usize = 8;

/// One call finds out that there is nothing, which is what most workspaces have to say. Fails only
/// where it may work a moment later.
pub async fn surroundings(
    host: &Host,
    caller: &Caller,
    id: WorkspaceId,
) -> Result<Surroundings, Status> {
    let files = Files { host, caller, workspace_id: id.to_string() };
    let late = |_| Err(Status::deadline_exceeded("reading the workspace takes too long"));
    match timeout(PATIENCE, files.surroundings()).await.unwrap_or_else(late) {
        Err(status) if !is_passing(&status) && status.code() != Code::DeadlineExceeded => {
            if !matches!(status.code(), Code::NotFound | Code::Unimplemented) {
                tracing::warn!(%status, workspace.id = %id, "cannot read workspace {id}, going on without");
            }
            Ok(Surroundings::default())
        }
        answer => answer,
    }
}

/// The text of a skill and the paths of the files beside it, as far as they can be read.
pub async fn skill(
    host: &Host,
    caller: &Caller,
    id: WorkspaceId,
    path: &str,
) -> Option<(String, Vec<String>)> {
    let files = Files { host, caller, workspace_id: id.to_string() };
    let folder = path.rsplit_once('/')?.0;
    let (text, beside) = tokio::join!(files.read(path, MAX_SKILL), files.list(folder));
    let (mut names, directories) = beside.unwrap_or_default();
    names.extend(directories.into_iter().map(|name| name + "/"));
    names.sort_unstable();
    names.truncate(MAX_SKILL_FILES);
    let paths = names.into_iter().map(|name| format!("{folder}/{name}"));
    Some((text.ok()?, paths.filter(|beside| beside != path).collect()))
}

struct Files<'a> {
    host: &'a Host,
    caller: &'a Caller,
    workspace_id: String,
}

impl Files<'_> {
    async fn surroundings(&self) -> Result<Surroundings, Status> {
        let (files, directories) = self.list("").await?;
        let instructions = async {
            match files.iter().any(|name| name == INSTRUCTIONS) {
                true => self.read(INSTRUCTIONS, MAX_INSTRUCTIONS).await.map(Some),
                false => Ok(None),
            }
        };
        let skills = async {
            match directories.iter().any(|name| name == AGENTS) {
                true => self.skills().await,
                false => vec![],
            }
        };
        let (instructions, skills) = tokio::join!(instructions, skills);
        let instructions = instructions?.filter(|text| !text.trim().is_empty());
        Ok(Surroundings { instructions, skills })
    }

    async fn skills(&self) -> Vec<Skill> {
        let Ok((_, mut directories)) = self.list(SKILLS).await else { return vec![] };
        directories.sort_unstable();
        directories.truncate(MAX_SKILLS);
        let skills = directories.into_iter().map(|directory| async move {
            let path = format!("{SKILLS}/{directory}/SKILL.md");
            let text = self.read(&path, MAX_SKILL_HEAD).await.ok()?;
            Some(surroundings::skill(&directory, &path, &text))
        });
        let skills = stream::iter(skills).buffered(AT_ONCE);
        skills.filter_map(async |skill| skill).collect().await
    }

    /// The names of files and of directories in a directory.
    async fn list(&self, path: &str) -> Result<(Vec<String>, Vec<String>), Status> {
        let (mut client, peer) = self.host.files();
        let request = ListFilesRequest {
            workspace_id: self.workspace_id.clone(),
            path: path.to_owned(),
            page_size: 1000,
            page_token: String::new(),
        };
        let answer = client.list_files(peer.request_within(PATIENCE, self.caller, request)).await?;
        let (mut files, mut directories) = (vec![], vec![]);
        for file in answer.into_inner().files {
            let kind = file.kind();
            let name = file.path.rsplit('/').next().unwrap_or_default().to_owned();
            match kind {
                Kind::File => files.push(name),
                Kind::Directory => directories.push(name),
                Kind::Symlink | Kind::Other | Kind::Unspecified => {}
            }
        }
        Ok((files, directories))
    }

    async fn read(&self, path: &str, most: usize) -> Result<String, Status> {
        let (mut client, peer) = self.host.files();
        let request = ReadFileRequest {
            workspace_id: self.workspace_id.clone(),
            path: path.to_owned(),
            offset: 0,
            limit: most as i32,
        };
        let answer = client.read_file(peer.request_within(PATIENCE, self.caller, request)).await?;
        Ok(surroundings::text(answer.into_inner().data, most))
    }
}
