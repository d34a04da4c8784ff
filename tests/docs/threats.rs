use std::{fs, path::Path};

/// A claim that a test shows something is worth as much as the test.
#[test]
fn every_test_that_the_threat_model_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut code = String::new();
    for part in ["chassis", "deploy/local", "proto", "services", "tests"] {
        read(&root.join(part), &mut code);
    }
    let page = fs::read_to_string(root.join("docs/threat-model.md")).unwrap();
    let quoted = page.split('`').skip(1).step_by(2);
    let is_test = |text: &&str| {
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        text.bytes().all(is_plain) && text.matches('_').count() >= 2
    };
    // Names of pieces of the contract look the same, and have no more than one underscore.
    let named: Vec<&str> = quoted.filter(is_test).collect();
    assert!(named.len() > 40, "{named:?}");
    let missing = named.into_iter().filter(|name| !code.contains(&format!("fn {name}(")));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0]);
}

fn read(dir: &Path, code: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            read(&path, code);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}
