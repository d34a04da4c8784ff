use expect_test::expect;
use proptest::prelude::*;

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

fn command(text: &str) -> Subject {
    Subject::Command(Line::split(text))
}

/// The winners, one for each part.
fn shown(rules: &[&str], tool: &str, subject: Subject) -> String {
    let parsed: Vec<Rule> = rules.iter().map(|text| rule(text)).collect();
    let show = |matched: &Option<Matched<'_>>| match matched {
        Some(Matched { rule, compared, maybe }) => {
            let at = parsed.iter().position(|other| std::ptr::eq(other, *rule)).unwrap();
            format!("{} <- {}{compared:?}", rules[at], if *maybe { "maybe " } else { "" })
        }
        None => "undecided".into(),
    };
    match decide(&parsed, tool, &subject, &Effort::default()) {
        Ok(parts) => parts.iter().map(show).collect::<Vec<_>>().join("; "),
        Err(NotCompared(rule, _)) => format!("not understood: {:?}", rule.pattern),
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
        // Several parts.
        (&["manifest allow bash git *", "manifest ask bash rm *"], "git status && rm -rf x"),
        (&["manifest ask bash rm *", "session allow bash git log; rm x"], "git log; rm x"),
        (&["manifest ask bash rm *", "manifest deny bash *curl*|*wc*"], "curl x | wc; rm x"),
        (&["manifest ask bash git *", "session allow bash git log*"], "git log; ls"),
    ];
    let mut lines = String::new();
    for (rules, line) in cases {
        let winner = shown(rules, "bash", command(line));
        lines += &format!("{line} [{}]: {winner}\n", rules.join(", "));
    }
    expect![[r#"
        ls []: undecided
        ls; rm x [manifest allow bash *]: manifest allow bash * <- "ls"; manifest allow bash * <- "rm x"
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
        git status && rm -rf x [manifest allow bash git *, manifest ask bash rm *]: manifest allow bash git * <- "git status"; manifest ask bash rm * <- "rm -rf x"
        git log; rm x [manifest ask bash rm *, session allow bash git log; rm x]: session allow bash git log; rm x <- "git log; rm x"; session allow bash git log; rm x <- "git log; rm x"
        curl x | wc; rm x [manifest ask bash rm *, manifest deny bash *curl*|*wc*]: manifest deny bash *curl*|*wc* <- "curl x | wc; rm x"; manifest deny bash *curl*|*wc* <- "curl x | wc; rm x"; manifest deny bash *curl*|*wc* <- "curl x | wc; rm x"
        git log; ls [manifest ask bash git *, session allow bash git log*]: session allow bash git log* <- "git log"; undecided
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
        lines += &format!(
            "{rule}: {}\n",
            shown(&[rule], "memory_write", Subject::Text("memory_write".into()))
        );
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
    let parts = |action: &str, pattern: &str, line: &str| {
        let rule = format!("session {action} bash {pattern}");
        shown(&[&rule], "bash", command(line))
    };
    let cases = [
        ("git *", "git log"),
        ("git *", "  git   log\n"),
        ("git *", "git commit -m 'fine; really'"),
        ("git *", "git log; rm -rf ."),
        ("git *", "git log > file"),
        ("git *", "git log \"$(rm -rf .)\""),
        ("git *", "FOO=1 git log -- $BAR"),
        ("git *", "/tmp/git log"),
        ("git log; ls", "git log; ls"),
        ("git log; ls", "git log; ls; rm x"),
        ("*", "git log; $rm x"),
        ("rm [!/]*", "rm x; rm /x; rm $X; rm x$X"),
        ("rm *", "rm  \t x"),
        ("rm *", "r'm' x"),
        ("rm *", "/bin/rm x"),
        ("rm *", "for f in a b; do rm $f; done"),
        ("rm *", "farm x; echo rm x"),
        ("git push*", "git log $X; git $X; git p*; $X"),
        ("git push*", "git -C . push; git --no-pager push"),
    ];
    let mut lines = String::new();
    for (pattern, line) in cases {
        let [allow, deny] = ["allow", "deny"].map(|action| {
            let rule = format!("session {action} bash {pattern} <- ");
            parts(action, pattern, line).replace(&rule, "")
        });
        lines += &format!("{pattern} <- {line:?}\n    allow {allow}\n    deny {deny}\n");
    }
    expect![[r#"
        git * <- "git log"
            allow "git log"
            deny "git log"
        git * <- "  git   log\n"
            allow "git log"
            deny "git log"
        git * <- "git commit -m 'fine; really'"
            allow "git commit -m 'fine; really'"
            deny "git commit -m 'fine; really'"
        git * <- "git log; rm -rf ."
            allow "git log"; undecided
            deny "git log"; undecided
        git * <- "git log > file"
            allow undecided; "git log"
            deny undecided; "git log"
        git * <- "git log \"$(rm -rf .)\""
            allow undecided; undecided
            deny undecided; "git log $(rm -rf .)"
        git * <- "FOO=1 git log -- $BAR"
            allow undecided; "git log -- $BAR"
            deny undecided; "git log -- $BAR"
        git * <- "/tmp/git log"
            allow undecided
            deny "/tmp/git log"
        git log; ls <- "git log; ls"
            allow "git log; ls"; "git log; ls"
            deny "git log; ls"; "git log; ls"
        git log; ls <- "git log; ls; rm x"
            allow undecided; undecided; undecided
            deny undecided; undecided; undecided
        * <- "git log; $rm x"
            allow "git log"; "$rm x"
            deny "git log"; "$rm x"
        rm [!/]* <- "rm x; rm /x; rm $X; rm x$X"
            allow "rm x"; undecided; undecided; "rm x$X"
            deny "rm x"; undecided; "rm $X"; "rm x$X"
        rm * <- "rm  \t x"
            allow "rm x"
            deny "rm x"
        rm * <- "r'm' x"
            allow "rm x"
            deny "rm x"
        rm * <- "/bin/rm x"
            allow undecided
            deny "/bin/rm x"
        rm * <- "for f in a b; do rm $f; done"
            allow "rm $f"
            deny "rm $f"
        rm * <- "farm x; echo rm x"
            allow undecided; undecided
            deny undecided; undecided
        git push* <- "git log $X; git $X; git p*; $X"
            allow undecided; undecided; undecided; undecided
            deny undecided; maybe "git $X"; maybe "git p*"; maybe "$X"
        git push* <- "git -C . push; git --no-pager push"
            allow undecided; undecided
            deny "git -C . push"; "git --no-pager push"
    "#]]
    .assert_eq(&lines);
}

proptest! {
    /// A deny can only take away, also one that is less specific than everything else.
    #[test]
    fn what_is_denied_stays_denied(
        pattern in "(rm|git|[a-z]|\\*| ){1,4}",
        line in "(rm|git|[a-z]|;| |\\$x|'){1,10}",
    ) {
        let deny = format!("manifest deny bash {pattern}");
        let denied = |rules: &[&str]| -> Vec<bool> {
            let parsed: Vec<Rule> = rules.iter().map(|text| rule(text)).collect();
            let subject = command(&line);
            match decide(&parsed, "bash", &subject, &Effort::default()) {
                Ok(parts) => parts
                    .iter()
                    .map(|part| part.as_ref().is_some_and(|it| it.rule.action() == Action::Deny))
                    .collect(),
                Err(NotCompared(..)) => vec![],
            }
        };
        let exact = format!("session allow bash {line}");
        prop_assert_eq!(denied(&[&deny]), denied(&[&deny, "session allow bash *", &exact]));
    }
}
