//! What fuzzers run. Each of these takes any bytes and panics when something does not hold that
//! always must; `services/tools/fuzz` has the programs, and `make fuzz` runs them. What they
//! have found, and what they begin with, is run again by the tests.

pub use crate::{
    command::fuzz::commands, edit::fuzz::edits, files::fuzz::paths, mcp::fuzz::mcp,
    rules::fuzz::rules,
};

/// The pieces of an input, as text. Inputs are lines, so that people can read and write them.
pub(crate) fn pieces(data: &[u8], most: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(data);
    text.splitn(most, '\n').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn what_fuzzers_begin_with_and_what_they_found_holds() {
        type Target = fn(&[u8]);
        let targets: [(&str, Target); 5] = [
            ("commands", commands),
            ("paths", paths),
            ("rules", rules),
            ("edits", edits),
            ("mcp", mcp),
        ];
        for (name, target) in targets {
            for kind in ["corpus", "found"] {
                let folder =
                    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(kind).join(name);
                let files = fs::read_dir(&folder).into_iter().flatten();
                let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
                assert!(kind == "found" || files.len() >= 5, "{} has no seeds", folder.display());
                for file in files {
                    let data = fs::read(&file).unwrap();
                    let held = std::panic::catch_unwind(|| target(&data));
                    assert!(held.is_ok(), "{} does not hold", file.display());
                }
            }
        }
    }
}
