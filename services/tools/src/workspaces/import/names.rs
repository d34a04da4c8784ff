//! What the names in an archive may be. No I/O.

use std::{
    ffi::{CString, OsStr},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use crate::files::DEEPEST;

/// The longest path that the kernel takes.
pub const LONGEST_PATH: usize = 4_095;
const LONGEST_NAME: usize = 255;

/// The names that a path is made of, if it stays where it begins.
pub fn names(path: &[u8]) -> Result<Vec<CString>, &'static str> {
    if path.first() == Some(&b'/') {
        return Err("is an absolute path");
    }
    if path.len() > LONGEST_PATH {
        return Err("is longer than 4095 bytes");
    }
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => continue,
            b".." => return Err("leads out"),
            name if name.len() > LONGEST_NAME => return Err("has a name of more than 255 bytes"),
            name => names.push(CString::new(name).map_err(|_| "has a NUL")?),
        }
    }
    match names.len() > DEEPEST {
        true => Err("is more than 128 directories deep"),
        false => Ok(names),
    }
}

/// Whether what a link says leads nowhere above the tree. Where it really leads is up to the
/// kernel, whenever somebody follows it.
pub fn stays_inside(parents: &[CString], link: &[u8]) -> bool {
    let path = Path::new(OsStr::from_bytes(link));
    let mut depth = parents.len();
    path.is_relative()
        && path.iter().all(|name| match name.as_bytes() {
            b"." => true,
            b".." => {
                let above = depth.checked_sub(1);
                depth = above.unwrap_or_default();
                above.is_some()
            }
            _ => {
                depth += 1;
                true
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: &str) -> Result<Vec<String>, &'static str> {
        let text = |name: CString| name.into_string().unwrap();
        names(path.as_bytes()).map(|names| names.into_iter().map(text).collect())
    }

    #[test]
    fn a_path_is_taken_apart_or_refused() {
        let of = |names: &[&str]| -> Result<Vec<String>, &'static str> {
            Ok(names.iter().map(|name| name.to_string()).collect())
        };
        assert_eq!(parts("a/b"), of(&["a", "b"]));
        assert_eq!(parts("./a//b/./"), of(&["a", "b"]));
        assert_eq!(parts("..a/b.."), of(&["..a", "b.."]));
        assert_eq!(parts(""), of(&[]));
        assert_eq!(parts("/a"), Err("is an absolute path"));
        assert_eq!(parts("a/../b"), Err("leads out"));
        assert_eq!(parts(".."), Err("leads out"));
        assert_eq!(parts("a\0b"), Err("has a NUL"));
        assert_eq!(parts(&"a/".repeat(DEEPEST)).unwrap().len(), DEEPEST);
        assert!(parts(&"a/".repeat(DEEPEST + 1)).is_err());
        assert!(parts(&"a".repeat(LONGEST_NAME)).is_ok());
        assert!(parts(&"a".repeat(LONGEST_NAME + 1)).is_err());
        assert!(parts(&"a/".repeat(LONGEST_PATH)).is_err());
    }

    #[test]
    fn a_link_stays_where_it_is_or_is_refused() {
        let parents = names(b"a/b").unwrap();
        for (link, inside) in [
            ("file", true),
            ("../file", true),
            ("../../file", true),
            ("../../../file", false),
            ("c/../../../file", true),
            ("c/../../../../file", false),
            ("./././../../x", true),
            ("/etc", false),
        ] {
            assert_eq!(stays_inside(&parents, link.as_bytes()), inside, "{link}");
        }
    }
}
