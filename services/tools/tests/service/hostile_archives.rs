//! Archives of people who want something else than to fill a workspace.

use std::{fs, io::Write as _};

use expect_test::expect;
use flate2::{Compression, write::GzEncoder};
use proto::tools::v1::{CreateWorkspaceRequest, import_workspace_request::Format};
use sqlx::PgPool;
use tar::{
    Builder,
    EntryType::{self, Block, Char, Directory, Fifo, GNULongName, Link, Regular, Symlink, XHeader},
    Header,
};

use crate::{
    imports::{entry, import},
    workspaces::{create, create_as, until},
    world::{World, explain},
};

type Entries<'a> = &'a [(EntryType, &'a str, &'a str, &'a [u8])];

fn archive(entries: Entries<'_>) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for (kind, name, link, data) in entries {
        entry(&mut archive, *kind, name, link, data);
    }
    archive.into_inner().unwrap()
}

#[sqlx::test(migrations = false)]
async fn no_archive_leaves_the_workspace(db: PgPool) {
    let world = World::start(db).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let secret = elsewhere.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let (outside, secret_path) = (elsewhere.path().to_str().unwrap(), secret.to_str().unwrap());
    let absolute = format!("{outside}/new");
    let deep = "d/".repeat(40);
    let table: Vec<(&str, Vec<u8>)> = vec![
        ("a path up", archive(&[(Regular, "../new", "", b"x")])),
        ("a path down and up", archive(&[(Regular, "a/../../new", "", b"x")])),
        ("a path up within", archive(&[(Regular, "a/../b", "", b"x")])),
        ("an absolute path", archive(&[(Regular, &absolute, "", b"x")])),
        ("a directory up", archive(&[(Directory, "../new/", "", b"")])),
        ("a file without a name", archive(&[(Regular, "./", "", b"x")])),
        ("an absolute link", archive(&[(Symlink, "link", outside, b"")])),
        ("a link up", archive(&[(Symlink, "a/link", "../../x", b"")])),
        ("a link to nothing", archive(&[(Symlink, "link", "", b"")])),
        (
            "a file through a link",
            archive(&[
                (Directory, "dir/", "", b""),
                (Symlink, "link", "dir", b""),
                (Regular, "link/file", "", b"x"),
            ]),
        ),
        (
            "a directory that becomes a link",
            archive(&[
                (Directory, "dir/", "", b""),
                (Symlink, "dir", "other", b""),
                (Regular, "dir/file", "", b"x"),
            ]),
        ),
        (
            "a link that becomes a directory",
            archive(&[
                (Symlink, "dir", "other", b""),
                (Directory, "dir/", "", b""),
                (Regular, "dir/file", "", b"x"),
            ]),
        ),
        ("a file twice", archive(&[(Regular, "file", "", b"x"), (Regular, "file", "", b"y")])),
        (
            "a link, then the file",
            archive(&[(Symlink, "file", "other", b""), (Regular, "file", "", b"y")]),
        ),
        ("a hard link to outside", archive(&[(Link, "file", secret_path, b"")])),
        ("a hard link up", archive(&[(Link, "file", "../../secret", b"")])),
        ("a hard link to nothing", archive(&[(Link, "file", "missing", b"")])),
        (
            "a hard link to a link",
            archive(&[(Symlink, "link", "x", b""), (Link, "file", "link", b"")]),
        ),
        (
            "a hard link to a directory",
            archive(&[(Directory, "dir/", "", b""), (Link, "file", "dir", b"")]),
        ),
        ("a character device", archive(&[(Char, "null", "", b"")])),
        ("a block device", archive(&[(Block, "disk", "", b"")])),
        ("a pipe", archive(&[(Fifo, "pipe", "", b"")])),
        ("a sparse file", archive(&[(EntryType::GNUSparse, "file", "", b"")])),
        ("something unknown", archive(&[(EntryType::new(b'Z'), "file", "", b"")])),
        (
            "too deep",
            archive(&[
                (GNULongName, "long", "", deep.repeat(4).as_bytes()),
                (Directory, "x", "", b""),
            ]),
        ),
        (
            "a long path",
            archive(&[
                (GNULongName, "long", "", "a/".repeat(2100).as_bytes()),
                (Regular, "x", "", b""),
            ]),
        ),
        (
            "a long name",
            archive(&[
                (GNULongName, "long", "", "a".repeat(256).as_bytes()),
                (Regular, "x", "", b""),
            ]),
        ),
        (
            "a NUL in a long name",
            archive(&[(GNULongName, "l", "", b"a\0b"), (Regular, "x", "", b"")]),
        ),
        ("an endless name", archive(&[(GNULongName, "l", "", &vec![b'a'; 70_000])])),
        (
            "a path up in an extension",
            archive(&[(XHeader, "x", "", b"15 path=../new\n"), (Regular, "x", "", b"x")]),
        ),
        (
            "a link out in an extension",
            archive(&[(XHeader, "x", "", b"21 linkpath=/etc/foo\n"), (Symlink, "x", "y", b"")]),
        ),
        (
            "another size in an extension",
            archive(&[(XHeader, "x", "", b"20 size=99999999999\n"), (Regular, "x", "", b"x")]),
        ),
        (
            "a broken extension",
            archive(&[(XHeader, "x", "", b"99 path"), (Regular, "x", "", b"x")]),
        ),
    ];
    let mut lines = String::new();
    for (what, data) in &table {
        let id = create(&world).await;
        let status = import(&world, &id, Format::Tar, data).await.expect_err(what);
        let line = explain(&status).replace(outside, "/outside");
        let problem =
            line.trim_start_matches("InvalidArgument REASON_INVALID_FIELD: invalid data: ");
        let problem = match problem.split_once("…\", which") {
            Some((_, rest)) => format!("has …, which{rest}"),
            None => problem.split_inclusive("or damaged").next().unwrap().to_owned(),
        };
        lines += &format!("{what}: {problem}\n");
        assert_eq!(fs::read_dir(world.folder(&id)).unwrap().count(), 0, "{what}");
    }
    expect![[r#"
        a path up: has "../new", which leads out
        a path down and up: has "a/../../new", which leads out
        a path up within: has "a/../b", which leads out
        an absolute path: has "/outside/new", which is an absolute path
        a directory up: has "../new/", which leads out
        a file without a name: has "./", which has no name
        an absolute link: has "link", which is a link that leads out
        a link up: has "a/link", which is a link that leads out
        a link to nothing: has "link", which is a link that leads out
        a file through a link: has "link/file", which is in something that is no directory
        a directory that becomes a link: has "dir", which is there twice
        a link that becomes a directory: has "dir/", which is in something that is no directory
        a file twice: has "file", which is there twice
        a link, then the file: has "file", which is there twice
        a hard link to outside: has "file", which is a link that leads out
        a hard link up: has "file", which is a link that leads out
        a hard link to nothing: has "file", which is a link to no file before it
        a hard link to a link: has "file", which is a link to no file before it
        a hard link to a directory: has "file", which is a link to no file before it
        a character device: has "null", which is neither a file nor a directory nor a link
        a block device: has "disk", which is neither a file nor a directory nor a link
        a pipe: has "pipe", which is neither a file nor a directory nor a link
        a sparse file: has "file", which is neither a file nor a directory nor a link
        something unknown: has "file", which is neither a file nor a directory nor a link
        too deep: has …, which is more than 128 directories deep
        a long path: has …, which is longer than 4095 bytes
        a long name: has …, which has a name of more than 255 bytes
        a NUL in a long name: has "a\0b", which has a NUL
        an endless name: has a header of more than 64 KiB
        a path up in an extension: has "../new", which leads out
        a link out in an extension: has "x", which is a link that leads out
        another size in an extension: has a file that is larger than 8 GiB
        a broken extension: is no archive of this format, or damaged
    "#]]
    .assert_eq(&lines);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
    let staging = world.workspaces.join("acme/.staging");
    until("nothing is left", || fs::read_dir(&staging).unwrap().next().is_none()).await;
}

#[sqlx::test(migrations = false)]
async fn an_archive_that_grows_is_stopped(db: PgPool) {
    let world = World::with(db, &["--workspace-files", "50"]).await;
    let gzip = |parts: &mut dyn FnMut(&mut GzEncoder<Vec<u8>>)| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        parts(&mut encoder);
        encoder.finish().unwrap()
    };
    let header = |kind: EntryType, name: &str, size: u64| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path(name).unwrap();
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let zeros = vec![0; 1024 * 1024];
    // Sixty-four megabytes of zeros in a few kilobytes.
    let one_file = gzip(&mut |encoder| {
        encoder.write_all(&header(Regular, "zeros", 64 * 1024 * 1024)).unwrap();
        (0..64).for_each(|_| encoder.write_all(&zeros).unwrap());
    });
    // Each small enough, all too large.
    let many = gzip(&mut |encoder| {
        for number in 0..40 {
            encoder.write_all(&header(Regular, &number.to_string(), 1024 * 1024)).unwrap();
            encoder.write_all(&zeros).unwrap();
        }
    });
    // Nothing but names.
    let names = gzip(&mut |encoder| {
        for number in 0..1_000 {
            encoder.write_all(&header(Regular, &format!("file {number}"), 0)).unwrap();
        }
    });
    // What is no file and counts as nothing, for ever.
    let headers = gzip(&mut |encoder| {
        for _ in 0..40 {
            encoder.write_all(&header(Directory, "dir", 0)).unwrap();
            encoder.write_all(&header(EntryType::XGlobalHeader, "x", 60 * 1024)).unwrap();
            encoder.write_all(&zeros[..60 * 1024]).unwrap();
        }
        for _ in 0..1_000 {
            encoder.write_all(&header(EntryType::XGlobalHeader, "x", 60 * 1024)).unwrap();
            encoder.write_all(&zeros[..60 * 1024]).unwrap();
        }
    });
    for (what, data) in
        [("one file", one_file), ("many", many), ("names", names), ("headers", headers)]
    {
        let request = CreateWorkspaceRequest {
            request_id: what.into(),
            quota_bytes: 10 * 1024 * 1024,
            ..CreateWorkspaceRequest::default()
        };
        let id = create_as(&world, &world.caller, request).await.unwrap().workspace_id;
        let status = import(&world, &id, Format::TarGzip, &data).await.expect_err(what);
        assert!(explain(&status).contains("REASON_WORKSPACE_FULL"), "{what}: {status:?}");
        assert_eq!(fs::read_dir(world.folder(&id)).unwrap().count(), 0, "{what}");
    }
}

#[sqlx::test(migrations = false)]
async fn nobody_becomes_somebody_else(db: PgPool) {
    let world = World::start(db).await;
    let id = create(&world).await;
    // The helper marks everything as root's, setuid and setgid.
    let data = archive(&[
        (Directory, "dir/", "", b""),
        (Regular, "dir/run", "", b"#!/bin/sh\n"),
        (Link, "same", "dir/run", b""),
    ]);
    import(&world, &id, Format::Tar, &data).await.unwrap();
    let printed = world.prints(&id, "stat -c '%n %a %U' dir dir/run same; touch dir/run").await;
    assert_eq!(printed, "dir 755 agent\ndir/run 755 agent\nsame 755 agent\n");
}
