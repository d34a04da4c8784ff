//! Any path in a workspace full of links: nothing leads out, and whatever does not is found
//! where the kernel finds it.
#![allow(clippy::unwrap_used, reason = "what fails here is what was looked for")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Component, PathBuf},
    sync::LazyLock,
};

use tempfile::TempDir;

use super::*;
use crate::{fuzz::pieces, subject};

/// Beside the workspace there is somebody else's directory.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir_in("/dev/shm").unwrap());

const SECRET: &str = "a secret";

/// Lines: the path, and where three links lead to.
pub fn paths(data: &[u8]) {
    let pieces = pieces(data, 4);
    let (path, targets) = pieces.split_first().unwrap();
    // The kernel knows neither, and nobody gets here with one.
    if path.contains('\0') || path.len() > 4_000 {
        return;
    }
    let root = prepare(targets);
    let workspace = Workspace::at(&root).unwrap();

    reads(&workspace, &root, path);
    writes(&workspace, &root, path);
    let outside = FOLDER.path().join("outside");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{path:?} added something outside");
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), SECRET);
    assert_eq!(fs::read_dir(FOLDER.path()).unwrap().count(), 2, "{path:?} led beside");
}

fn prepare(targets: &[String]) -> PathBuf {
    let (root, outside) = (FOLDER.path().join("workspace"), FOLDER.path().join("outside"));
    if root.exists() {
        fs::remove_dir_all(&root).unwrap();
    }
    fs::create_dir_all(root.join("d/e")).unwrap();
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("secret"), SECRET).unwrap();
    for file in ["f", "d/f", "d/e/f"] {
        fs::write(root.join(file), file).unwrap();
    }
    symlink("../outside", root.join("out")).unwrap();
    symlink(&outside, root.join("d/out")).unwrap();
    for (link, target) in ["l", "d/l", "d/e/l"].iter().zip(targets) {
        if !target.is_empty() && !target.contains('\0') && target.len() < 4_000 {
            symlink(target, root.join(link)).unwrap();
        }
    }
    root
}

fn reads(workspace: &Workspace, root: &Path, path: &str) {
    let found = walk(root, path);
    let opened = workspace.open(path, OFlag::O_PATH);
    match (&found, &opened) {
        (Found::At(expected), Ok(file)) => {
            let (file, expected) =
                (File::from(file.try_clone().unwrap()).metadata(), fs::metadata(expected));
            let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
            assert_eq!(identity(file.unwrap()), identity(expected.unwrap()), "{path:?}");
        }
        (Found::Outside, Err(Error::PathOutside(_))) => (),
        // It ends before it leads out, or the other way round: neither finds anything.
        (Found::Nowhere, Err(Error::PathNotFound(_) | Error::PathOutside(_))) => (),
        (Found::Outside, Err(Error::PathNotFound(_))) => (),
        _ => panic!("{path:?} is {found:?}, and was {opened:?}"),
    }
    if let Ok(piece) = workspace.read(path, 0, 100) {
        assert_ne!(piece.data, SECRET.as_bytes(), "{path:?} tells the secret");
    }
    match subject::normalize(path) {
        // The name of an output, which is no path of the workspace.
        Ok(plain) if plain.starts_with('/') => (),
        Ok(plain) => {
            let mut parts = Path::new(&plain).components();
            let tame = parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
            assert!(tame, "{path:?} became {plain:?}");
        }
        // What rules call outside is not opened, unless a link goes there and back.
        Err(_) => assert!(path.contains('l') || opened.is_err(), "{path:?} was opened"),
    }
}

fn writes(workspace: &Workspace, root: &Path, path: &str) {
    for parents in [Parents::Expect, Parents::Create] {
        let Ok(place) = workspace.place_of_file(path, parents) else { continue };
        let Ok(mut draft) = Draft::new(place) else { continue };
        draft.write(b"written").unwrap();
        if draft.publish().is_ok() {
            let real = fs::canonicalize(root.join(path)).unwrap();
            assert!(real.starts_with(root), "{path:?} wrote to {}", real.display());
            assert_eq!(fs::read(real).unwrap(), b"written");
        }
    }
}

#[derive(Debug)]
enum Found {
    At(PathBuf),
    Outside,
    Nowhere,
}

/// Where a path leads, one name after the other.
fn walk(root: &Path, path: &str) -> Found {
    if path.starts_with('/') {
        return Found::Outside;
    }
    let mut names: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
    let (mut at, mut links) = (root.to_owned(), 0);
    while let Some(name) = names.pop() {
        if !at.is_dir() {
            return Found::Nowhere;
        }
        match name.as_str() {
            "" | "." => continue,
            ".." if at == root => return Found::Outside,
            ".." => {
                at.pop();
                continue;
            }
            name if name.len() > 255 => return Found::Nowhere,
            name => at.push(name),
        }
        match fs::symlink_metadata(&at) {
            Err(_) => return Found::Nowhere,
            Ok(metadata) if metadata.is_symlink() => {
                links += 1;
                let target = fs::read_link(&at).unwrap();
                at.pop();
                match target.to_str().unwrap() {
                    _ if links > 40 => return Found::Nowhere,
                    target if target.starts_with('/') => return Found::Outside,
                    target => names.extend(target.split('/').rev().map(str::to_owned)),
                }
            }
            Ok(_) => (),
        }
    }
    Found::At(at)
}
