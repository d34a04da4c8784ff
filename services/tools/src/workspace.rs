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

/// The directory of a workspace, made on first use. Both names are plain words, so the path
/// cannot lead elsewhere.
pub async fn open(root: &Path, tenant: &Tenant, id: WorkspaceId) -> io::Result<PathBuf> {
    let tenant = root.join(tenant.as_str());
    let workspace = tenant.join(id.to_string());
    tokio::task::spawn_blocking(move || {
        DirBuilder::new().recursive(true).mode(0o700).create(&tenant)?;
        sandbox::create_workspace(&workspace)?;
        Ok(workspace)
    })
    .await?
}
