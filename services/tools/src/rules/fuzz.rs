//! Any rules about anything: patterns match what a slow and simple matcher says they do, and
//! the rule that wins is the one that beats all others one by one.
#![allow(clippy::unwrap_used, reason = "what fails here is what was looked for")]

mod glob;

use std::cmp::Ordering;

use self::glob::Glob;
use super::*;
use crate::fuzz::pieces;

/// More would only be slower.
const MOST_RULES: usize = 6;

/// Lines: the tool, what it acts on, and rules, which are a letter for the action, one for the
/// source, the permission, a tab and the pattern.
pub fn rules(data: &[u8]) {
    let pieces = pieces(data, 2 + MOST_RULES);
    let [tool, text, rules @ ..] = &pieces[..] else { return };
    let rules: Vec<Rule> = rules.iter().filter_map(|line| parse(line)).collect();
    for rule in &rules {
        patterns_match_what_they_say(&rule.permission, tool);
        patterns_match_what_they_say(&rule.pattern, text);
    }
    the_winner_beats_all_others(&rules, tool, &Subject::Text(text.clone()));
    the_winner_beats_all_others(&rules, tool, &Subject::Command(Line::split(text)));
}

fn parse(line: &str) -> Option<Rule> {
    let mut letters = line.chars();
    let action = match letters.next()? {
        'a' => Action::Allow,
        'k' => Action::Ask,
        'd' => Action::Deny,
        _ => Action::Unspecified,
    };
    let source = match letters.next()? {
        'p' => Source::Parent,
        'm' => Source::Manifest,
        's' => Source::Session,
        'j' => Source::Project,
        _ => Source::Unspecified,
    };
    let (permission, pattern) = letters.as_str().split_once('\t')?;
    Some(Rule {
        permission: permission.into(),
        pattern: pattern.into(),
        action: action.into(),
        source: source.into(),
    })
}

fn patterns_match_what_they_say(pattern: &str, text: &str) {
    let ours = Pattern::new(pattern).and_then(|pattern| pattern.matches(text, &Effort::default()));
    let Some(glob) = Glob::parse(pattern) else { return };
    let theirs = glob.matches(text.as_bytes());
    match ours {
        // `/**/` also stands for one slash, which nothing else does.
        Ok(true) if !theirs => assert!(pattern.contains("**"), "{pattern:?} matches {text:?}"),
        Ok(ours) => assert_eq!(ours, theirs, "{pattern:?} and {text:?}"),
        // Too long, too deep, or a range that is none.
        Err(_) => (),
    }
}

/// Each rule that matches a part is compared with the one that won.
fn the_winner_beats_all_others(rules: &[Rule], tool: &str, subject: &Subject) {
    let Ok(decided) = decide(rules, tool, subject, &Effort::default()) else {
        let restricts = |rule: &Rule| rule.action() != Action::Allow;
        assert!(rules.iter().any(restricts), "an allow that cannot be read decided");
        return;
    };
    assert_eq!(decided.len(), subject.parts().map_or(1, <[Part]>::len));
    for (at, winner) in decided.iter().enumerate() {
        for rule in rules {
            let alone = decide(std::slice::from_ref(rule), tool, subject, &Effort::default());
            let matched = alone.ok().and_then(|mut alone| alone.swap_remove(at));
            match (winner, matched) {
                (None, Some(_)) => panic!("{rule:?} matches, and nothing was decided"),
                (Some(winner), Some(matched)) => {
                    let order = compare(rule, &matched, winner.rule, winner, subject);
                    assert_ne!(order, Ordering::Greater, "{rule:?} beats {:?}", winner.rule);
                }
                (_, None) => (),
            }
        }
    }
}

/// Which of two rules weighs more, in the words of the contract.
fn compare(
    one: &Rule,
    one_matched: &Matched<'_>,
    other: &Rule,
    other_matched: &Matched<'_>,
    subject: &Subject,
) -> Ordering {
    let is_final = |rule: &Rule| rule.action() == Action::Deny && source(rule) <= Source::Manifest;
    let named = |rule: &Rule| !rule.permission.contains(['*', '?', '[', '{', '\\']);
    let literal = |pattern: &str| Pattern::new(pattern).unwrap().literal;
    let exact = |rule: &Rule| Pattern::new(&rule.pattern).unwrap().is_exact();
    let whole = |rule: &Rule, matched: &Matched<'_>| {
        exact(rule)
            && match subject {
                Subject::Text(_) => false,
                Subject::Command(line) => std::ptr::eq(matched.compared, line.text.as_str()),
            }
    };
    let answers = |rule: &Rule| {
        rule.action() == Action::Allow && exact(rule) && source(rule) >= Source::Session
    };
    let strength = |rule: &Rule| match rule.action() {
        Action::Deny => 3,
        _ if answers(rule) => 2,
        Action::Ask => 1,
        _ => 0,
    };
    is_final(one)
        .cmp(&is_final(other))
        .then(named(one).cmp(&named(other)))
        .then(literal(&one.permission).cmp(&literal(&other.permission)))
        .then(whole(one, one_matched).cmp(&whole(other, other_matched)))
        .then_with(|| match whole(one, one_matched) {
            true => Ordering::Equal,
            false => literal(&one.pattern).cmp(&literal(&other.pattern)),
        })
        .then(strength(one).cmp(&strength(other)))
        .then(source(other).cmp(&source(one)))
}
