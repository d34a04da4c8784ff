//! Which rule decides about a call. Decides and touches nothing.

use std::{cmp::Reverse, collections::BTreeSet, iter};

use proto::tools::v1::{
    Rule,
    rule::{Action, Source},
};

use crate::pattern::{Malformed, Pattern};

/// What a call does, as far as rules can tell.
#[derive(Debug)]
pub enum Subject {
    /// Nothing narrower than the tool itself: patterns are compared with its name.
    Tool,
    Command(Command),
}

/// A rule that matches, and what of the call it matched.
#[derive(Debug)]
pub struct Matched<'a> {
    pub rule: &'a Rule,
    pub compared: &'a str,
}

/// A rule that may restrict the call and cannot be read.
#[derive(Debug)]
pub struct NotUnderstood<'a>(pub &'a Rule);

/// The rule that decides, if any does.
///
/// A deny of a parent or a manifest is final. Otherwise the most specific rule wins: one that
/// names the tool before one with a wildcard, and the longer literal part before the shorter.
/// Of equals, a deny wins over an ask and an ask over an allow; except that an allow for
/// exactly this, in a session or a project, is the answer to what was asked.
pub fn decide<'a>(
    rules: &'a [Rule],
    tool: &'a str,
    subject: &'a Subject,
) -> Result<Option<Matched<'a>>, NotUnderstood<'a>> {
    let mut best: Option<(Rank, Matched<'a>)> = None;
    for rule in rules {
        let ranked = match rank(rule, tool, subject) {
            Ok(Some(ranked)) => ranked,
            Ok(None) => continue,
            // What an unreadable rule would allow is not missed by anybody but its author.
            Err(Malformed) if rule.action() == Action::Allow => continue,
            Err(Malformed) => return Err(NotUnderstood(rule)),
        };
        if best.as_ref().is_none_or(|(rank, _)| ranked.0 > *rank) {
            best = Some(ranked);
        }
    }
    Ok(best.map(|(_, matched)| matched))
}

/// In order of weight.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_final: bool,
    names_tool: bool,
    permission: usize,
    pattern: usize,
    strength: Strength,
    authority: Reverse<Source>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    Allow,
    Ask,
    Answered,
    Deny,
}

/// How much a rule weighs in this call, if it matches.
fn rank<'a>(
    rule: &'a Rule,
    tool: &'a str,
    subject: &'a Subject,
) -> Result<Option<(Rank, Matched<'a>)>, Malformed> {
    let names_tool = rule.permission == tool;
    let permission = Pattern::new(&rule.permission)?;
    if !names_tool && !permission.matches(tool)? {
        return Ok(None);
    }
    let pattern = Pattern::new(&rule.pattern)?;
    let compared = match (subject, rule.action()) {
        (_, Action::Unspecified) => return Err(Malformed),
        (Subject::Tool, _) => pattern.find([tool])?,
        (Subject::Command(command), Action::Allow) => command.all_of_it(&pattern)?,
        (Subject::Command(command), Action::Ask | Action::Deny) => command.any_of_it(&pattern)?,
    };
    let Some(compared) = compared else { return Ok(None) };
    let source = source(rule);
    let strength = match rule.action() {
        Action::Deny => Strength::Deny,
        Action::Allow if source >= Source::Session && pattern.is_exact() => Strength::Answered,
        Action::Ask => Strength::Ask,
        Action::Allow | Action::Unspecified => Strength::Allow,
    };
    let rank = Rank {
        is_final: strength == Strength::Deny && source <= Source::Manifest,
        names_tool,
        permission: permission.literal,
        pattern: pattern.literal,
        strength,
        authority: Reverse(source),
    };
    Ok(Some((rank, Matched { rule, compared })))
}

/// Where a rule comes from. One that does not say so is the manifest's, which is the strict
/// way to read it.
pub fn source(rule: &Rule) -> Source {
    match rule.source() {
        Source::Unspecified => Source::Manifest,
        source => source,
    }
}

/// A command line, as far as it can be understood without being a shell. What a rule allows
/// must be all that happens, and what a rule denies must not happen anywhere in it; so where
/// we cannot tell, the one matches too little and the other too much. It is still no wall:
/// that is the sandbox.
#[derive(Debug)]
pub struct Command {
    text: String,

    /// One program and its arguments, and nothing that a shell would do more about it.
    is_plain: bool,

    /// All that may be a command in it, with the whole of it first.
    parts: Vec<String>,
}

/// What ends one command and begins another.
const SEPARATORS: &[char] = &[';', '&', '|', '(', ')', '{', '}', '`', '\n', '\r'];

/// What makes a shell do more than start the program.
const SPECIAL: &[char] = &[';', '&', '|', '(', ')', '{', '}', '`', '\n', '\r', '<', '>', '$'];

/// Words that stand before a command.
const INTRODUCTIONS: &[&str] = &["!", "do", "elif", "else", "if", "then", "time", "until", "while"];

impl Command {
    pub fn new(text: &str) -> Command {
        // Quotes and backslashes can hide a name, and blanks can come in any number.
        let bare = text.replace(['\'', '"', '\\'], "");
        let mut parts = BTreeSet::new();
        for text in [text, &bare] {
            for ends in [&[][..], SEPARATORS, SPECIAL] {
                parts.extend(text.split(ends).map(spaced));
            }
        }
        let introduced = parts.iter().map(|part| without_introduction(part).to_owned());
        parts = introduced.chain(parts.iter().cloned()).collect();
        parts.remove("");
        let parts = iter::once(text.to_owned()).chain(parts).collect();
        Command { text: text.to_owned(), is_plain: !text.trim().contains(SPECIAL), parts }
    }

    /// A pattern with wildcards says nothing about what else a shell would do.
    fn all_of_it(&self, pattern: &Pattern) -> Result<Option<&str>, Malformed> {
        let whole = (pattern.is_anything() || pattern.is_exact()).then_some(self.text.as_str());
        let plain = self.is_plain.then_some(self.text.trim());
        pattern.find(whole.into_iter().chain(plain))
    }

    fn any_of_it(&self, pattern: &Pattern) -> Result<Option<&str>, Malformed> {
        pattern.find(self.parts.iter().map(String::as_str))
    }
}

/// The words of a text with one blank between them.
fn spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The command behind words like `then` and assignments to variables.
fn without_introduction(text: &str) -> &str {
    let mut rest = text;
    while let Some((word, more)) = rest.split_once(' ') {
        let assigns = word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|next| next == '_' || next.is_ascii_alphanumeric())
        });
        if !assigns && !INTRODUCTIONS.contains(&word) {
            break;
        }
        rest = more;
    }
    rest
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn rule(text: &str) -> Rule {
        let mut words = text.splitn(4, ' ');
        let source = match words.next().unwrap() {
            "parent" => Source::Parent,
            "manifest" => Source::Manifest,
            "session" => Source::Session,
            "project" => Source::Project,
            _ => Source::Unspecified,
        };
        let action = match words.next().unwrap() {
            "allow" => Action::Allow,
            "ask" => Action::Ask,
            "deny" => Action::Deny,
            _ => Action::Unspecified,
        };
        let (permission, pattern) = (words.next().unwrap().into(), words.next().unwrap().into());
        Rule { permission, pattern, action: action.into(), source: source.into() }
    }

    fn shown(rules: &[&str], tool: &str, subject: Subject) -> String {
        let parsed: Vec<Rule> = rules.iter().map(|text| rule(text)).collect();
        match decide(&parsed, tool, &subject) {
            Ok(Some(Matched { rule, compared })) => {
                let at = parsed.iter().position(|other| std::ptr::eq(other, rule)).unwrap();
                format!("{} <- {compared:?}", rules[at])
            }
            Ok(None) => "undecided".into(),
            Err(NotUnderstood(rule)) => format!("not understood: {:?}", rule.pattern),
        }
    }

    #[test]
    fn the_most_specific_rule_wins() {
        let cases: &[(&[&str], &str)] = &[
            (&[], "ls"),
            (&["manifest allow bash *"], "ls; rm x"),
            (&["manifest allow * *", "session ask bash *"], "ls"),
            (&["manifest allow bash *", "session ask * ls*"], "ls"),
            (&["manifest allow ba* *", "session ask * ls*"], "ls"),
            (&["manifest ask bash *", "session allow bash git *"], "git log"),
            (&["manifest ask bash git *", "session allow bash git log"], "git log"),
            (&["manifest allow bash git *", "session deny bash git push *"], "git push origin"),
            (&["session deny bash git *", "project allow bash git log*"], "git log"),
            (&["manifest deny bash git *", "session allow bash git log"], "git log"),
            (&["parent deny * *", "manifest allow bash ls"], "ls"),
            (&["parent deny * *", "manifest deny bash ls"], "ls"),
            (&["unsaid deny bash *", "session allow bash ls"], "ls"),
            // Equals.
            (&["project allow bash ls *", "project ask bash ls *"], "ls -l"),
            (&["session ask bash ls *", "session deny bash ls *"], "ls -l"),
            (&["project ask bash ls *", "session ask bash ls *"], "ls -l"),
            (&["session ask bash ls *", "manifest allow bash ls *"], "ls -l"),
            (&["manifest ask bash ls", "session allow bash ls"], "ls"),
            (&["manifest ask bash ls", "manifest allow bash ls"], "ls"),
            (&["session deny bash ls", "session allow bash ls"], "ls"),
            // About something else, or about nothing that anybody understands.
            (&["manifest deny write *", "manifest deny bash make"], "ls"),
            (&["manifest deny bash ls ["], "ls -l"),
            (&["manifest allow bash ls ["], "ls -l"),
            (&["manifest deny [ *"], "ls -l"),
            (&["manifest maybe bash *"], "ls"),
        ];
        let mut lines = String::new();
        for (rules, command) in cases {
            let winner = shown(rules, "bash", Subject::Command(Command::new(command)));
            lines += &format!("{command} [{}]: {winner}\n", rules.join(", "));
        }
        expect![[r#"
            ls []: undecided
            ls; rm x [manifest allow bash *]: manifest allow bash * <- "ls; rm x"
            ls [manifest allow * *, session ask bash *]: session ask bash * <- "ls"
            ls [manifest allow bash *, session ask * ls*]: manifest allow bash * <- "ls"
            ls [manifest allow ba* *, session ask * ls*]: manifest allow ba* * <- "ls"
            git log [manifest ask bash *, session allow bash git *]: session allow bash git * <- "git log"
            git log [manifest ask bash git *, session allow bash git log]: session allow bash git log <- "git log"
            git push origin [manifest allow bash git *, session deny bash git push *]: session deny bash git push * <- "git push origin"
            git log [session deny bash git *, project allow bash git log*]: project allow bash git log* <- "git log"
            git log [manifest deny bash git *, session allow bash git log]: manifest deny bash git * <- "git log"
            ls [parent deny * *, manifest allow bash ls]: parent deny * * <- "ls"
            ls [parent deny * *, manifest deny bash ls]: manifest deny bash ls <- "ls"
            ls [unsaid deny bash *, session allow bash ls]: unsaid deny bash * <- "ls"
            ls -l [project allow bash ls *, project ask bash ls *]: project ask bash ls * <- "ls -l"
            ls -l [session ask bash ls *, session deny bash ls *]: session deny bash ls * <- "ls -l"
            ls -l [project ask bash ls *, session ask bash ls *]: session ask bash ls * <- "ls -l"
            ls -l [session ask bash ls *, manifest allow bash ls *]: session ask bash ls * <- "ls -l"
            ls [manifest ask bash ls, session allow bash ls]: session allow bash ls <- "ls"
            ls [manifest ask bash ls, manifest allow bash ls]: manifest ask bash ls <- "ls"
            ls [session deny bash ls, session allow bash ls]: session deny bash ls <- "ls"
            ls [manifest deny write *, manifest deny bash make]: undecided
            ls -l [manifest deny bash ls []: not understood: "ls ["
            ls -l [manifest allow bash ls []: undecided
            ls -l [manifest deny [ *]: not understood: "*"
            ls [manifest maybe bash *]: not understood: "*"
        "#]].assert_eq(&lines);
    }

    #[test]
    fn a_tool_without_a_command_is_compared_by_its_name() {
        let mut lines = String::new();
        for rule in [
            "manifest deny memory_* *",
            "manifest deny memory_write memory_write",
            "manifest deny memory_write memory_*",
            "manifest deny * memory_write",
            "manifest deny memory_write user",
            "manifest deny memory_read *",
        ] {
            lines += &format!("{rule}: {}\n", shown(&[rule], "memory_write", Subject::Tool));
        }
        expect![[r#"
            manifest deny memory_* *: manifest deny memory_* * <- "memory_write"
            manifest deny memory_write memory_write: manifest deny memory_write memory_write <- "memory_write"
            manifest deny memory_write memory_*: manifest deny memory_write memory_* <- "memory_write"
            manifest deny * memory_write: manifest deny * memory_write <- "memory_write"
            manifest deny memory_write user: undecided
            manifest deny memory_read *: undecided
        "#]].assert_eq(&lines);
    }

    /// What a rule allows is narrow, and what it denies is wide.
    #[test]
    fn commands_are_compared_carefully() {
        let matched = |action: &str, pattern: &str, command: &str| {
            let rule = format!("session {action} bash {pattern}");
            shown(&[&rule], "bash", Subject::Command(Command::new(command))) != "undecided"
        };
        let cases = [
            ("git *", "git log"),
            ("git *", "  git log\n"),
            ("git *", "git commit -m 'fine'"),
            ("git *", "git log; rm -rf ."),
            ("git *", "git log && rm -rf ."),
            ("git *", "git log\nrm -rf ."),
            ("git *", "git log > file"),
            ("git *", "git log $(rm -rf .)"),
            ("git *", "git log `rm -rf .`"),
            ("git *", "git log \"$(rm -rf .)\""),
            ("git log; ls", "git log; ls"),
            ("git log; ls", "git log; ls; rm x"),
            ("*", "git log; rm x"),
            ("rm *", "rm x"),
            ("rm *", "cd a && rm x"),
            ("rm *", "cd a\nrm x"),
            ("rm *", "rm $HOME"),
            ("rm *", "echo $(rm x)"),
            ("rm *", "echo `rm x`"),
            ("rm *", "rm  \t x"),
            ("rm *", "r'm' x"),
            ("rm *", "\\rm x"),
            ("rm *", "for f in a b; do rm $f; done"),
            ("rm *", "if true; then rm x; fi"),
            ("rm *", "A=b C= rm x"),
            ("rm *", "farm x"),
        ];
        let mut lines = String::new();
        for (pattern, command) in cases {
            let [allow, ask, deny] =
                ["allow", "ask", "deny"].map(|action| matched(action, pattern, command));
            assert_eq!(ask, deny);
            lines += &format!("{pattern} <- {command:?}: allow {allow}, deny {deny}\n");
        }
        expect![[r#"
            git * <- "git log": allow true, deny true
            git * <- "  git log\n": allow true, deny true
            git * <- "git commit -m 'fine'": allow true, deny true
            git * <- "git log; rm -rf .": allow false, deny true
            git * <- "git log && rm -rf .": allow false, deny true
            git * <- "git log\nrm -rf .": allow false, deny true
            git * <- "git log > file": allow false, deny true
            git * <- "git log $(rm -rf .)": allow false, deny true
            git * <- "git log `rm -rf .`": allow false, deny true
            git * <- "git log \"$(rm -rf .)\"": allow false, deny true
            git log; ls <- "git log; ls": allow true, deny true
            git log; ls <- "git log; ls; rm x": allow false, deny false
            * <- "git log; rm x": allow true, deny true
            rm * <- "rm x": allow true, deny true
            rm * <- "cd a && rm x": allow false, deny true
            rm * <- "cd a\nrm x": allow false, deny true
            rm * <- "rm $HOME": allow false, deny true
            rm * <- "echo $(rm x)": allow false, deny true
            rm * <- "echo `rm x`": allow false, deny true
            rm * <- "rm  \t x": allow true, deny true
            rm * <- "r'm' x": allow false, deny true
            rm * <- "\\rm x": allow false, deny true
            rm * <- "for f in a b; do rm $f; done": allow false, deny true
            rm * <- "if true; then rm x; fi": allow false, deny true
            rm * <- "A=b C= rm x": allow false, deny true
            rm * <- "farm x": allow false, deny false
        "#]]
        .assert_eq(&lines);
    }
}
