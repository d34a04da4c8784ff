use super::{Workspace, first_names};

/// How many names of a directory are looked at, and how many of them are worth naming.
const MOST_NAMES: usize = 10_000;
const MOST_SUGGESTIONS: usize = 3;

/// How alike names must be, from 0 to 1.
const ALIKE: f64 = 0.8;

impl Workspace {
    /// Paths beside one that is not there whose names are much like it, the likeliest first.
    pub fn nearby(&self, path: &str) -> Vec<String> {
        let trimmed = path.trim_end_matches('/');
        let (parent, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
        let Ok(directory) = self.open_directory(parent) else { return Vec::new() };
        let Ok(names) = first_names(directory, b"", MOST_NAMES) else { return Vec::new() };
        let names = names.into_iter().filter_map(|name| String::from_utf8(name).ok());
        let prefix = if parent.is_empty() { String::new() } else { format!("{parent}/") };
        alike(name, names).into_iter().map(|name| format!("{prefix}{name}")).collect()
    }
}

fn alike(wanted: &str, names: impl Iterator<Item = String>) -> Vec<String> {
    let wanted = wanted.to_lowercase();
    let mut rated: Vec<_> = names
        .map(|name| (strsim::jaro_winkler(&wanted, &name.to_lowercase()), name))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .collect();
    rated.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    rated.truncate(MOST_SUGGESTIONS);
    rated.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_much_alike_are_suggested() {
        let names = ["main.rs", "Main.rs", "lib.rs", "mian.rs", "README.md"];
        let alike = |wanted| alike(wanted, names.map(String::from).into_iter());
        assert_eq!(alike("main.r"), ["main.rs", "Main.rs", "mian.rs"]);
        assert_eq!(alike("readme.md"), ["README.md"]);
        assert!(alike("Cargo.toml").is_empty());
    }
}
