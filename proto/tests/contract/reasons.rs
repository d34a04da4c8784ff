//! Comments name errors, and errors are part of the contract: what they say has to be so.

use proto::error::v1::Reason;
use tonic::Code;

use crate::comments::{CONTRACTS, comment, everything, files};

#[test]
fn every_reason_names_its_code() {
    let codes: Vec<String> = (0..=16).map(|code| name(Code::from_i32(code))).collect();
    for value in CONTRACTS.get_enum_by_name("windlass.error.v1.Reason").unwrap().values() {
        let comment = comment(&value.parent_file(), value.path());
        let quoted = comment.split('`').skip(1).step_by(2);
        let named: Vec<_> = quoted.filter(|word| codes.iter().any(|code| code == word)).collect();
        let reason = Reason::try_from(value.number()).unwrap();
        assert_eq!(named, [name(reason.code())], "{}: {comment}", value.name());
    }
}

#[test]
fn every_reason_that_a_comment_names_exists() {
    for file in files() {
        for word in everything(&file).split(|c: char| !c.is_ascii_uppercase() && c != '_') {
            let known = !word.starts_with("REASON_") || Reason::from_str_name(word).is_some();
            assert!(known, "{} speaks of {word}", file.name());
        }
    }
}

#[test]
fn every_service_and_every_call_has_a_comment() {
    for service in files().flat_map(|file| file.services().collect::<Vec<_>>()) {
        let file = service.parent_file();
        assert_ne!(comment(&file, service.path()), "", "{}", service.full_name());
        for method in service.methods() {
            assert_ne!(comment(&file, method.path()), "", "{}", method.full_name());
        }
    }
}

/// The code as gRPC spells it: `INVALID_ARGUMENT`.
fn name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}
