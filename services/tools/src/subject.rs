//! What a call acts on, as far as its input tells. Decides and touches nothing.

use serde_json::Value;
use url::Url;

use crate::{
    catalog::About,
    command::{Line, Part},
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

/// A host and a port, in the one way to write them.
#[derive(Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub port: u16,
}

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
            return Host::of(url).map(|host| Subject::Text(host.name));
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

impl Host {
    pub fn of(url: &str) -> Result<Host, Astray> {
        let astray = || Astray(format!("{url:?} is no URL with a host"));
        let url = Url::parse(url).map_err(|_| astray())?;
        let name = url.host_str().ok_or_else(astray)?;
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let port = url.port_or_known_default().ok_or_else(astray)?;
        Ok(Host { name, port })
    }

    /// Whether it is one of `host`, `*.host` or `host:port`.
    pub fn is_in(&self, grant: &str) -> bool {
        let (name, port) = match grant.rsplit_once(':') {
            Some((name, port)) if !name.is_empty() && !port.contains(']') => match port.parse() {
                Ok(port) => (name, Some(port)),
                Err(_) => return false,
            },
            _ => (grant, None),
        };
        let name = name.to_ascii_lowercase();
        let named = match name.strip_prefix("*.") {
            Some(parent) => {
                let child = self.name.strip_suffix(parent);
                child.is_some_and(|child| child.len() > 1 && child.ends_with('.'))
            }
            None => self.name == name,
        };
        named && port.is_none_or(|port: u16| port == self.port)
    }
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
    fn a_host_is_compared_by_what_is_reached() {
        let mut lines = String::new();
        for (url, grants) in [
            ("https://Example.com/a", &["example.com", "*.example.com", "example.com:443"][..]),
            ("https://example.com.:8080", &["example.com", "example.com:8080", "example.com:443"]),
            (
                "http://a.b.example.com",
                &["*.example.com", "example.com", "*.com", "*.b.example.com"],
            ),
            ("http://evilexample.com", &["*.example.com", "example.com"]),
            ("http://example.com@evil.net/", &["example.com", "evil.net"]),
            ("http://example.com%2eevil.net/", &["example.com", "example.com.evil.net"]),
            ("http://0x7f.1/", &["127.0.0.1", "0x7f.1"]),
            ("http://[::1]:80/", &["[::1]", "[::1]:80", "[::1]:81"]),
            ("http://example.com", &["*", "*.", "", ":80", "example.com:x"]),
            ("data:text/plain,x", &["*"]),
            ("example.com", &["example.com"]),
        ] {
            let host = Host::of(url);
            lines += &format!("{url}: {host:?}\n");
            for grant in grants {
                let within = host.as_ref().is_ok_and(|host| host.is_in(grant));
                lines += &format!("    {grant:?} {within}\n");
            }
        }
        expect![[r#"
            https://Example.com/a: Ok(Host { name: "example.com", port: 443 })
                "example.com" true
                "*.example.com" false
                "example.com:443" true
            https://example.com.:8080: Ok(Host { name: "example.com", port: 8080 })
                "example.com" true
                "example.com:8080" true
                "example.com:443" false
            http://a.b.example.com: Ok(Host { name: "a.b.example.com", port: 80 })
                "*.example.com" true
                "example.com" false
                "*.com" true
                "*.b.example.com" true
            http://evilexample.com: Ok(Host { name: "evilexample.com", port: 80 })
                "*.example.com" false
                "example.com" false
            http://example.com@evil.net/: Ok(Host { name: "evil.net", port: 80 })
                "example.com" false
                "evil.net" true
            http://example.com%2eevil.net/: Ok(Host { name: "example.com.evil.net", port: 80 })
                "example.com" false
                "example.com.evil.net" true
            http://0x7f.1/: Ok(Host { name: "127.0.0.1", port: 80 })
                "127.0.0.1" true
                "0x7f.1" false
            http://[::1]:80/: Ok(Host { name: "[::1]", port: 80 })
                "[::1]" true
                "[::1]:80" true
                "[::1]:81" false
            http://example.com: Ok(Host { name: "example.com", port: 80 })
                "*" false
                "*." false
                "" false
                ":80" false
                "example.com:x" false
            data:text/plain,x: Err(Astray("\"data:text/plain,x\" is no URL with a host"))
                "*" false
            example.com: Err(Astray("\"example.com\" is no URL with a host"))
                "example.com" false
        "#]]
        .assert_eq(&lines);
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
