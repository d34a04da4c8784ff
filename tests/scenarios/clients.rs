use std::{
    io::{self, Write as _},
    path::Path,
};

use local::{Fleet, Service};
use tests::World;
use tokio::process::Command;

/// A server small enough that a client can see what a crowd is told, and large enough for the rest.
const MAX_STREAMS: &str = "32";
const CROWD: &str = "48";

#[tokio::test]
async fn a_client_in_go_meets_what_the_contract_says() {
    tells_its_story("go").await;
}

#[tokio::test]
async fn a_client_in_python_meets_what_the_contract_says() {
    tells_its_story("python").await;
}

#[tokio::test]
async fn a_client_in_typescript_meets_what_the_contract_says() {
    tells_its_story("typescript").await;
}

/// Runs an example of `tests/clients` against a system of its own. Its last line is shown even
/// when the test passes, so that one that checked nothing is not taken for one that did.
async fn tells_its_story(language: &str) {
    let plan = Fleet::plan().env_of(Service::Session, "MAX_STREAMS", MAX_STREAMS);
    let mut world = World::planned(plan).await;
    let key = world.fleet.mint_key("acme", language, "read,run,admin").await.unwrap();
    let address = world.fleet.endpoint(Service::Session).replace("http://", "");

    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(language);
    let output = Command::new(example.join("run.sh"))
        .env("WINDLASS_ADDRESS", address)
        .env("WINDLASS_KEY", key)
        .env("WINDLASS_CROWD", CROWD)
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let (said, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{language}\n{said}\n{complaints}");
    // Not `eprintln`, which the test runner keeps to itself.
    let last = said.lines().last().unwrap_or_default();
    let line = format!("client in {language}: {last}\n");
    io::stderr().write_all(line.as_bytes()).unwrap();
}
