//! Everything about a turn, a task or a session.

use chassis::Caller;
use serde_json::{json, value::RawValue};
use sqlx::PgConnection;

use super::{
    Subject,
    log::{self, Derived, Extent},
    pack::Pack,
    requests,
};
use crate::{
    api::{export, snapshot},
    error::Result,
    evidence::{FAMILIES, Fact, Failures, Signal, State, Tally, artifacts, timeline},
    host::Host,
    store::{
        events::PAGE_BYTES,
        evidence::{self as store, Selection},
        messages::{self, Window},
        seals, sessions, turns,
    },
};

/// What was written beside the log.
#[derive(Debug, Default)]
struct Counts {
    turns: u64,
    messages: u64,
    failures: u64,
    artifacts: u64,
    /// Sequences that retention removed.
    removed: i64,
    /// Turns without an event, whose log is elsewhere.
    without_log: bool,
}

/// Names of events that may point to something.
const POINTING: [&str; 7] = [
    "output.%",
    "artifact.changed",
    "tool.result",
    "tool.failed",
    "hook.completed",
    "snapshot.updated",
    "process.%",
];

pub async fn write(
    host: &Host,
    caller: &Caller,
    subject: &Subject,
    pack: &mut Pack,
) -> Result<Vec<Signal>> {
    let (mut counts, mut tally) = (Counts::default(), Tally::default());
    let mut state = snapshot::one_state(&host.db).await?;
    let db: &mut PgConnection = &mut state;
    let mut extents = Vec::new();
    for selection in &subject.selections {
        let last = summary(db, caller, selection, pack, &mut counts).await?;
        extents.push((selection, Extent::of(db, selection, last).await?));
    }
    for selection in &subject.selections {
        said(db, selection, pack, &mut counts).await?;
    }
    for (selection, extent) in &extents {
        log::write(db, selection, *extent, pack, &mut tally).await?;
        counts.removed += extent.removed();
        counts.without_log |= !extent.any;
    }
    let mut derived = Derived { db, extents: &extents, pack };
    derived.pass("timeline", &[], |fact, _| timeline(fact).into_iter().collect()).await?;
    let mut failures = Failures::default();
    let take = |fact: &Fact, _: &RawValue| failures.take(fact).into_iter().collect();
    counts.failures = derived.pass("tool_failures", &Failures::TYPES, take).await?;
    let pointed = |fact: &Fact, _: &RawValue| {
        artifacts(fact).into_iter().map(|artifact| json!(artifact)).collect()
    };
    counts.artifacts = derived.pass("artifacts", &POINTING, pointed).await?;
    for (section, names) in FAMILIES {
        let told = |fact: &Fact, event: &RawValue| {
            // A profile is what a request was routed by, and no task.
            match section == "tasks" && fact.r#type == "task.profile.resolved" {
                true => vec![],
                false => vec![json!({ "event": event })],
            }
        };
        derived.pass(section, names, told).await?;
    }
    state.commit().await?;
    let requested = requests::write(host, caller, subject, pack, &tally).await?;
    let mut signals = signals(&counts, &tally, pack);
    signals.push(requested);
    Ok(signals)
}

/// What there is, session by session and turn by turn. Returns where the log ends.
async fn summary(
    db: &mut PgConnection,
    caller: &Caller,
    selection: &Selection,
    pack: &mut Pack,
    counts: &mut Counts,
) -> Result<i64> {
    const SECTION: &str = "summary";
    let session = sessions::get(&mut *db, &caller.tenant, selection.session_id).await?;
    let last = session.last_sequence;
    let (workspace, parent) = (session.workspace_id, session.parent_id.clone());
    let first = seals::first_sequence(&mut *db, selection.session_id).await?;
    let line = json!({
        "session": export::session_line(session, first), "workspaceId": workspace,
        "parentSessionId": parent,
    });
    pack.line(Some(db), SECTION, &line).await?;
    let mut after = String::new();
    loop {
        let page = store::turns(&mut *db, selection, &after, export::PAGE).await?;
        let Some(end) = page.last() else { return Ok(last) };
        after = end.id.to_string();
        for turn in page {
            counts.turns += 1;
            let line = json!({
                "turn": {
                    "sessionId": selection.session_id, "turnId": turn.id,
                    "messageId": turn.message_id, "status": turn.status, "subject": turn.subject,
                    "submittedAt": turn.submitted_at.to_jiff(), "view": turn.view.0,
                }
            });
            pack.line(Some(db), SECTION, &line).await?;
        }
    }
}

/// The messages, which no seal covers: the log names them, and holds what agents said.
async fn said(
    db: &mut PgConnection,
    selection: &Selection,
    pack: &mut Pack,
    counts: &mut Counts,
) -> Result<()> {
    let id = selection.session_id;
    let mut after = i64::MIN;
    let mut left = selection.turns.iter();
    loop {
        let (page, more) = match selection.whole {
            true => {
                let window = Window::After(after, export::PAGE);
                messages::page(db, id, window, true, PAGE_BYTES).await?
            }
            false => match left.next() {
                Some(turn) => (messages::past(db, id, *turn, false).await?, true),
                None => return Ok(()),
            },
        };
        after = page.last().and_then(|message| message.position).unwrap_or(after);
        let ids: Vec<_> = page.iter().map(|message| message.turn_id).collect();
        let mut turns = turns::of(&mut *db, id, &ids).await?;
        for message in page {
            let turn = turns.iter().position(|turn| turn.message_id == message.id);
            let turn = turn.map(|index| turns.swap_remove(index));
            let message = export::message_line(message, turn)?;
            counts.messages += 1;
            let line = json!({ "sessionId": id, "message": message });
            pack.line(Some(db), "messages", &line).await?;
        }
        if !more {
            return Ok(());
        }
    }
}

/// What the pack has, and honestly what it has not.
fn signals(counts: &Counts, tally: &Tally, pack: &Pack) -> Vec<Signal> {
    let of = |names: &[&str]| tally.count(names);
    let family = |section: &str, otherwise: &str| {
        let names = FAMILIES.iter().find(|(name, _)| *name == section).map(|(_, names)| *names);
        let profiles = if section == "tasks" { of(&["task.profile.resolved"]) } else { 0 };
        Signal::of(section, of(names.unwrap_or_default()) - profiles, otherwise)
    };
    let sealed = &pack.sealed;
    let mut events = Signal::of("events", tally.events, "");
    if counts.removed > 0 || counts.without_log {
        events.state = State::MissingCorrelation;
        events.reason = match counts.removed {
            0 => "the log of an imported turn stayed where it ran".to_owned(),
            removed => format!("retention removed {removed} sequences, see the gaps of the log"),
        };
    }
    let mut seals = Signal::of("seals", sealed.seals, "");
    if sealed.unsealed_events > 0 || sealed.seals == 0 {
        seals.reason = format!(
            "{} events are not sealed: seals are made when a turn ends",
            sealed.unsealed_events
        );
        if sealed.seals == 0 {
            seals.state = State::MissingCorrelation;
        }
    }
    let replays = tally.references.get("replayed").copied().unwrap_or_default();
    let reviews = tally.references.get("review_exported").copied().unwrap_or_default();
    let steps = "a model was asked without a word of how it was chosen";
    vec![
        Signal::of("runtime_summary", counts.turns.max(1), ""),
        Signal::of("messages", counts.messages, "nothing was said"),
        events,
        seals,
        Signal::of("timeline", tally.events, "there are no events"),
        Signal::of("tool_failures", counts.failures, "no tool failed"),
        Signal::of("artifacts", counts.artifacts, "nothing is kept beside the log"),
        family("routing", "no model was asked").unless_missing(tally.unrouted(), steps),
        family("permissions", "no tool was to be used")
            .unless_missing(tally.unpermitted, "calls have a result and no permission"),
        family("decisions", "nobody was asked"),
        family("sandbox", "nothing ran in the sandbox"),
        family("hooks", "no hook was asked"),
        family("limits", "no limit was met"),
        family("costs", "nothing cost anything")
            .unless_missing(tally.uncharged(), "answers have no cost on record"),
        family("context", "no prompt was put together"),
        family("processes", "no process was started"),
        family("subagents", "no agent was spawned"),
        family("tasks", "it belongs to no task or job"),
        Signal::of("verification", replays, "nobody replayed it"),
        Signal::of("reviews", reviews, "nobody asked for a review"),
        Signal::new(
            "output_contents",
            State::Unsupported,
            0,
            "outputs are named by ref and digest, and read from the tools service",
        ),
        Signal::new(
            "workspace_files",
            State::Unsupported,
            0,
            "files are named by path, and read from the tools service",
        ),
    ]
}
