//! What an agent is confined to, whatever rules allow. Decides and touches nothing.

use proto::tools::v1::Permissions;
use serde_json::Value;

use crate::{
    catalog::About,
    command::Part,
    host::Host,
    pattern::{Effort, Pattern},
    rules::is_covered,
    subject::{self, Subject},
};

/// A call that is outside of a scope: what is, and one sentence about it.
#[derive(Debug, PartialEq, Eq)]
pub struct Outside {
    pub compared: String,
    pub reason: String,
}

/// Whether the call leaves what the agent is confined to. What cannot be compared confines to
/// nothing at all.
pub fn check(
    permissions: &Permissions,
    about: &About,
    input: &Value,
    subject: &Subject,
    effort: &Effort,
) -> Result<(), Outside> {
    let outside = |compared: &str, reason| Err(Outside { compared: compared.to_owned(), reason });
    match subject {
        Subject::Command(line) => {
            // A command may touch any path, and nobody can tell which.
            if !permissions.paths.is_empty() && !permissions.paths.iter().any(|path| is_all(path)) {
                let reason = format!("{} may touch any path, this agent only some", about.name);
                return outside(&about.name, reason);
            }
            let commands = Patterns::new(&permissions.commands, effort);
            match line.parts.iter().find(|part| !commands.cover(part)) {
                Some(part) => {
                    let reason = format!("this agent may not run {:?}", part.brief());
                    outside(part.text(), reason)
                }
                None => Ok(()),
            }
        }
        Subject::Text(path) if about.path.is_some() => {
            let paths = Patterns::new(&permissions.paths, effort);
            // A folder is what is in it.
            match paths.include(path) || paths.include(&format!("{path}/")) {
                true => Ok(()),
                false => outside(path, format!("this agent may not touch {path:?}")),
            }
        }
        Subject::Text(name) => {
            let Some(url) = about.url.and_then(|field| input[field].as_str()) else {
                return Ok(());
            };
            let within = |host: Host| permissions.hosts.iter().any(|grant| host.is_in(grant));
            match subject::host(url).is_ok_and(within) {
                true => Ok(()),
                false => outside(name, format!("this agent may not reach {name:?}")),
            }
        }
    }
}

fn is_all(path: &str) -> bool {
    matches!(path, "*" | "**")
}

/// A list of patterns, of which the empty one means no restriction.
struct Patterns<'a> {
    unrestricted: bool,
    patterns: Vec<Pattern>,
    effort: &'a Effort,
}

impl Patterns<'_> {
    fn new<'a>(texts: &[String], effort: &'a Effort) -> Patterns<'a> {
        let patterns = texts.iter().filter_map(|text| Pattern::new(text).ok()).collect();
        Patterns { unrestricted: texts.is_empty(), patterns, effort }
    }

    fn include(&self, text: &str) -> bool {
        let matches = |pattern: &Pattern| pattern.matches(text, self.effort).unwrap_or(false);
        self.unrestricted || self.patterns.iter().any(matches)
    }

    fn cover(&self, part: &Part) -> bool {
        let covers = |pattern: &Pattern| is_covered(pattern, part, self.effort).unwrap_or(false);
        self.unrestricted || self.patterns.iter().any(covers)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;
    use crate::{catalog::Effect, subject::Astray};

    fn tool(field: &'static str) -> About {
        let of = |name| (name == field).then_some(name);
        About {
            name: "tool".into(),
            description: "".into(),
            input_schema: Value::Null,
            effect: Effect::Changes,
            command: of("command"),
            path: of("path"),
            url: of("url"),
        }
    }

    fn verdict(field: &'static str, input: Value, permissions: &Permissions) -> String {
        let about = tool(field);
        match Subject::new(&about, &input) {
            Err(Astray(reason)) => reason,
            Ok(subject) => match check(permissions, &about, &input, &subject, &Effort::default()) {
                Ok(()) => "inside".into(),
                Err(Outside { compared, reason }) => format!("{reason} ({compared})"),
            },
        }
    }

    fn list(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn paths_are_those_below_the_globs() {
        let mut lines = String::new();
        for (paths, path) in [
            (&[][..], json!("anything")),
            (&["src/**", "*.md"], json!("src/a/b.rs")),
            (&["src/**", "*.md"], json!("./docs/../src//a")),
            (&["src/**", "*.md"], json!("README.md")),
            (&["src/**", "*.md"], json!("src")),
            (&["src/**", "*.md"], json!("src/../secret")),
            (&["src/**", "*.md"], json!("srcs/a")),
            (&["src/**", "*.md"], json!("../src/a")),
            (&["src/**", "*.md"], json!("/src/a")),
            (&["src/**", "*.md"], json!(".")),
            (&["src/**", "*.md"], json!(null)),
            (&["**"], json!(null)),
            (&["["], json!("src/a")),
        ] {
            let permissions = Permissions { paths: list(paths), ..Permissions::default() };
            let verdict = verdict("path", json!({ "path": path }), &permissions);
            lines += &format!("{path} in {paths:?}: {verdict}\n");
        }
        expect![[r#"
            "anything" in []: inside
            "src/a/b.rs" in ["src/**", "*.md"]: inside
            "./docs/../src//a" in ["src/**", "*.md"]: inside
            "README.md" in ["src/**", "*.md"]: inside
            "src" in ["src/**", "*.md"]: inside
            "src/../secret" in ["src/**", "*.md"]: this agent may not touch "secret" (secret)
            "srcs/a" in ["src/**", "*.md"]: this agent may not touch "srcs/a" (srcs/a)
            "../src/a" in ["src/**", "*.md"]: "../src/a" leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b`
            "/src/a" in ["src/**", "*.md"]: "/src/a" leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b`
            "." in ["src/**", "*.md"]: this agent may not touch "." (.)
            null in ["src/**", "*.md"]: this agent may not touch "." (.)
            null in ["**"]: inside
            "src/a" in ["["]: this agent may not touch "src/a" (src/a)
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn hosts_are_those_that_were_granted() {
        let mut lines = String::new();
        for (hosts, url) in [
            (&[][..], "https://example.com"),
            (&["example.com"], "https://example.com/a"),
            (&["example.com", "*.example.org"], "https://a.example.org"),
            (&["example.com"], "https://example.com.evil.net"),
            (&["example.com"], "https://example.com@evil.net"),
            (&["example.com"], "nowhere"),
        ] {
            let permissions = Permissions { hosts: list(hosts), ..Permissions::default() };
            let verdict = verdict("url", json!({ "url": url }), &permissions);
            lines += &format!("{url} in {hosts:?}: {verdict}\n");
        }
        expect![[r#"
            https://example.com in []: this agent may not reach "example.com" (example.com)
            https://example.com/a in ["example.com"]: inside
            https://a.example.org in ["example.com", "*.example.org"]: inside
            https://example.com.evil.net in ["example.com"]: this agent may not reach "example.com.evil.net" (example.com.evil.net)
            https://example.com@evil.net in ["example.com"]: this agent may not reach "evil.net" (evil.net)
            nowhere in ["example.com"]: "nowhere" is no URL with a host
        "#]].assert_eq(&lines);
    }

    #[test]
    fn every_part_of_a_command_is_one_of_those() {
        let mut lines = String::new();
        for (commands, command) in [
            (&[][..], "rm x"),
            (&["git *", "ls"], "git log; ls"),
            (&["git *", "ls"], "ls -l"),
            (&["git *", "ls"], "git log > x"),
            (&["git *", "ls", "> log"], "git log > log"),
            (&["git *", "ls"], "$(echo git) log"),
            (&["git *", "ls"], "timeout 5 git log"),
            (&["git *", "timeout *"], "timeout 5 git log"),
            (&["git *", "timeout *"], "timeout 5 rm x"),
            (&["*"], "$x"),
            (&["["], "["),
        ] {
            let permissions = Permissions { commands: list(commands), ..Permissions::default() };
            let verdict = verdict("command", json!({ "command": command }), &permissions);
            lines += &format!("{command:?} in {commands:?}: {verdict}\n");
        }
        expect![[r#"
            "rm x" in []: inside
            "git log; ls" in ["git *", "ls"]: inside
            "ls -l" in ["git *", "ls"]: this agent may not run "ls -l" (ls -l)
            "git log > x" in ["git *", "ls"]: this agent may not run "> x" (> x)
            "git log > log" in ["git *", "ls", "> log"]: inside
            "$(echo git) log" in ["git *", "ls"]: this agent may not run "echo git" (echo git)
            "timeout 5 git log" in ["git *", "ls"]: this agent may not run "timeout 5 git log" (timeout 5 git log)
            "timeout 5 git log" in ["git *", "timeout *"]: inside
            "timeout 5 rm x" in ["git *", "timeout *"]: this agent may not run "rm x" (rm x)
            "$x" in ["*"]: inside
            "[" in ["["]: this agent may not run "[" ([)
        "#]].assert_eq(&lines);
    }
}
