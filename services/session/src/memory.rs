//! What is kept across sessions: scopes, names, and what one may say. No I/O.

use chassis::Tenant;
use jiff_sqlx::Timestamp as Time;
use serde::{Deserialize, Serialize};

/// How many memories one scope of one owner may hold.
pub const MOST: i64 = 500;

const MAX_BODY: usize = 64 * 1024;
const MAX_DESCRIPTION: usize = 200;
const MAX_NAME: usize = 64;

/// Whose memories: everything below is for them alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Shelf {
    pub tenant: Tenant,
    pub scope: Scope,
    /// The subject of user memories, the project of the others.
    pub owner: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    User,
    Project,
}

impl Scope {
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::User => "user",
            Scope::Project => "project",
        }
    }

    pub fn parse(text: &str) -> Option<Scope> {
        match text {
            "user" => Some(Scope::User),
            "project" => Some(Scope::Project),
            _ => None,
        }
    }
}

/// What is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    pub name: String,
    pub description: String,
    pub r#type: String,
    pub body: String,
}

/// What is found.
#[derive(Debug)]
pub struct Memory {
    pub name: String,
    pub description: String,
    pub r#type: String,
    pub body: String,
    pub updated_at: Time,
}

/// A line of the index that enters a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub scope: Scope,
    pub name: String,
    pub description: String,
}

/// Says what is wrong with a note, if anything is: the field and why.
pub fn check(note: &Note) -> Result<(), (&'static str, String)> {
    let of_type = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-')
    };
    let rules = [
        (!is_name(&note.name), "name", "expected kebab-case, 1 to 64 characters of a-z, 0-9 and -"),
        (
            note.description.trim().is_empty(),
            "description",
            "is missing: it is what the index shows",
        ),
        (
            note.description.chars().count() > MAX_DESCRIPTION,
            "description",
            "at most 200 characters",
        ),
        (note.description.contains(['\n', '\r']), "description", "must be one line"),
        (
            !(1..=MAX_NAME).contains(&note.r#type.len()) || !note.r#type.bytes().all(of_type),
            "type",
            "expected 1 to 64 characters of a-z, 0-9, _ and -",
        ),
        (note.body.len() > MAX_BODY, "body", "at most 64 KiB"),
        (note.description.contains('\0'), "description", "must not contain NUL"),
        (note.body.contains('\0'), "body", "must not contain NUL"),
    ];
    match rules.into_iter().find(|(wrong, ..)| *wrong) {
        Some((_, field, problem)) => Err((field, problem.to_owned())),
        None => Ok(()),
    }
}

/// Words of `[a-z0-9]` with single hyphens between them.
pub fn is_name(text: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty()
            && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (1..=MAX_NAME).contains(&text.len()) && text.split('-').all(word)
}

/// What a memory is about when nobody says: as its scope.
pub fn type_or_default(scope: Scope, text: &str) -> String {
    match text {
        "" => scope.as_str().to_owned(),
        text => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kebab_case() {
        for name in ["a", "prefers-tabs", "v2-api", &"x".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "-a", "a-", "a--b", "A", "a_b", "a b", "ä", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn a_note_that_breaks_a_limit_says_which() {
        let note = Note {
            name: "likes-tea".into(),
            description: "Drinks tea, never coffee".into(),
            r#type: "user".into(),
            body: "Green, without sugar.".into(),
        };
        assert_eq!(check(&note), Ok(()));
        let wrong = [
            ("name", Note { name: "Likes tea".into(), ..note.clone() }),
            ("description", Note { description: " ".into(), ..note.clone() }),
            ("description", Note { description: "two\nlines".into(), ..note.clone() }),
            ("description", Note { description: "x".repeat(201), ..note.clone() }),
            ("description", Note { description: "a\0".into(), ..note.clone() }),
            ("type", Note { r#type: "a b".into(), ..note.clone() }),
            ("body", Note { body: "x".repeat(65_537), ..note.clone() }),
            ("body", Note { body: "\0".into(), ..note.clone() }),
        ];
        for (field, note) in wrong {
            assert_eq!(check(&note).unwrap_err().0, field, "{note:?}");
        }
    }
}
