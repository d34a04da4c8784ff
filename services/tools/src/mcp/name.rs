//! What a server's tools are called here. Decides and touches nothing.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

/// The longest name of a tool.
const LONGEST: usize = 64;

/// The names of a server's tools, by what the server calls them.
///
/// It depends on which tools there are and not on their order. A tool that is the only one to
/// become a name gets it, or else the one that is called exactly so; all others are told apart
/// by a digest. A name that `taken` says is somebody else's is nobody's here.
pub fn names<'a>(
    server: &str,
    tools: impl IntoIterator<Item = &'a str>,
    taken: impl Fn(&str) -> bool,
) -> BTreeMap<&'a str, String> {
    let mut wanted: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for tool in tools {
        let tools = wanted.entry(plain(server, tool)).or_default();
        if !tools.contains(&tool) {
            tools.push(tool);
        }
    }
    let mut names = BTreeMap::new();
    for (name, tools) in &wanted {
        for tool in tools {
            let alone = tools.len() == 1 || *name == format!("{server}_{tool}");
            let name = match alone && name.len() <= LONGEST && !taken(name) {
                true => name.clone(),
                false => marked(name, tool),
            };
            names.insert(*tool, name);
        }
    }
    names
}

/// With an underscore for whatever cannot be in a name.
fn plain(server: &str, tool: &str) -> String {
    let fits = |character: char| match character.to_ascii_lowercase() {
        character @ ('a'..='z' | '0'..='9') => character,
        _ => '_',
    };
    format!("{server}_{}", tool.chars().map(fits).collect::<String>())
}

/// A name that no other tool has, however long or alike they are.
fn marked(name: &str, tool: &str) -> String {
    let digest = format!("{:x}", Sha256::digest(tool.as_bytes()));
    let mark = &digest[..8];
    let kept = name.len().min(LONGEST - mark.len() - 1);
    format!("{}_{mark}", &name[..kept])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_ours_to_choose() {
        let long = "x".repeat(70);
        let mut lines = String::new();
        for tools in [
            &["echo", "get-sum", "getTinyImage"][..],
            &["get-sum", "get_sum", "get.sum"],
            &["Echo", "ECHO"],
            &["écho", "日本"],
            &[long.as_str()],
            &["write", "read"],
            &["a", "a"],
            &[""],
        ] {
            let names = names("memory", tools.iter().copied(), |name| name == "memory_write");
            lines += &format!("{names:?}\n");
        }
        expect![[r#"
            {"echo": "memory_echo", "get-sum": "memory_get_sum", "getTinyImage": "memory_gettinyimage"}
            {"get-sum": "memory_get_sum_2fb224d8", "get.sum": "memory_get_sum_bc2dff04", "get_sum": "memory_get_sum"}
            {"ECHO": "memory_echo_23c3bebf", "Echo": "memory_echo_8335e4c9"}
            {"écho": "memory__cho", "日本": "memory___"}
            {"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": "memory_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx_c71bd109"}
            {"read": "memory_read", "write": "memory_write_10fd874b"}
            {"a": "memory_a"}
            {"": "memory_"}
        "#]]
        .assert_eq(&lines);
    }

    proptest! {
        #[test]
        fn every_tool_has_one_name_and_no_two_the_same(
            tools in prop::collection::btree_set(r"[aA_.\-é]{0,4}|a{60,70}|.{0,8}", 0..12),
            taken in "s_[a_]{0,3}",
        ) {
            let list: Vec<&str> = tools.iter().map(String::as_str).collect();
            let forth = names("s", list.iter().copied(), |name| name == taken);
            let back = names("s", list.iter().rev().copied(), |name| name == taken);
            prop_assert_eq!(&forth, &back);
            prop_assert_eq!(forth.len(), tools.len());
            let different: BTreeSet<&String> = forth.values().collect();
            prop_assert_eq!(different.len(), tools.len());
            for name in forth.values() {
                prop_assert!((1..=LONGEST).contains(&name.len()));
                prop_assert!(name.starts_with("s_") && *name != taken);
                let fits = |byte: u8| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'
                };
                prop_assert!(name.bytes().all(fits));
            }
        }
    }
}
