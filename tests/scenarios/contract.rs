use std::{collections::BTreeSet, fs, path::Path};

use proto::auth::v1::Scope;
use tests::{World, explain, methods, reason};
use tonic::Code;

/// Where the changelog lists what the contract has and this version does not.
const HEADING: &str = "Not there yet";

#[tokio::test]
async fn every_rpc_of_the_contract_answers() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let (mut listed, mut missing) = (listed(), BTreeSet::new());
    for method in methods() {
        let answer = client.call(&method).await;
        if method.scope == Scope::Internal {
            assert_eq!(
                explain(&answer.unwrap_err()),
                "PermissionDenied REASON_SCOPE_MISSING: \
                 the credential does not hold the scope internal",
                "{}",
                method.name
            );
            // Whether it is there, only other services can see.
            listed.remove(&method.name);
            continue;
        }
        let Err(status) = answer else { continue };
        match status.code() {
            Code::Unimplemented => {
                assert_eq!(reason(&status), "REASON_NOT_IMPLEMENTED", "{}", method.name);
                missing.insert(method.name);
            }
            Code::InvalidArgument | Code::NotFound => {}
            _ => panic!("{} to an empty message: {}", method.name, explain(&status)),
        }
    }
    let unlisted: Vec<_> = missing.difference(&listed).collect();
    assert!(unlisted.is_empty(), "CHANGELOG.md does not list as missing: {unlisted:#?}");
    let answering: Vec<_> = listed.difference(&missing).collect();
    assert!(answering.is_empty(), "CHANGELOG.md lists as missing what answers: {answering:#?}");
}

fn listed() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("CHANGELOG.md");
    let changelog = fs::read_to_string(path).unwrap();
    let is_heading = |line: &str| line.trim_start_matches('#').trim() == HEADING;
    let lines = changelog.lines().skip_while(|line| !is_heading(line)).skip(1);
    let section = lines.take_while(|line| !line.starts_with('#'));
    section.filter_map(|line| line.strip_prefix("- ")).map(str::to_owned).collect()
}
