use std::{env, fs, path::Path};

use local::Service;
use tests::World;
use tokio::process::Command;

const FOUND: &str = "I found .*exit_code";

/// What the README tells a newcomer to paste, pasted. `make up` and `make test` are left out:
/// they are what runs this. So is `make bench`, which wants minutes and a quiet machine.
#[tokio::test]
async fn the_readmes_commands_do_what_it_says() {
    let mut world = World::start().await;
    let key = world.fleet.mint_key("dev", "you", "read,run").await.unwrap();
    let home = world.fleet.dir().to_owned();
    fs::create_dir_all(home.join(".local")).unwrap();
    fs::write(home.join(".local/key"), key).unwrap();
    let address = world.fleet.endpoint(Service::Session).replace("http://", "");

    let blocks = blocks("bash");
    let made: Vec<_> = blocks.iter().filter(|block| block.starts_with("make ")).collect();
    assert_eq!(made, ["make up\n", "make test\n", "make bench\n"]);
    let makefile = text("Makefile");
    for target in made {
        let rule = format!("\n{}:", target.trim().trim_start_matches("make "));
        assert!(makefile.contains(&rule), "there is no {target}");
    }
    let pasted: Vec<_> =
        blocks.iter().filter(|block| !block.starts_with("make ")).map(String::as_str).collect();
    let [create_and_submit, approve, list] = pasted[..] else { panic!("{pasted:?}") };

    // Pasted twice, as the README says one may; then once somebody is asked; then until the turn
    // has ended, in which the agent says more than the script that is in the message.
    let script = format!(
        "set -euo pipefail\n{create_and_submit}\n{create_and_submit}\n\
         for try in {{1..200}}; do\n  {{ {approve} }} && break\n  sleep 0.1\ndone\n\
         for try in {{1..200}}; do\n  {list}  sleep 0.1\ndone | grep -m 1 '{FOUND}'"
    );
    let script = script.replace("127.0.0.1:50051", &address);
    let programs = Path::new(env!("CARGO_BIN_EXE_grpcurl")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(&home)
        .env("PATH", path)
        .output()
        .await
        .unwrap();
    let (said, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Linux"), "{said}\n{complaints}");
}

fn blocks(language: &str) -> Vec<String> {
    let readme = text("README.md");
    let fence = format!("```{language}\n");
    let blocks = readme.split(fence.as_str()).skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

fn text(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(file);
    fs::read_to_string(path).unwrap()
}
