//! What rules and the mode make of a call that is within its scopes. Decides and touches nothing.

use proto::tools::v1::{
    Rule,
    permissions::Mode,
    rule::{Action, Source},
};

use crate::{
    call::Call,
    catalog::{Effect, Entry},
    command::{Part, danger, reads},
    pattern::{Effort, Problem},
    rules::{self, Matched, NotCompared},
    subject::Subject,
    text::shorten,
};

/// What was decided, and everything that explains it.
pub struct Judgement<'r> {
    pub action: Action,
    pub cause: &'static str,
    pub rule: Option<&'r Rule>,

    /// What decided of all that the call does.
    pub compared: String,
    pub reason: String,
}

/// A command is judged by its worst part, so every part must be allowed for it to be allowed.
pub fn judge<'r>(
    call: &'r Call,
    entry: &Entry,
    subject: &'r Subject,
    effort: &Effort,
) -> Judgement<'r> {
    let matched = match rules::decide(&call.permissions.rules, &call.tool, subject, effort) {
        Ok(matched) => matched,
        Err(NotCompared(rule, problem)) => {
            let why = match problem {
                Problem::Malformed => "cannot be understood",
                Problem::TooMuch => "takes too long to compare with this, as do those before it",
            };
            return Judgement {
                action: Action::Deny,
                cause: "host_policy",
                rule: None,
                compared: subject.text().to_owned(),
                reason: format!("{} {why}", named(rule)),
            };
        }
    };
    let parts = subject.parts().map(|parts| parts.iter().map(Some).collect());
    let parts: Vec<Option<&Part>> = parts.unwrap_or_else(|| vec![None]);
    let judged = parts.iter().zip(matched).map(|(part, matched)| match matched {
        Some(matched) => by_rule(subject, matched),
        None => by_default(call, entry, subject, *part),
    });
    let worst = judged.reduce(|worst, next| if rank(&next) > rank(&worst) { next } else { worst });
    let worst = worst.unwrap_or_else(|| by_default(call, entry, subject, None));
    by_mode(call, entry, subject, worst)
}

/// What is worst. Of two allows, the one that no rule gave is the one to tell of.
fn rank(judgement: &Judgement<'_>) -> u8 {
    match (judgement.action, judgement.rule) {
        (Action::Allow, Some(_)) => 0,
        (Action::Allow, None) => 1,
        (Action::Ask, _) => 2,
        (Action::Deny | Action::Unspecified, _) => 3,
    }
}

fn by_rule<'r>(subject: &Subject, matched: Matched<'r>) -> Judgement<'r> {
    let Matched { rule, compared, maybe } = matched;
    let what = match compared.trim() == subject.text().trim() {
        true => "it".to_owned(),
        false => format!("{:?}", brief(compared)),
    };
    let does = match rule.action() {
        Action::Allow => format!("allows {what}"),
        Action::Ask if what == "it" => "asks a person".to_owned(),
        Action::Ask => format!("asks a person about {what}"),
        Action::Deny | Action::Unspecified => format!("denies {what}"),
    };
    let doubt = if maybe { ", which may become what the rule is about" } else { "" };
    Judgement {
        action: rule.action(),
        cause: "rule",
        rule: Some(rule),
        compared: compared.to_owned(),
        reason: format!("{} {does}{doubt}", named(rule)),
    }
}

/// What no rule decides.
fn by_default<'r>(
    call: &Call,
    entry: &Entry,
    subject: &Subject,
    part: Option<&Part>,
) -> Judgement<'r> {
    let name = &entry.about.name;
    let (action, reason) = match (call.permissions.mode(), danger_of(entry, part)) {
        (Mode::Unspecified | Mode::Default | Mode::NeverAsk, Some(danger)) => {
            (Action::Ask, format!("{danger}, and no rule decides about it"))
        }
        (Mode::Unspecified | Mode::Default | Mode::NeverAsk | Mode::Auto | Mode::Plan, _) => {
            (Action::Allow, format!("no rule decides, and {name} {}", entry.place))
        }
    };
    let compared = part.map_or(subject.text(), Part::text).to_owned();
    Judgement { action, cause: "default", rule: None, compared, reason }
}

/// What the mode makes of a decision. It only ever makes it stricter.
fn by_mode<'r>(
    call: &Call,
    entry: &Entry,
    subject: &Subject,
    judged: Judgement<'r>,
) -> Judgement<'r> {
    let mode = call.permissions.mode();
    let denied = |compared, reason| Judgement {
        action: Action::Deny,
        cause: "mode",
        rule: judged.rule,
        compared,
        reason,
    };
    match judged.action {
        Action::Deny | Action::Unspecified => return judged,
        Action::Allow | Action::Ask => (),
    }
    if mode == Mode::Plan {
        match subject.parts() {
            Some(parts) => {
                if let Some(part) = parts.iter().find(|part| !reads::only(part)) {
                    let text = part.brief();
                    let reason =
                        format!("{text:?} is not known to only read, and the mode is plan");
                    return denied(part.text().to_owned(), reason);
                }
            }
            None if matches!(entry.about.effect, Effect::Changes | Effect::Destroys) => {
                let reason = format!("{} may change something, and the mode is plan", call.tool);
                return denied(judged.compared, reason);
            }
            None => (),
        }
    }
    if judged.action == Action::Ask && (call.headless || mode == Mode::NeverAsk) {
        let reason = format!("{}, and nobody can be asked", judged.reason);
        return denied(judged.compared, reason);
    }
    judged
}

/// What the call may destroy, in words.
pub fn danger(entry: &Entry, subject: &Subject) -> Option<String> {
    match subject.parts() {
        Some(parts) => parts.iter().find_map(danger::of),
        None => danger_of(entry, None),
    }
}

fn danger_of(entry: &Entry, part: Option<&Part>) -> Option<String> {
    let about = &entry.about;
    match part {
        Some(part) => danger::of(part),
        None => {
            let destroys = about.effect == Effect::Destroys;
            destroys.then(|| format!("{} may destroy something", about.name))
        }
    }
}

fn named(rule: &Rule) -> String {
    let source = source_name(rules::source(rule));
    format!("the rule {} {:?} of the {source}", rule.permission, rule.pattern)
}

/// What is worth repeating of a text in a sentence, in characters.
const BRIEF: usize = 200;

fn brief(text: &str) -> String {
    shorten(text, BRIEF)
}

impl Part {
    /// Its text, as far as it fits into a sentence.
    pub fn brief(&self) -> String {
        brief(self.text())
    }
}

pub fn source_name(source: Source) -> &'static str {
    match source {
        Source::Parent => "parent",
        Source::Unspecified | Source::Manifest => "manifest",
        Source::Session => "session",
        Source::Project => "project",
    }
}
