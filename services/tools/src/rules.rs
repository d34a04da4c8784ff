//! Which rule decides about what a call does. Decides and touches nothing.

use std::cmp::Reverse;

use proto::tools::v1::{
    Rule,
    rule::{Action, Source},
};

use crate::{
    command::{Line, Part},
    pattern::{Effort, Pattern, Problem},
    subject::Subject,
};

/// A rule that matches, and what of the call it matched.
#[derive(Debug)]
pub struct Matched<'a> {
    pub rule: &'a Rule,
    pub compared: &'a str,

    /// Whether it matches depends on what the shell fills in.
    pub maybe: bool,
}

/// A rule that may restrict the call and cannot be compared with it.
#[derive(Debug)]
pub struct NotCompared<'a>(pub &'a Rule, pub Problem);

/// The rule that decides about each thing that a call does, if any does: one for each part of a
/// command, and otherwise a single one.
///
/// A deny of a parent or a manifest is final. Otherwise the most specific rule wins: one that
/// names the tool before one with a wildcard, and the longer literal part before the shorter.
/// Of equals, a deny wins over an ask and an ask over an allow; except that an allow for
/// exactly this, in a session or a project, is the answer to what was asked.
pub fn decide<'a>(
    rules: &'a [Rule],
    tool: &'a str,
    subject: &'a Subject,
    effort: &Effort,
) -> Result<Vec<Option<Matched<'a>>>, NotCompared<'a>> {
    let mut best: Vec<Option<(Rank, Matched<'a>)>> = Vec::new();
    best.resize_with(subject.parts().map_or(1, <[Part]>::len), || None);
    for rule in rules {
        let ranked = match rank(rule, tool, subject, effort) {
            Ok(ranked) => ranked,
            // What such a rule would allow is not missed by anybody but its author.
            Err(_) if rule.action() == Action::Allow => continue,
            Err(problem) => return Err(NotCompared(rule, problem)),
        };
        for (best, ranked) in best.iter_mut().zip(ranked) {
            if let Some((rank, _)) = &ranked
                && best.as_ref().is_none_or(|(best, _)| rank > best)
            {
                *best = ranked;
            }
        }
    }
    Ok(best.into_iter().map(|best| best.map(|(_, matched)| matched)).collect())
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    Allow,
    Ask,
    Answered,
    Deny,
}

/// How much a rule weighs about each thing that the call does, where it matches.
fn rank<'a>(
    rule: &'a Rule,
    tool: &'a str,
    subject: &'a Subject,
    effort: &Effort,
) -> Result<Vec<Option<(Rank, Matched<'a>)>>, Problem> {
    let names_tool = rule.permission == tool;
    let permission = Pattern::new(&rule.permission)?;
    if !names_tool && !permission.matches(tool, effort)? {
        return Ok(vec![]);
    }
    let pattern = Pattern::new(&rule.pattern)?;
    let matches = match (subject, rule.action()) {
        (_, Action::Unspecified) => return Err(Problem::Malformed),
        (Subject::Text(text), _) => {
            vec![pattern.matches(text, effort)?.then_some(Match::Text(text))]
        }
        (Subject::Command(line), Action::Allow) => allows(&pattern, line, effort)?,
        (Subject::Command(line), Action::Ask | Action::Deny) => restricts(&pattern, line, effort)?,
    };
    let source = source(rule);
    let strength = match rule.action() {
        Action::Deny => Strength::Deny,
        Action::Allow if source >= Source::Session && pattern.is_exact() => Strength::Answered,
        Action::Ask => Strength::Ask,
        Action::Allow | Action::Unspecified => Strength::Allow,
    };
    let weigh = |found: Match<'a>| {
        let (compared, literal, maybe) = match found {
            // Nothing is more specific than all of it, letter by letter.
            Match::Line(text) if pattern.is_exact() => (text, usize::MAX, false),
            Match::Line(text) | Match::Text(text) => (text, pattern.literal, false),
            Match::Maybe(text) => (text, pattern.literal, true),
        };
        let rank = Rank {
            is_final: strength == Strength::Deny && source <= Source::Manifest,
            names_tool,
            permission: permission.literal,
            pattern: literal,
            strength,
            authority: Reverse(source),
        };
        (rank, Matched { rule, compared, maybe })
    };
    Ok(matches.into_iter().map(|found| found.map(weigh)).collect())
}

/// What a pattern matches.
#[derive(Clone, Copy)]
enum Match<'a> {
    /// All of the command line.
    Line(&'a str),
    Text(&'a str),

    /// Something that the shell may make this text.
    Maybe(&'a str),
}

/// What is allowed must be all that can happen.
fn allows<'a>(
    pattern: &Pattern,
    line: &'a Line,
    effort: &Effort,
) -> Result<Vec<Option<Match<'a>>>, Problem> {
    let exactly = |text: &str| Ok(pattern.is_exact() && pattern.matches(text, effort)?);
    let line_text = line.text.as_str();
    if exactly(line_text)? || exactly(line_text.trim())? {
        return Ok(vec![Some(Match::Line(line_text)); line.parts.len()]);
    }
    let find =
        |part: &'a Part| Ok(is_covered(pattern, part, effort)?.then(|| Match::Text(part.text())));
    line.parts.iter().map(find).collect()
}

/// Whether a part is certain to be what the pattern says. A wildcard says nothing about what
/// is unclear, except when it says that anything may happen.
pub fn is_covered(pattern: &Pattern, part: &Part, effort: &Effort) -> Result<bool, Problem> {
    let clear = part.unclear.is_none() || pattern.is_exact();
    Ok(pattern.is_anything() || clear && pattern.covers(part.shown(), effort)?)
}

/// What is denied must not happen anywhere, however it is written.
fn restricts<'a>(
    pattern: &Pattern,
    line: &'a Line,
    effort: &Effort,
) -> Result<Vec<Option<Match<'a>>>, Problem> {
    let text = line.text.as_str();
    let trimmed = text.trim();
    let whole = pattern.matches(text, effort)?
        || (trimmed.len() < text.len() && pattern.matches(trimmed, effort)?);
    if whole && pattern.is_exact() {
        return Ok(vec![Some(Match::Line(text)); line.parts.len()]);
    }
    let find = |part: &'a Part| {
        for text in part.texts() {
            if pattern.matches(&text.text, effort)? {
                return Ok(Some(Match::Text(part.text())));
            }
        }
        for text in part.texts().iter().filter(|text| text.certain < text.text.len()) {
            if pattern.touches(text, effort)? {
                return Ok(Some(Match::Maybe(part.text())));
            }
        }
        Ok(None)
    };
    let found = line.parts.iter().map(find).collect::<Result<Vec<_>, Problem>>()?;
    // A pattern like `*curl*|*sh` is about no single part.
    match whole && found.iter().all(Option::is_none) {
        true => Ok(vec![Some(Match::Line(text)); line.parts.len()]),
        false => Ok(found),
    }
}

/// Where a rule comes from. One that does not say so is the manifest's, which is the strict
/// way to read it.
pub fn source(rule: &Rule) -> Source {
    match rule.source() {
        Source::Unspecified => Source::Manifest,
        source => source,
    }
}

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
#[cfg(test)]
mod tests;
