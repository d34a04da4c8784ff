//! Workspaces that are filled from archives.

use std::{io::Write as _, process::Command, time::Duration};

use expect_test::expect;
use flate2::{Compression, write::GzEncoder};
use proto::tools::v1::{
    ImportWorkspaceRequest, ImportWorkspaceResponse, import_workspace_request::Format,
};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use sqlx::PgPool;
use tar::{Builder, EntryType, Header};
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::{
    changes::write,
    workspaces::{client, create, get},
    world::{World, explain},
};

pub async fn import(
    world: &World,
    id: &str,
    format: Format,
    data: &[u8],
) -> Result<ImportWorkspaceResponse, Status> {
    let mut pieces = vec![ImportWorkspaceRequest {
        workspace_id: id.into(),
        format: format.into(),
        data: vec![],
    }];
    pieces.extend(data.chunks(1_000_000).map(|data| ImportWorkspaceRequest {
        data: data.into(),
        ..ImportWorkspaceRequest::default()
    }));
    let request = world.peer.request(&world.caller, tokio_stream::iter(pieces));
    Ok(client(world).import_workspace(request).await?.into_inner())
}

/// An entry of an archive, with whatever name.
pub fn entry(archive: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str, data: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o6755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(data.len() as u64);
    let raw = header.as_old_mut();
    raw.name[..name.len()].copy_from_slice(name.as_bytes());
    raw.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    archive.append(&header, data).unwrap();
}

fn archive() -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    entry(&mut archive, EntryType::Directory, "./", "", b"");
    entry(&mut archive, EntryType::Directory, "src/", "", b"");
    entry(&mut archive, EntryType::Regular, "src/main.rs", "", b"fn main() {}\n");
    entry(&mut archive, EntryType::Directory, "src/", "", b"");
    entry(&mut archive, EntryType::Regular, "made/on/the/way", "", b"x");
    entry(&mut archive, EntryType::Symlink, "made/link", "../src/main.rs", b"");
    entry(&mut archive, EntryType::Link, "same", "src/main.rs", b"");
    let long = format!("long/{}/{}", "a".repeat(200), "b".repeat(200));
    let mut header = Header::new_gnu();
    header.set_size(4);
    header.set_mode(0o644);
    archive.append_data(&mut header, &long, b"long".as_slice()).unwrap();
    archive.append_pax_extensions([("comment", b"hello".as_slice())]).unwrap();
    entry(&mut archive, EntryType::Regular, "last", "", b"end");
    archive.into_inner().unwrap()
}

#[sqlx::test(migrations = false)]
async fn archives_of_all_formats_fill_an_empty_workspace(db: PgPool) {
    let world = World::start(db).await;
    let plain = archive();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&plain).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = compress_to_vec(plain.as_slice(), CompressionLevel::Fastest);
    for (format, data) in
        [(Format::Tar, &plain), (Format::TarGzip, &gzip), (Format::TarZstd, &zstd)]
    {
        let id = create(&world).await;
        let imported = import(&world, &id, format, data).await.unwrap();
        assert_eq!(imported.files, 12, "{format:?}");
        assert_eq!(imported.workspace.unwrap(), get(&world, &id).await.unwrap());
        let printed = world
            .prints(
                &id,
                "find . -name long -prune -o -printf '%y %m %u %P>%l\\n' | LC_ALL=C sort; cat same; \
                 cat long/*/*; echo changed > same; cat src/main.rs; rm -r *",
            )
            .await;
        expect![[r#"
            d 700 agent >
            d 755 agent made/on/the>
            d 755 agent made/on>
            d 755 agent made>
            d 755 agent src>
            f 755 agent last>
            f 755 agent made/on/the/way>
            f 755 agent same>
            f 755 agent src/main.rs>
            l 777 agent made/link>../src/main.rs
            fn main() {}
            longfn main() {}
        "#]]
        .assert_eq(&printed);
    }
}

#[sqlx::test(migrations = false)]
async fn a_bundle_is_cloned_with_its_history(db: PgPool) {
    let world = World::start(db).await;
    let folder = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let done = Command::new("git")
            .args(["-c", "user.name=Ann", "-c", "user.email=ann@example.com"])
            .args(arguments)
            .current_dir(folder.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    git(&["init", "-q", "-b", "trunk"]);
    std::fs::write(folder.path().join("file"), "one\n").unwrap();
    // What a repository says is run by nobody but whoever was told to.
    std::fs::write(folder.path().join(".gitattributes"), "* filter=evil\n").unwrap();
    git(&["add", "."]);
    git(&["commit", "-qm", "first"]);
    std::fs::write(folder.path().join("file"), "two\n").unwrap();
    git(&["commit", "-qam", "second"]);
    git(&["bundle", "create", "-q", "whole", "--all"]);
    git(&["bundle", "create", "-q", "headless", "refs/heads/trunk"]);

    for name in ["whole", "headless"] {
        let id = create(&world).await;
        let bundle = std::fs::read(folder.path().join(name)).unwrap();
        import(&world, &id, Format::GitBundle, &bundle).await.unwrap();
        let printed = world
            .prints(
                &id,
                "git log --format=%s; git status --short --branch; git remote; cat file; \
                 ls -A; echo three > file; git status --short",
            )
            .await;
        assert_eq!(
            printed, "second\nfirst\n## trunk\ntwo\n.git\n.gitattributes\nfile\n M file\n",
            "{name}"
        );
    }
    let id = create(&world).await;
    let status = import(&world, &id, Format::GitBundle, b"no bundle").await.unwrap_err();
    let line = explain(&status);
    let start =
        "InvalidArgument REASON_INVALID_FIELD: invalid data: is no bundle that git can clone: ";
    assert!(line.starts_with(start), "{line}");
    assert_eq!(world.prints(&id, "ls -A").await, "");
}

#[sqlx::test(migrations = false)]
async fn an_archive_on_its_way_keeps_no_call_from_running(db: PgPool) {
    let world = World::with(db, &["--max-executions", "1"]).await;
    let id = create(&world).await;
    let whole = archive();
    let (begin, end) = whole.split_at(700);
    let first = ImportWorkspaceRequest {
        workspace_id: id.clone(),
        format: Format::Tar.into(),
        data: begin.into(),
    };
    let (pieces, arriving) = mpsc::channel(1);
    pieces.send(first).await.unwrap();
    let request = world.peer.request(&world.caller, ReceiverStream::new(arriving));
    let mut importing = client(&world);
    let importing = tokio::spawn(async move { importing.import_workspace(request).await });
    let has_begun = || {
        let find = Command::new("find").arg(&world.workspaces).args(["-name", "archive"]).output();
        !find.unwrap().stdout.is_empty()
    };
    while !has_begun() {
        sleep(Duration::from_millis(20)).await;
    }

    assert_eq!(world.execute(world.bash("true")).await.unwrap().data()["exit_code"], 0);
    let rest = ImportWorkspaceRequest { data: end.into(), ..ImportWorkspaceRequest::default() };
    pieces.send(rest).await.unwrap();
    drop(pieces);
    assert!(importing.await.unwrap().unwrap().into_inner().files > 0);
}

#[sqlx::test(migrations = false)]
async fn only_an_empty_workspace_is_filled_and_all_or_nothing(db: PgPool) {
    let world = World::start(db).await;
    let used = create(&world).await;
    write(&world, &used, "file", b"mine").await.unwrap();
    let unknown = world.bash("true").workspace_id;
    let empty = create(&world).await;
    let whole = archive();
    let mut lines = String::new();
    for (id, format, data) in [
        (&used, Format::Tar, whole.as_slice()),
        (&unknown, Format::Tar, &whole),
        (&empty, Format::Unspecified, &whole),
        (&empty, Format::TarGzip, &whole),
        (&empty, Format::TarZstd, &whole),
        (&empty, Format::Tar, b"no archive".as_slice()),
        (&empty, Format::Tar, b"".as_slice()),
        (&empty, Format::Tar, &whole[..700]),
        (&empty, Format::Tar, &whole[..1536 + 300]),
        (&empty, Format::Tar, &whole[..whole.len() - 1024]),
    ] {
        let status = import(&world, id, format, data).await.unwrap_err();
        let line = explain(&status);
        // What exactly the decoders say is theirs.
        let line = line.split_inclusive("or damaged").next().unwrap();
        lines += &format!("{}\n", line.replace(&used, "ws_…").replace(&unknown, "ws_…"));
    }
    let large = ImportWorkspaceRequest {
        workspace_id: empty.clone(),
        format: Format::Tar.into(),
        data: vec![0; 1_048_577],
    };
    let again = vec![ImportWorkspaceRequest { data: vec![], ..large.clone() }; 2];
    for pieces in [vec![large], again, vec![]] {
        let request = world.peer.request(&world.caller, tokio_stream::iter(pieces));
        let status = client(&world).import_workspace(request).await.unwrap_err();
        lines += &format!("{}\n", explain(&status));
    }
    expect![[r#"
        FailedPrecondition REASON_WORKSPACE_NOT_EMPTY: workspace ws_… is not empty, and only an empty one can be filled
        NotFound REASON_WORKSPACE_NOT_FOUND: there is no workspace ws_…, or nothing has used it yet
        InvalidArgument REASON_INVALID_FIELD: invalid format: is missing or unknown
        InvalidArgument REASON_INVALID_FIELD: invalid data: is no archive of this format, or damaged
        InvalidArgument REASON_INVALID_FIELD: invalid data: is no archive of this format, or damaged
        InvalidArgument REASON_INVALID_FIELD: invalid data: is no archive of this format, or damaged
        InvalidArgument REASON_INVALID_FIELD: invalid data: ends before its end mark; was it cut off?
        InvalidArgument REASON_INVALID_FIELD: invalid data: is no archive of this format, or damaged
        InvalidArgument REASON_INVALID_FIELD: invalid data: is no archive of this format, or damaged
        InvalidArgument REASON_INVALID_FIELD: invalid data: ends before its end mark; was it cut off?
        InvalidArgument REASON_INVALID_FIELD: invalid data: is larger than 1 MiB
        InvalidArgument REASON_INVALID_FIELD: invalid workspace_id: belongs into the first message only
        InvalidArgument REASON_INVALID_FIELD: invalid workspace_id: is missing
    "#]]
    .assert_eq(&lines);
    assert_eq!(world.prints(&used, "ls -A; cat file").await, "file\nmine");
    assert_eq!(world.prints(&empty, "ls -A").await, "");
}
