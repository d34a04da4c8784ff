use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use chassis::Tenant;

use crate::call::WorkspaceId;

/// Makes the directory of all workspaces, so that a wrong one is noticed at the start.
pub fn create_root(root: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(root)
}

/// Where a workspace is or would be. Both names are plain words, so the path cannot lead
/// elsewhere.
pub fn path(root: &Path, tenant: &Tenant, id: WorkspaceId) -> PathBuf {
    root.join(tenant.as_str()).join(id.to_string())
}

/// The directory of a workspace, made on first use.
pub async fn open(root: &Path, tenant: &Tenant, id: WorkspaceId) -> io::Result<PathBuf> {
    let workspace = path(root, tenant, id);
    let tenant = root.join(tenant.as_str());
    tokio::task::spawn_blocking(move || {
        DirBuilder::new().recursive(true).mode(0o700).create(&tenant)?;
        sandbox::create_workspace(&workspace)?;
        Ok(workspace)
    })
    .await?
}

/// A directory that commands can work in, where nobody looks for one.
pub fn create(path: &Path) -> io::Result<()> {
    sandbox::create_workspace(path)
}
