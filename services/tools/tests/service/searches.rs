use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    time::{Duration, Instant},
};

use expect_test::expect;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::world::World;

const TREE: &str = "mkdir -p src/deep target .github; git init -q . 2>/dev/null || mkdir .git; \
    echo 'fn main() {}' > src/main.rs; printf 'one\\nTwo two\\nthree\\nfour\\ntwo\\n' > src/deep/numbers.txt; \
    echo 'fn main() {}' > target/main.rs; echo 'two' > .github/ci.yml; echo two > .git/two; \
    printf 'target/\\n*.log\\n' > .gitignore; echo '!keep.log' > src/.gitignore; \
    echo two > a.log; echo two > src/keep.log; printf 'two\\0' > binary; ln -s /etc host; \
    ln -s src/main.rs link.rs; touch -d 2001-01-01 src/main.rs";

async fn paths(world: &World, id: &str, input: Value) -> Vec<String> {
    let data = world.tool(id, "glob", input).await.data();
    serde_json::from_value(data["paths"].clone()).unwrap()
}

#[sqlx::test(migrations = false)]
async fn files_are_found_by_name(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace(TREE).await;
    let all = paths(&world, &id, json!({ "pattern": "*" })).await;
    expect![[r#"
        .github/ci.yml
        .gitignore
        binary
        src/.gitignore
        src/deep/numbers.txt
        src/keep.log
        src/main.rs
    "#]]
    .assert_eq(&format!("{}\n", all.join("\n")));
    assert_eq!(paths(&world, &id, json!({ "pattern": "*.rs" })).await, ["src/main.rs"]);
    let below = paths(&world, &id, json!({ "pattern": "*/*", "path": "./src" })).await;
    assert_eq!(below, ["src/deep/numbers.txt"]);
    let newest = paths(&world, &id, json!({ "pattern": "*", "sort": "modified" })).await;
    assert_eq!(newest.last().unwrap(), "src/main.rs");
    // What is asked for by its path is not left out.
    assert_eq!(
        paths(&world, &id, json!({ "pattern": "*", "path": "target" })).await,
        ["target/main.rs"]
    );

    let ended = world.tool(&id, "glob", json!({ "pattern": "*", "limit": 2 })).await;
    assert_eq!(ended.data()["paths"], json!(&all[..2]));
    assert_eq!(ended.data()["total"], all.len());
    assert!(ended.outcome.metadata.unwrap().truncated);

    let mut lines = String::new();
    for (pattern, path) in [("[", ""), ("*", "gone"), ("*", "host"), ("*", ".."), ("*", "/etc")] {
        let ended = world.tool(&id, "glob", json!({ "pattern": pattern, "path": path })).await;
        lines += &format!("{}: {}\n", ended.error().0, ended.error().1);
    }
    expect![[r#"
        schema: error parsing glob '**/[': unclosed character class; missing ']'
        failed: there is no "gone" in the workspace
        sandbox: "host" leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b`
        denied: ".." leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b`
        denied: "/etc" leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b`
    "#]].assert_eq(&lines);
}

#[sqlx::test(migrations = false)]
async fn files_are_found_by_content(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace(TREE).await;
    let grep = async |input: Value| {
        let data = world.tool(&id, "grep", input).await.data();
        format!("{}({} files)\n", data["output"].as_str().unwrap(), data["files"])
    };
    let mut lines = String::new();
    for input in [
        json!({ "pattern": "two" }),
        json!({ "pattern": "^two", "case": "insensitive", "path": "src", "context": 1 }),
        json!({ "pattern": "two", "output": "files" }),
        json!({ "pattern": "two", "output": "count", "case": "insensitive" }),
        json!({ "pattern": "TWO", "output": "count", "case": "smart" }),
        json!({ "pattern": "two", "glob": "*.{yml,rs}" }),
        json!({ "pattern": "main", "path": "target/main.rs" }),
        json!({ "pattern": "nowhere" }),
    ] {
        lines += &format!("{input}\n{}\n", grep(input.clone()).await);
    }
    expect![[r#"
        {"pattern":"two"}
        .github/ci.yml
        1:two

        src/deep/numbers.txt
        2:Two two
        5:two

        src/keep.log
        1:two
        (3 files)

        {"case":"insensitive","context":1,"path":"src","pattern":"^two"}
        src/deep/numbers.txt
        1-one
        2:Two two
        3-three
        4-four
        5:two

        src/keep.log
        1:two
        (2 files)

        {"output":"files","pattern":"two"}
        .github/ci.yml
        src/deep/numbers.txt
        src/keep.log
        (3 files)

        {"case":"insensitive","output":"count","pattern":"two"}
        .github/ci.yml: 1
        src/deep/numbers.txt: 2
        src/keep.log: 1
        (3 files)

        {"case":"smart","output":"count","pattern":"TWO"}
        (0 files)

        {"glob":"*.{yml,rs}","pattern":"two"}
        .github/ci.yml
        1:two
        (1 files)

        {"path":"target/main.rs","pattern":"main"}
        target/main.rs
        1:fn main() {}
        (1 files)

        {"pattern":"nowhere"}
        (0 files)

    "#]]
    .assert_eq(&lines);

    let ended = world.tool(&id, "grep", json!({ "pattern": "t", "limit": 3 })).await;
    assert_eq!(ended.data()["matches"], 3);
    assert!(ended.outcome.metadata.unwrap().truncated);
    for pattern in ["(", "a\nb"] {
        let ended = world.tool(&id, "grep", json!({ "pattern": pattern })).await;
        assert!(ended.error().1.starts_with("the pattern is wrong"), "{:?}", ended.error());
    }
    let linked = json!({ "pattern": "root", "path": "host/passwd" });
    let ended = world.tool(&id, "grep", linked).await;
    assert_eq!(ended.error().0, "sandbox");
    assert_eq!(ended.names(), ["sandbox.applied", "sandbox.violation"]);
    for path in ["../x", "/etc/passwd"] {
        let ended = world.tool(&id, "grep", json!({ "pattern": "root", "path": path })).await;
        assert_eq!((ended.error().0, ended.names()), ("denied", vec!["permission.evaluated"]));
    }
}

#[sqlx::test(migrations = false)]
async fn a_tree_of_ten_thousand_files_is_searched_quickly(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("true").await;
    let folder = world.folder(&id);
    for directory in 0..100 {
        let directory = folder.join(format!("{directory:02}"));
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        for file in 0..100 {
            fs::write(directory.join(format!("{file:02}")), format!("file {file}\n")).unwrap();
        }
    }
    let flat = folder.join("flat");
    fs::create_dir(&flat).unwrap();
    for file in 0..1_000 {
        fs::write(flat.join(format!("{file}")), "flat\n").unwrap();
    }
    let begun = Instant::now();
    let data = world.tool(&id, "glob", json!({ "pattern": "*" })).await.data();
    assert_eq!(data["total"], 11_000);
    let count = async |pattern: &str| {
        let input = json!({ "pattern": pattern, "output": "count", "limit": 2000 });
        world.tool(&id, "grep", input).await.data()["matches"].clone()
    };
    assert_eq!(count("^file 42$").await, 100);
    assert_eq!(count("^flat$").await, 1_000);
    let ended = world.tool(&id, "grep", json!({ "pattern": "file", "output": "files" })).await;
    assert_eq!(ended.data()["files"], 200);
    assert!(ended.outcome.metadata.unwrap().truncated);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}
