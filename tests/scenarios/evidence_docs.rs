use std::{env, fs, os::unix::fs::symlink, path::Path};

use local::{Fleet, Service};
use tests::{World, new_key, program};
use tokio::process::Command;

/// What docs/evidence.md tells people to paste, pasted; `make up` is left out.
#[tokio::test]
async fn the_commands_for_evidence_do_what_their_page_says() {
    let keys = tempfile::tempdir().unwrap();
    let (private, _) = new_key(keys.path()).await;
    let plan =
        Fleet::plan().env_of(Service::Session, "EVIDENCE_KEY_FILE", private.to_str().unwrap());
    let mut world = World::planned(plan).await;
    let client = world.client("dev").await;
    let session = client.create_session().await;
    session.run("say Look.\ncall bash {\"command\": \"echo found\"}\n---\nsay Done.").await;
    let key = world.fleet.mint_key("dev", "you", "read,run").await.unwrap();
    let address = world.fleet.endpoint(Service::Session).replace("http://", "");

    let page = text("docs/evidence.md");
    let blocks: Vec<_> =
        page.split("```bash\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let [new_key, up, export, show, replay] = blocks[..] else { panic!("{blocks:?}") };
    assert!(up.ends_with(" make up\n"), "{up}");
    let readme = text("README.md");
    let call = readme.split_once("call() {").unwrap().1.split_once("\n}").unwrap().0;
    // The key of the page is made where it says; the one of the server is put in its place.
    let script = format!(
        "set -euo pipefail\nmkdir -p .local\necho '{key}' > .local/key\ncall() {{{call}\n}}\n\
         session={id}\n{new_key}\ncp {private}.pub evidence.pem.pub\n\
         {export}\n{show}\n{replay}",
        id = session.id,
        private = private.display(),
    );
    let script = script.replace("127.0.0.1:50051", &address);
    // A reader has grpcurl, and a clone in which everything was built.
    let dir = tempfile::tempdir().unwrap();
    let (bin, target) = (dir.path().join("bin"), dir.path().join("target"));
    fs::create_dir(&bin).unwrap();
    fs::create_dir(&target).unwrap();
    symlink(env!("CARGO_BIN_EXE_grpcurl"), bin.join("grpcurl")).unwrap();
    symlink(program().parent().unwrap(), target.join("debug")).unwrap();
    let path = format!("{}:{}", bin.display(), env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(&dir)
        .env("PATH", path)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complaints}");
    assert!(said.contains("VERIFIED: nothing was altered"), "{said}");
    assert!(said.contains("turn.completed"), "{said}");
    assert!(said.contains(&format!("# Review of session {}", session.id)), "{said}");
    assert!(said.contains("\"sessionId\": \"ses_"), "{said}");
    // The digest that `sha256sum` prints is the one of the manifest.
    let pack = fs::read_to_string(dir.path().join("pack.jsonl")).unwrap();
    let manifest: serde_json::Value =
        serde_json::from_str(pack.lines().rev().nth(1).unwrap()).unwrap();
    let sections = manifest["data"]["sections"].as_array().unwrap();
    let timeline = sections.iter().find(|section| section["name"] == "timeline").unwrap();
    assert!(said.contains(timeline["digest"].as_str().unwrap()), "{said}");
}

fn text(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(file);
    fs::read_to_string(path).unwrap()
}
