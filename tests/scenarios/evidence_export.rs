use std::{collections::BTreeSet, path::Path};

use local::{Fleet, Service};
use proto::session::v1::{
    EvidenceScope, ExportEvidenceRequest, evidence_scope::Scope, respond_action_request::Decision,
    subscribe_request::From,
};
use serde_json::{Value, json};
use tests::{Pack, World, check, new_key, reason};

use crate::seals::sql;

const WORK: &str = r#"think Let me see.
say I look.
call bash {"command": "echo found > out.txt; yes 0123456789 | head -c 100000"}
call read {"path": "missing.txt"}
---
say It is done."#;

#[tokio::test]
async fn evidence_export() {
    let dir = tempfile::tempdir().unwrap();
    let (private, public) = new_key(dir.path()).await;
    let plan =
        Fleet::plan().env_of(Service::Session, "EVIDENCE_KEY_FILE", private.to_str().unwrap());
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let session = client.create_careful_session().await;

    // A turn that completed: a person allowed a command, and a file was not there.
    let action = session.asks(WORK).await;
    let mut events = session.subscribe(From::Live(true)).await;
    session.respond(&action, Decision::Once).await.unwrap();
    events.until_ended(&action.turn_id).await;
    let turn = Scope::TurnId(action.turn_id.clone());
    let pack = client.evidence_of(turn.clone()).await.unwrap();
    completed(&pack, &session.id, &action.turn_id);
    let checked = pack.check(dir.path(), Some(&public)).await;
    assert_eq!(checked.code, 0, "{}", checked.said);
    assert!(checked.said.contains("VERIFIED"), "{}", checked.said);

    // One that failed, with nothing of tools, hooks and people in it.
    let failed = session.run("fail auth").await;
    let failed_turn = failed.last().unwrap().turn_id.clone();
    let other = client.evidence_of(Scope::TurnId(failed_turn.clone())).await.unwrap();
    failed_turn_says_what_it_has_not(&other, &failed_turn);
    assert_eq!(other.check(dir.path(), Some(&public)).await.code, 0);

    // What was made of it before is in it too: a replay that verified it, and a review.
    assert_eq!(pack.signal("verification").0, "not_applicable");
    assert_eq!(pack.signal("reviews").0, "not_applicable");
    let replayed = client.replay(&action.turn_id, true).await;
    assert_eq!(replayed.differences, [""; 0]);
    let review = client.review_of(turn.clone()).await.unwrap();
    let again = client.evidence_of(turn.clone()).await.unwrap();
    assert_eq!(again.signal("verification"), ("exported", 1, ""));
    assert_eq!(again.signal("reviews"), ("exported", 1, ""));
    let references: Vec<_> = again
        .section("references")
        .iter()
        .map(|line| &line["event"]["payload"])
        .map(|payload| {
            (payload["change"].as_str().unwrap(), payload["evidenceId"].as_str().unwrap())
        })
        .collect();
    let id = |pack: &Pack| pack.section("pack")[0]["evidenceId"].as_str().unwrap().to_owned();
    assert_eq!(
        references,
        [
            ("exported", id(&pack).as_str()),
            ("replayed", &replayed.session_id),
            ("review_exported", &id(&review)),
        ]
    );
    reads_well(&review, &action.turn_id);
    assert_eq!(review.check(dir.path(), Some(&public)).await.code, 0);

    // The whole session, of which no sequence is missing.
    let whole = client.evidence_of(Scope::SessionId(session.id.clone())).await.unwrap();
    let sequences: Vec<_> =
        whole.events().iter().map(|event| event["sequence"].as_i64().unwrap()).collect();
    assert_eq!(sequences, (1..=sequences.len() as i64).collect::<Vec<_>>());
    assert_eq!(whole.signal("events").1, sequences.len() as u64);
    let checked = whole.check(dir.path(), Some(&public)).await;
    assert_eq!(checked.code, 0, "{}", checked.said);

    // What is altered in the database before it is exported does not fit its seal.
    let delta = whole.events().into_iter().find(|event| event["type"] == "model.delta").unwrap();
    let sequence = delta["sequence"].as_i64().unwrap();
    sql(
        &world,
        &format!(
            "update session.event set payload = payload || '{{\"text\": \"I liee.\"}}'
             where session_id = '{}' and seq = {sequence}",
            session.id
        ),
    )
    .await;
    let altered = client.evidence_of(turn).await.unwrap().check(dir.path(), Some(&public)).await;
    assert_eq!(altered.code, 1, "{}", altered.said);
    assert!(altered.said.contains(&format!("sequence {sequence}: event {sequence} was altered")));

    // Nobody else can have any of it, and what nobody knows has no evidence.
    let stranger = world.client("umbrella").await;
    for scope in [
        Scope::TurnId(action.turn_id),
        Scope::SessionId(session.id),
        Scope::TaskId("task_nobody_knows".into()),
    ] {
        let refused = stranger.evidence_of(scope).await.unwrap_err();
        assert_eq!(reason(&refused), "REASON_EVIDENCE_NOT_FOUND");
    }
    sampled_alterations_are_found(&pack, dir.path(), &public).await;
}

fn ids<'a>(lines: impl IntoIterator<Item = &'a Value>, field: &str) -> BTreeSet<String> {
    let ids = lines.into_iter().filter_map(|line| line[field].as_str());
    ids.map(str::to_owned).collect()
}

/// Everything that a pack of a turn is to have, joined by ids.
fn completed(pack: &Pack, session_id: &str, turn_id: &str) {
    let head = pack.section("pack")[0];
    assert_eq!(head["scope"], json!({"kind": "turn", "id": turn_id}));
    assert_eq!((&head["tenantId"], &head["subject"]), (&json!("acme"), &json!("ann")));
    let events = pack.events();
    assert_eq!(ids(events.iter().copied(), "turnId"), [turn_id.to_owned()].into());
    assert_eq!(ids(events.iter().copied(), "sessionId"), [session_id.to_owned()].into());

    let summary = pack.section("summary");
    assert_eq!(summary[0]["session"]["sessionId"], session_id);
    let view = &summary[1]["turn"]["view"];
    assert_eq!((&view["status"], &view["agent"]), (&json!("completed"), &json!("careful")));

    let timeline = pack.section("timeline");
    let types: Vec<_> = timeline.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!((types[0], *types.last().unwrap()), ("turn.submitted", "turn.completed"));
    assert!(!types.contains(&"model.delta"));

    // The call that failed says which tool it was, and where it began.
    let [failure] = pack.section("tool_failures")[..] else { panic!("{pack:?}") };
    assert_eq!(failure["tool"], "read");
    assert!(failure["errorText"].as_str().unwrap().contains("missing.txt"), "{failure}");
    let started = events.iter().find(|event| event["sequence"] == failure["startedSequence"]);
    assert_eq!(started.unwrap()["toolCallId"], failure["toolCallId"]);

    // What a tool printed is beside the log, and named by its ref.
    let outputs: Vec<_> =
        pack.section("artifacts").into_iter().filter(|line| line["kind"] == "output").collect();
    assert!(!outputs.is_empty());
    let spilled = events.iter().find(|event| event["type"] == "output.spilled").unwrap();
    assert!(outputs.iter().any(|output| output["ref"] == spilled["outputRef"]));

    let said: Vec<_> =
        pack.section("messages").iter().map(|line| &line["message"]["role"]).collect();
    assert_eq!(said, [&json!("user"), &json!("assistant"), &json!("assistant")]);

    for family in ["routing", "permissions", "decisions", "sandbox", "costs", "context"] {
        let lines = pack.section(family);
        assert_eq!(pack.signal(family), ("exported", lines.len() as u64, ""), "{family}");
        for line in lines {
            assert!(events.contains(&&line["event"]), "{line}");
        }
    }
    let decided = pack.section("decisions");
    let resolved = &decided.last().unwrap()["event"];
    assert_eq!(
        (&resolved["type"], &resolved["payload"]["subject"]),
        (&json!("action.resolved"), &json!("ann"))
    );

    // The request log joins by turn, and by the requests that events speak of.
    let requests: Vec<_> =
        pack.section("model_requests").iter().map(|line| &line["request"]).collect();
    assert_eq!(requests.len(), 2);
    assert_eq!(ids(requests.iter().copied(), "turnId"), [turn_id.to_owned()].into());
    let told = ids(events.iter().copied(), "modelRequestId");
    assert_eq!(ids(requests.iter().copied(), "modelRequestId"), told);
    assert_eq!(pack.signal("model_requests"), ("exported", 2, ""));

    for absent in ["hooks", "limits", "processes", "subagents", "tasks"] {
        assert_eq!(pack.signal(absent).0, "not_applicable", "{absent}");
        assert!(!pack.signal(absent).2.is_empty(), "{absent}");
    }
    for never in ["output_contents", "workspace_files"] {
        assert_eq!(pack.signal(never).0, "unsupported");
    }
    // It was sealed before it was exported.
    let sealed = &pack.manifest()["sealed"];
    assert!(sealed["seals"].as_u64().unwrap() > 0);
    assert_eq!(sealed["unsealedEvents"], 0);
}

fn failed_turn_says_what_it_has_not(pack: &Pack, turn_id: &str) {
    let view = &pack.section("summary")[1]["turn"];
    assert_eq!((&view["turnId"], &view["status"]), (&json!(turn_id), &json!("failed")));
    let last = pack.section("timeline").pop().unwrap();
    assert_eq!(last["type"], "turn.failed");
    for absent in
        ["tool_failures", "artifacts", "permissions", "decisions", "sandbox", "hooks", "limits"]
    {
        assert_eq!(pack.signal(absent).0, "not_applicable", "{absent}");
    }
    for there in ["runtime_summary", "events", "seals", "timeline", "messages", "routing"] {
        assert_eq!(pack.signal(there).0, "exported", "{there}");
    }
    let [row] = pack.section("model_requests")[..] else { panic!("{pack:?}") };
    assert_eq!(
        (&row["request"]["status"], &row["request"]["turnId"]),
        (&json!("failed"), &json!(turn_id))
    );
}

/// A review is Markdown, line by line.
fn reads_well(review: &Pack, turn_id: &str) {
    let lines = review.section("review");
    let text: Vec<_> = lines.iter().map(|line| line["text"].as_str().unwrap()).collect();
    let text = text.join("\n");
    assert!(text.contains(&format!("# Review of turn {turn_id}")), "{text}");
    assert!(text.contains("- the command `echo found > out.txt"), "{text}");
    assert!(text.contains("- decided: `once` by `ann`"), "{text}");
    assert!(text.contains("- `read` (failed)"), "{text}");
    assert!(text.contains("for `ann` by agent `careful` (version 1): completed"), "{text}");
    assert_eq!(review.signal("changes").0, "exported");
}

/// What is altered anywhere in a real pack is found, and where.
async fn sampled_alterations_are_found(pack: &Pack, dir: &Path, key: &Path) {
    let bytes = pack.text.as_bytes();
    let letters: Vec<_> =
        (0..bytes.len()).filter(|at| bytes[*at].is_ascii_alphanumeric()).collect();
    for at in letters.iter().step_by(letters.len() / 40) {
        let mut altered = bytes.to_vec();
        altered[*at] ^= 1;
        let Ok(altered) = String::from_utf8(altered) else { continue };
        let line = 1 + bytes[..*at].iter().filter(|byte| **byte == b'\n').count();
        let checked = check(&altered, dir, Some(key)).await;
        assert_eq!(checked.code, 1, "{}", checked.said);
        assert!(checked.said.starts_with(&format!("ALTERED: line {line}")), "{}", checked.said);
    }
}

#[tokio::test]
async fn a_pack_says_what_cannot_be_joined_and_what_is_not_signed() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let seen = session.run("say Here.").await;
    let turn_id = seen.last().unwrap().turn_id.clone();

    // While the models service is away nobody can say what it has on record.
    world.fleet.get(Service::Models).terminate().await.unwrap();
    let pack = client.evidence_of(Scope::TurnId(turn_id.clone())).await.unwrap();
    let (state, _, why) = pack.signal("model_requests");
    assert_eq!(state, "missing_correlation");
    assert!(why.contains("models service does not answer"), "{why}");
    assert_eq!(pack.section("signature"), [&json!({"algorithm": "none", "keyId": "unsigned"})]);

    let (_, public) = new_key(dir.path()).await;
    assert_eq!(pack.check(dir.path(), None).await.code, 4);
    let checked = pack.check(dir.path(), Some(&public)).await;
    assert_eq!(checked.code, 3, "{}", checked.said);
    let cut = &pack.text[..pack.text.len() / 2];
    assert_eq!(check(cut, dir.path(), None).await.code, 1);
    let mut lines: Vec<_> = pack.text.lines().collect();
    lines.swap(3, 4);
    let checked = check(&(lines.join("\n") + "\n"), dir.path(), None).await;
    assert_eq!(checked.code, 1);
    assert!(checked.said.contains("line 4"), "{}", checked.said);

    // Evidence of a task is its events and the turns that they name.
    world.fleet.get(Service::Models).restart().await.unwrap();
    let attempt = format!(
        "with state as (
             update session.run_state set next_seq = next_seq + 1
             where session_id = '{0}' returning next_seq - 1 as seq
         )
         insert into session.event
             (session_id, seq, type, runtime_id, created_at, turn_id, task_id, run_id, payload)
         select '{0}', seq, 'task.attempt.started', 'rep_test', now(), '{turn_id}', 'task_one', 'run_one',
                '{{\"attempt\": 1}}'
         from state",
        session.id
    );
    sql(&world, &attempt).await;
    let task = client.evidence_of(Scope::TaskId("task_one".into())).await.unwrap();
    assert_eq!(task.signal("tasks"), ("exported", 1, ""));
    assert_eq!(ids(task.events(), "turnId"), [turn_id.clone()].into());
    assert!(task.events().iter().any(|event| event["type"] == "turn.completed"));
    assert_eq!(task.signal("model_requests").0, "exported");
    let checked = task.check(dir.path(), None).await;
    assert_eq!(checked.code, 4, "{}", checked.said);

    // A cost that is gone from the log is missed.
    sql(
        &world,
        &format!(
            "delete from session.event where session_id = '{}' and type = 'cost.recorded'",
            session.id
        ),
    )
    .await;
    let pack = client.evidence_of(Scope::TurnId(turn_id)).await.unwrap();
    assert_eq!(pack.signal("costs").0, "missing_correlation");
    let checked = pack.check(dir.path(), None).await;
    assert_eq!(checked.code, 1, "{}", checked.said);
}

#[tokio::test]
async fn what_retention_did_is_in_the_pack_and_no_tampering() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Fleet::plan().env_of(Service::Session, "SWEEP", "0.1").env_of(
        Service::Session,
        "DELTA_RETENTION",
        "0.5",
    );
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let seen = session.run("pace 30ms\nsay one two three four five six").await;
    let turn_id = seen.last().unwrap().turn_id.clone();
    session.eventually(async || (session.verify().await.joined_events > 0).then_some(())).await;
    let pack = client.evidence_of(Scope::TurnId(turn_id.clone())).await.unwrap();
    let checked = pack.check(dir.path(), None).await;
    assert_eq!(checked.code, 4, "{}", checked.said);
    assert!(!checked.said.contains("; 0 joined"), "{}", checked.said);

    // Then the events are removed: the pack says so, and still has the messages.
    let old = format!(
        "update session.seal set sealed_at = now() - interval '9 days' where session_id = '{0}';
         select session.expire_log('{0}', now() - interval '1 day')",
        session.id
    );
    sql(&world, &old).await;
    let pack = client.evidence_of(Scope::TurnId(turn_id)).await.unwrap();
    let (state, _, why) = pack.signal("events");
    assert_eq!(state, "missing_correlation");
    assert!(why.contains("retention removed"), "{why}");
    assert_eq!(pack.section("messages").len(), 2);
    let checked = pack.check(dir.path(), None).await;
    assert_eq!(checked.code, 4, "{}", checked.said);
    let whole = client.evidence_of(Scope::SessionId(session.id.clone())).await.unwrap();
    let checked = whole.check(dir.path(), None).await;
    assert_eq!(checked.code, 4, "{}", checked.said);
    assert!(!checked.said.contains(" 0 removed"), "{}", checked.said);
}

/// How much memory a process has now, in MiB.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[tokio::test]
async fn a_pack_of_a_long_log_takes_no_more_memory_than_a_short_one() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let pid = world.fleet.get(Service::Session).process().pid().unwrap();

    // Exports a log of so many events of 5 KiB, and gives the most memory that was seen meanwhile.
    let export = async |events: usize| {
        let session = client.create_session().await;
        session.run("say Here.").await;
        let long = format!(
            "with state as (
                 update session.run_state set next_seq = next_seq + {events}
                 where session_id = '{0}' returning next_seq - {events} as first
             )
             insert into session.event (session_id, seq, type, runtime_id, created_at, payload)
             select '{0}', first + n, 'runtime.warning', 'rep_test', now(),
                    jsonb_build_object('code', 'long', 'message', repeat(md5(n::text), 160))
             from state, generate_series(0, {events} - 1) n",
            session.id
        );
        sql(&world, &long).await;
        let scope = Some(EvidenceScope { scope: Some(Scope::SessionId(session.id.clone())) });
        let request = ExportEvidenceRequest { scope };
        let mut pieces = client.evidence().export_evidence(request).await.unwrap().into_inner();
        let (mut bytes, mut most) = (0, 0);
        while let Some(piece) = pieces.message().await.unwrap() {
            bytes += piece.data.len();
            most = most.max(memory(pid));
        }
        assert!(bytes > events * 5 * 1024, "{bytes} bytes of {events} events");
        most
    };

    let short = export(1_000).await;
    let long = export(10_000).await;
    assert!(long < short + 25, "{long} MiB for a log of 50 MiB, {short} MiB for one of 5 MiB");
}
