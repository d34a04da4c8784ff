//! What a call acts on, as far as its input tells. Decides and touches nothing.

use serde_json::Value;
use url::Url;

use crate::{
    catalog::About,
    command::{Line, Part},
    host::Host,
    outputs,
};

/// What rules are compared with.
#[derive(Debug)]
pub enum Subject {
    /// A path, a host, or the tool's name when it acts on nothing narrower.
    Text(String),
    Command(Line),
}

/// The tool acts on nothing that it could act on: why.
#[derive(Debug, PartialEq, Eq)]
pub struct Astray(pub String);

impl Subject {
    pub fn new(about: &About, input: &Value) -> Result<Subject, Astray> {
        let field = |name: Option<&'static str>| name.and_then(|name| input[name].as_str());
        if let Some(command) = field(about.command) {
            return Ok(Subject::Command(Line::split(command)));
        }
        if about.path.is_some() {
            return normalize(field(about.path).unwrap_or_default()).map(Subject::Text);
        }
        if let Some(url) = field(about.url) {
            return host(url).map(|host| Subject::Text(host.name));
        }
        Ok(Subject::Text(about.name.clone().into_owned()))
    }

    pub fn parts(&self) -> Option<&[Part]> {
        match self {
            Subject::Text(_) => None,
            Subject::Command(line) => Some(&line.parts),
        }
    }

    /// All of it, as a person would read it.
    pub fn text(&self) -> &str {
        match self {
            Subject::Text(text) => text,
            Subject::Command(line) => &line.text,
        }
    }
}

/// A path relative to the workspace without anything in it that leads nowhere; the workspace
/// itself is `.`. Links are not followed: this is about names, and what is behind a name may
/// change until it is used.
pub fn normalize(path: &str) -> Result<String, Astray> {
    let hint = "paths are relative to the workspace: `a/b`, not `/workspace/a/b`";
    let astray = || Astray(format!("{path:?} leads out of the workspace; {hint}"));
    // Whose it is, is looked at when it is read.
    if outputs::named(path).is_some() {
        return Ok(path.to_owned());
    }
    if path.starts_with('/') {
        return Err(astray());
    }
    let mut names: Vec<&str> = vec![];
    for name in path.split('/') {
        match name {
            "" | "." => (),
            ".." => drop(names.pop().ok_or_else(astray)?),
            name => names.push(name),
        }
    }
    Ok(if names.is_empty() { ".".to_owned() } else { names.join("/") })
}

/// The host that a URL leads to.
pub fn host(url: &str) -> Result<Host, Astray> {
    let host = Url::parse(url).ok().and_then(|url| Host::of(&url));
    host.ok_or_else(|| Astray(format!("{url:?} is no URL with a host")))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_is_written_in_one_way_or_refused() {
        let mut lines = String::new();
        for path in [
            "src/lib.rs",
            "./src//lib.rs",
            "src/../lib.rs",
            "a/b/../../c",
            "",
            ".",
            "src/..",
            "..",
            "src/../../x",
            "/etc/passwd",
            "src/",
            "a/./b/",
            "...",
            "a\\..\\b",
        ] {
            lines += &format!("{path:?}: {:?}\n", normalize(path));
        }
        expect![[r#"
            "src/lib.rs": Ok("src/lib.rs")
            "./src//lib.rs": Ok("src/lib.rs")
            "src/../lib.rs": Ok("lib.rs")
            "a/b/../../c": Ok("c")
            "": Ok(".")
            ".": Ok(".")
            "src/..": Ok(".")
            "..": Err(Astray("\"..\" leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b`"))
            "src/../../x": Err(Astray("\"src/../../x\" leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b`"))
            "/etc/passwd": Err(Astray("\"/etc/passwd\" leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b`"))
            "src/": Ok("src")
            "a/./b/": Ok("a/b")
            "...": Ok("...")
            "a\\..\\b": Ok("a\\..\\b")
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn a_url_without_a_host_leads_nowhere() {
        assert_eq!(host("https://Example.com:8/a").unwrap().to_string(), "example.com:8");
        for url in ["data:text/plain,x", "example.com", "https://", "http://a..b/"] {
            let reason = format!("{url:?} is no URL with a host");
            assert_eq!(host(url), Err(Astray(reason)));
        }
    }

    proptest! {
        #[test]
        fn no_path_leads_out(path in r"(\.|\.\.|/|a|b|\\|é){0,12}") {
            if let Ok(normal) = normalize(&path) {
                prop_assert!(!normal.starts_with('/'));
                prop_assert!(normal.split('/').all(|name| !name.is_empty() && name != ".."));
                prop_assert_eq!(normalize(&normal), Ok(normal.clone()));
            }
        }
    }
}
