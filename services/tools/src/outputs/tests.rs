mod remote;
mod s3;

use std::fs;

use proto::tools::v1::Permissions;

use super::*;
use crate::call::{SessionId, ToolCallId, WorkspaceId};

fn call(tenant: &str) -> Call {
    Call {
        tenant: tenant.parse().unwrap(),
        session_id: SessionId::new(),
        epoch: 1,
        turn_id: String::new(),
        step_id: String::new(),
        tool_call_id: ToolCallId::new(),
        tool: "bash".into(),
        input_json: "{}".into(),
        workspace_id: WorkspaceId::new(),
        permissions: Permissions::default(),
        headless: false,
    }
}

async fn keep(outputs: &Outputs, call: &Call, text: &str) -> Kept {
    let mut spool = outputs.spool(4);
    spool.push(text.as_bytes()).await.unwrap();
    outputs.keep(call, spool.finish().await.unwrap()).await.unwrap()
}

fn files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

#[sqlx::test]
async fn the_same_output_is_kept_once_per_tenant_and_read_by_its_own_only(db: PgPool) {
    let folder = tempfile::tempdir().unwrap();
    let outputs = Outputs::open(db, folder.path(), 100, Duration::from_secs(60)).unwrap();
    let (acme, other) = (call("acme"), call("other"));
    let first = keep(&outputs, &acme, "a long text").await;
    let second = keep(&outputs, &acme, "a long text").await;
    assert_ne!(first.output_ref, second.output_ref);
    assert_eq!(files(&folder.path().join("kept")), 1);
    keep(&outputs, &other, "a long text").await;
    assert_eq!(files(&folder.path().join("kept")), 2);

    let (piece, stored) = outputs.read(&acme.tenant, first.output_ref, 2, 4).await.unwrap();
    assert_eq!((piece.as_slice(), stored.bytes), (&b"long"[..], 11));
    let (piece, _) = outputs.read(&acme.tenant, first.output_ref, 11, 4).await.unwrap();
    assert!(piece.is_empty());
    let stolen = outputs.read(&other.tenant, first.output_ref, 0, 4).await.unwrap_err();
    assert!(matches!(stolen, Error::OutputNotFound(_)));
}

#[sqlx::test]
async fn what_has_expired_is_removed_unless_somebody_else_has_it(db: PgPool) {
    let folder = tempfile::tempdir().unwrap();
    let short = Outputs::open(db.clone(), folder.path(), 100, Duration::ZERO).unwrap();
    let long = Outputs::open(db, folder.path(), 100, Duration::from_secs(60)).unwrap();
    let acme = call("acme");
    let gone = keep(&short, &acme, "only here").await;
    let over = keep(&short, &acme, "in two places").await;
    let kept = keep(&long, &acme, "in two places").await;
    long.expire().await.unwrap();
    for over in [gone, over] {
        let read = long.read(&acme.tenant, over.output_ref, 0, 100).await;
        assert!(matches!(read, Err(Error::OutputNotFound(_))));
    }
    let (piece, _) = long.read(&acme.tenant, kept.output_ref, 0, 100).await.unwrap();
    assert_eq!(piece, b"in two places");
    assert_eq!(files(&folder.path().join("kept")), 1);
}
