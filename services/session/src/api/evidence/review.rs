//! A pack for a person: Markdown, line by line, and beside each line what it was made of.

use std::collections::HashMap;

use chassis::Caller;
use serde_json::{Value, json, value::RawValue};
use sqlx::PgConnection;

use super::{
    Subject,
    log::{Derived, Extent},
    pack::Pack,
};
use crate::{
    api::{export, snapshot},
    error::Result,
    evidence::{Fact, Failures, Signal, State, change, cost_line, decision_line, failure_line},
    host::Host,
    store::{evidence as store, sessions},
};

const SECTION: &str = "review";

/// Names of events in which something is decided.
const DECIDING: [&str; 7] = [
    "action.%",
    "permission.evaluated",
    "hook.completed",
    "hook.failed",
    "policy.changed",
    "sandbox.violation",
    "quota.blocked",
];

pub async fn write(
    host: &Host,
    caller: &Caller,
    subject: &Subject,
    pack: &mut Pack,
) -> Result<Vec<Signal>> {
    let mut state = snapshot::one_state(&host.db).await?;
    let db: &mut PgConnection = &mut state;
    let mut extents = Vec::new();
    for selection in &subject.selections {
        let session = sessions::get(&mut *db, &caller.tenant, selection.session_id).await?;
        extents.push((selection, Extent::of(db, selection, session.last_sequence).await?));
    }
    let removed: i64 = extents.iter().map(|(_, extent)| extent.removed()).sum();
    let scope = &subject.scope;
    title(db, pack, &format!("# Review of {} {}", scope.kind, scope.id)).await?;
    let turns = turns(db, subject, pack).await?;

    title(db, pack, "## What changed").await?;
    let mut derived = Derived { db, extents: &extents, pack };
    let mut calls = Calls::default();
    let take = |fact: &Fact, _: &RawValue| calls.take(fact).into_iter().map(shown).collect();
    let changes = derived.pass(SECTION, &Failures::TYPES, take).await?;
    nothing(&mut derived, changes).await?;

    title(derived.db, derived.pack, "## What was decided, and by whom").await?;
    let take = |fact: &Fact, _: &RawValue| decision_line(fact).into_iter().map(shown).collect();
    let decisions = derived.pass(SECTION, &DECIDING, take).await?;
    nothing(&mut derived, decisions).await?;

    title(derived.db, derived.pack, "## What failed").await?;
    let mut failures = Failures::default();
    let take = |fact: &Fact, _: &RawValue| {
        failures.take(fact).map(|failure| shown(failure_line(&failure))).into_iter().collect()
    };
    let failed = derived.pass(SECTION, &Failures::TYPES, take).await?;
    nothing(&mut derived, failed).await?;
    state.commit().await?;

    let lost = |signal: Signal| match removed {
        0 => signal,
        removed => Signal {
            state: State::MissingCorrelation,
            reason: format!("retention removed {removed} sequences of the log"),
            ..signal
        },
    };
    Ok(vec![
        Signal::of("costs", turns, "there is no turn"),
        lost(Signal::of("changes", changes, "nothing was changed by a tool")),
        lost(Signal::of("decisions", decisions, "nothing was decided")),
        lost(Signal::of("tool_failures", failed, "no tool failed")),
        Signal::new(
            "file_contents",
            State::Unsupported,
            0,
            "files are named by path; what is in them is in the workspace",
        ),
    ])
}

/// How each turn ended and what it cost.
async fn turns(db: &mut PgConnection, subject: &Subject, pack: &mut Pack) -> Result<u64> {
    title(db, pack, "## Turns and costs").await?;
    let mut count = 0;
    for selection in &subject.selections {
        let mut after = String::new();
        loop {
            let page = store::turns(&mut *db, selection, &after, export::PAGE).await?;
            let Some(last) = page.last() else { break };
            after = last.id.to_string();
            for turn in page {
                count += 1;
                let line = shown(cost_line(&turn.view.0, &turn.subject));
                pack.line(Some(db), SECTION, &line).await?;
            }
        }
    }
    Ok(count)
}

/// Calls under way, so that what they changed can be told when they end.
#[derive(Default)]
struct Calls {
    open: HashMap<String, (String, String)>,
}

impl Calls {
    fn take(&mut self, fact: &Fact) -> Option<(String, Value)> {
        let id = fact.tool_call_id.clone()?;
        match fact.r#type.as_str() {
            "tool.started" => {
                self.open.insert(id, (fact.text("tool").to_owned(), String::new()));
                None
            }
            "tool.args" => {
                if let Some((_, input)) = self.open.get_mut(&id) {
                    fact.text("inputJson").clone_into(input);
                }
                None
            }
            _ => {
                let (tool, input) = self.open.remove(&id)?;
                // What was denied changed nothing.
                match fact.text("kind") {
                    "denied" | "schema" | "unknown_tool" => None,
                    _ => change(&tool, &input, fact),
                }
            }
        }
    }
}

fn shown((text, data): (String, Value)) -> Value {
    json!({ "text": text, "data": data })
}

async fn title(db: &mut PgConnection, pack: &mut Pack, text: &str) -> Result<()> {
    for text in ["", text, ""] {
        pack.line(Some(db), SECTION, &json!({ "text": text })).await?;
    }
    Ok(())
}

async fn nothing(derived: &mut Derived<'_>, count: u64) -> Result<()> {
    match count {
        0 => derived.pack.line(Some(derived.db), SECTION, &json!({ "text": "- nothing" })).await,
        _ => Ok(()),
    }
}
