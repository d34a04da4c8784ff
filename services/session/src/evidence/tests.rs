use expect_test::expect;
use serde_json::{Value, json, value::RawValue};

use super::{pack::Line, verify::Broken, *};
use crate::seal::{Replaced, Seal, digest, hex};

const SESSION: &str = "ses_one";
const TURN: &str = "turn_one";

/// An event of the turn, or of another one.
fn event(sequence: i64, name: &str, turn: &str, refs: Value) -> Box<RawValue> {
    let event = json!({
        "type": name, "eventId": format!("evt_one_{sequence}"), "sequence": sequence,
        "timestamp": "2026-01-02T03:04:05Z", "sessionId": SESSION, "turnId": turn,
        "toolCallId": "call_one", "refs": refs, "payload": {"text": format!("wörd {sequence}")},
    });
    RawValue::from_string(event.to_string()).unwrap()
}

fn delta(sequence: i64) -> Box<RawValue> {
    event(sequence, "model.delta", TURN, json!({}))
}

/// What a pack is made of, to be altered before it is one.
struct Made {
    whole: bool,
    from: i64,
    through: i64,
    first: i64,
    log: Vec<Value>,
    rest: Vec<(&'static str, Value)>,
    seals: u64,
    events: u64,
    unsealed: u64,
}

fn head(kind: &str, key_id: &str) -> Head {
    Head {
        format: FORMAT.into(),
        version: VERSION,
        evidence_id: "evd_one".into(),
        kind: Kind::Evidence,
        scope: Scope {
            kind: kind.into(),
            id: if kind == "turn" { TURN.into() } else { SESSION.into() },
        },
        tenant_id: "acme".into(),
        subject: "ann".into(),
        exported_at: "2026-01-02T03:04:05Z".into(),
        runtime_id: "rep_one".into(),
        service_version: "0.1.0".into(),
        key_id: key_id.into(),
    }
}

impl Made {
    fn pack(&self, key: Option<&SigningKey>) -> String {
        self.pack_as(key, key.map_or("unsigned", |key| key.id()))
    }

    fn pack_as(&self, key: Option<&SigningKey>, id: &str) -> String {
        let kind = if self.whole { "session" } else { "turn" };
        let (mut writer, mut lines) = Writer::new(head(kind, id)).unwrap();
        let log = Log {
            session_id: SESSION.into(),
            whole: self.whole,
            from: self.from,
            through: self.through,
            first_sequence: self.first,
            last_sequence: self.through,
        };
        lines.extend(writer.line("log", &json!({ "log": log })).unwrap());
        for line in &self.log {
            lines.extend(writer.line("log", line).unwrap());
        }
        for (section, line) in &self.rest {
            lines.extend(writer.line(section, line).unwrap());
        }
        let signals = vec![Signal::of("hooks", 0, "no hook was asked"), Signal::of("log", 3, "")];
        let (seals, events, unsealed_events) = (self.seals, self.events, self.unsealed);
        let sealed = Sealed { seals, events, unsealed_events };
        lines.extend(writer.finish(signals, sealed, key).unwrap().0);
        String::from_utf8(lines).unwrap()
    }
}

/// A session with `count` events, a seal behind every ten, and facts about some of them.
fn made(count: i64) -> Made {
    sealed_every(10, count)
}

fn sealed_every(stretch: i64, count: i64) -> Made {
    let (mut log, mut rest) = (Vec::new(), Vec::new());
    let (mut before, mut digests) = (None, Vec::new());
    let mut seals = 0;
    for sequence in 1..=count {
        let event = delta(sequence);
        digests.push(digest(event.get()).unwrap());
        if sequence % 4 == 1 {
            rest.push(("routing", json!({ "event": event })));
        }
        log.push(json!({ "event": event }));
        if sequence % stretch == 0 {
            let seal = Seal::next(SESSION.into(), before.take(), &digests);
            before = Some((seal.number, seal.through_sequence, seal.digest.clone()));
            digests.clear();
            seals += 1;
            log.push(json!({ "seal": seal }));
        }
    }
    let timeline = (1..=count).map(|sequence| {
        let event_id = format!("evt_one_{sequence}");
        let line = json!({ "sequence": sequence, "eventId": event_id, "type": "model.delta" });
        ("timeline", line)
    });
    let rest = timeline.chain(rest).collect();
    let (events, unsealed) = (count as u64, digests.len() as u64);
    Made { whole: true, from: 1, through: count, first: 1, log, rest, seals, events, unsealed }
}

fn key() -> (SigningKey, PublicKey) {
    let (private, public, id) = new_key().unwrap();
    let (private, public) =
        (SigningKey::read(&private).unwrap(), PublicKey::read(&public).unwrap());
    assert_eq!((private.id(), public.id()), (id.as_str(), id.as_str()));
    (private, public)
}

fn broken(pack: &[u8], key: &PublicKey) -> Broken {
    match verify(pack, Some(key)) {
        Err(Failure::Broken(broken)) => broken,
        Err(Failure::Unreadable(error)) => panic!("{error}"),
        Ok(report) => panic!("nobody noticed: {report:?}"),
    }
}

/// Which line a byte is in, counted from one.
fn line_of(pack: &[u8], at: usize) -> u64 {
    1 + pack[..at].iter().filter(|byte| **byte == b'\n').count() as u64
}

#[test]
fn whichever_byte_of_a_pack_is_altered_the_line_is_named() {
    let (private, public) = key();
    let pack = sealed_every(2, 3).pack(Some(&private)).into_bytes();
    let report = verify(&*pack, Some(&public)).unwrap();
    assert_eq!(report.signature, Signature::Verified);
    assert_eq!((report.sealed.seals, report.sealed.unsealed_events, report.joins), (1, 1, 4));

    for at in 0..pack.len() {
        // One bit, the end of a line, the case of a letter, and nothing like text.
        for change in [pack[at] ^ 1, b'\n', pack[at] ^ 0x20, 0xff] {
            if change == pack[at] {
                continue;
            }
            let mut altered = pack.clone();
            altered[at] = change;
            let broken = broken(&altered, &public);
            let line = line_of(&pack, at);
            // An end of a line that is no more joins two lines.
            assert_eq!(broken.line, line, "byte {at} as {change:#x}: {broken}");
        }
        let mut shorter = pack.clone();
        shorter.remove(at);
        broken(&shorter, &public);
        let cut = &pack[..at];
        broken(cut, &public);
    }
}

#[test]
fn what_is_altered_in_a_large_pack_is_found_where_it_is() {
    let (private, public) = key();
    let pack = made(1_000).pack(Some(&private)).into_bytes();
    verify(&*pack, Some(&public)).unwrap();
    for at in (0..pack.len()).step_by(pack.len() / 25) {
        let mut altered = pack.clone();
        altered[at] ^= 1;
        let broken = broken(&altered, &public);
        assert_eq!(broken.line, line_of(&pack, at), "{broken}");
    }
}

#[test]
fn a_place_is_named_as_closely_as_can_be() {
    let (private, public) = key();
    let pack = made(12).pack(Some(&private));
    let alter = |from: &str, to: &str| {
        assert!(pack.contains(from), "{from}");
        broken(pack.replacen(from, to, 1).as_bytes(), &public).to_string()
    };
    let lines: Vec<_> = pack.lines().collect();
    let moved = |one: usize, other: usize| {
        let mut lines = lines.clone();
        lines.swap(one, other);
        broken((lines.join("\n") + "\n").as_bytes(), &public).to_string()
    };
    let without = |index: usize| {
        let mut lines = lines.clone();
        lines.remove(index);
        broken((lines.join("\n") + "\n").as_bytes(), &public).to_string()
    };
    let found = [
        alter("wörd 3", "word 3"),
        alter("\"sequence\":7", "\"sequence\":8"),
        alter("\"section\":\"log\"", "\"section\":\"lag\""),
        alter("\"data\":{\"event\"", "\"data\": {\"event\""),
        alter("\"subject\":\"ann\"", "\"subject\":\"bob\""),
        alter("no hook was asked", "no hook was there"),
        moved(4, 5),
        without(6),
        without(0),
        without(lines.len() - 1),
        broken((pack.clone() + lines[3] + "\n").as_bytes(), &public).to_string(),
        broken(&pack.as_bytes()[..pack.len() - 1], &public).to_string(),
        broken(b"", &public).to_string(),
        broken(b"hello\n", &public).to_string(),
    ];
    expect![[r#"
        line 5, section log, sequence 3: is not what its digest is over: the line was altered
        line 9, section log, sequence 8: is not what its digest is over: the line was altered
        line 2, section lag: is not what its digest is over: the line was altered
        line 3, section log: is not written as RFC 8785 says at byte 9
        line 1, section pack: is not what its digest is over: the line was altered
        line 31, section manifest: is not what its digest is over: the line was altered
        line 5, section log, field line: has the number 6: lines are missing or moved
        line 7, section log, field line: has the number 8: lines are missing or moved
        line 1, section log, field line: has the number 2: lines are missing or moved
        end of file, section manifest: the pack was cut off, its last lines are missing
        line 33, section log, field line: has the number 4: lines are missing or moved
        line 32, section manifest: the line does not end: the pack was cut off
        end of file: the pack was cut off, its last lines are missing
        line 1: is not a line of a pack: expected value at line 1 column 1
    "#]]
    .assert_eq(&(found.join("\n") + "\n"));
}

/// A pack by somebody else in the name of a key: all digests are right, and so is the key's id.
fn forged(made: &Made, id: &str) -> String {
    let pack = made.pack_as(Some(&key().0), id);
    let (rest, last) = pack.trim_end().rsplit_once('\n').unwrap();
    let last: Line<'_> = serde_json::from_str(last).unwrap();
    let mut data: Value = serde_json::from_str(last.data.get()).unwrap();
    data["keyId"] = json!(id);
    let data = crate::seal::canonical(&data.to_string()).unwrap();
    let (digest, number) = (pack::digest(&data, last.line, "signature"), last.line);
    format!(
        "{rest}\n{{\"data\":{data},\"digest\":\"{digest}\",\"line\":{number},\"section\":\"signature\"}}\n"
    )
}

#[test]
fn a_pack_is_worth_as_much_as_its_signature() {
    let (private, public) = key();
    let (_, stranger) = key();
    let signed = made(12).pack(Some(&private));
    let signature = |pack: &str, key: Option<&PublicKey>| {
        verify(pack.as_bytes(), key).map(|report| report.signature)
    };
    assert_eq!(signature(&signed, Some(&public)).unwrap(), Signature::Verified);
    assert_eq!(signature(&signed, None).unwrap(), Signature::NotChecked);
    let Signature::Wrong(problem) = signature(&signed, Some(&stranger)).unwrap() else { panic!() };
    assert!(problem.contains(private.id()) && problem.contains(stranger.id()), "{problem}");

    let unsigned = made(12).pack(None);
    assert_eq!(signature(&unsigned, None).unwrap(), Signature::Unsigned);
    assert_eq!(
        signature(&unsigned, Some(&public)).unwrap(),
        Signature::Wrong("it is not signed".into())
    );

    let forged = forged(&made(12), private.id());
    assert_eq!(
        signature(&forged, Some(&public)).unwrap(),
        Signature::Wrong("the signature is not over this manifest".into())
    );
}

/// What the verifier says of a pack whose own digests are right.
fn says(made: &Made) -> String {
    match verify(made.pack(None).as_bytes(), None) {
        Ok(report) => {
            let (joined, removed, elsewhere) = (report.joined, report.removed, report.elsewhere);
            format!("whole: {joined} joined, {removed} removed, {elsewhere} elsewhere")
        }
        Err(Failure::Broken(broken)) => broken.to_string(),
        Err(Failure::Unreadable(error)) => panic!("{error}"),
    }
}

#[test]
fn what_is_forged_does_not_fit_the_seals_and_the_log() {
    let with = |change: &dyn Fn(&mut Made)| {
        let mut made = made(22);
        change(&mut made);
        says(&made)
    };
    let found = [
        with(&|_| {}),
        with(&|made| {
            made.log[3] = json!({ "event": event(4, "model.delta", TURN, json!({"x": "y"})) })
        }),
        with(&|made| drop(made.log.remove(3))),
        with(&|made| made.log.swap(3, 4)),
        with(&|made| made.log.truncate(20)),
        with(&|made| drop(made.log.remove(10))),
        with(&|made| made.log[10]["seal"]["previous"] = json!("another")),
        with(&|made| made.log[10]["seal"]["digests"][4] = json!("another")),
        with(&|made| made.log[10]["seal"]["sessionId"] = json!("ses_two")),
        with(&|made| made.log[2] = json!({"gap": {"first": 3, "through": 3, "why": "elsewhere"}})),
        with(&|made| made.log[2] = json!({"gap": {"first": 3, "through": 3, "why": "removed"}})),
        with(&|made| made.rest[2].1["eventId"] = json!("evt_one_9")),
        with(&|made| made.rest[2].1["type"] = json!("tool.failed")),
        with(&|made| made.rest[2].1["sequence"] = json!(99)),
        with(&|made| {
            made.rest.push(("routing", json!({ "event": event(4, "x", TURN, json!({})) })))
        }),
        with(&|made| made.seals = 5),
    ];
    expect![[r#"
        whole: 0 joined, 0 removed, 0 elsewhere
        line 13, section log, sequence 4: event 4 was altered
        line 6, section log, sequence 5, field sequence: event 4 is missing before event 5
        line 6, section log, sequence 5, field sequence: event 4 is missing before event 5
        line 42, section timeline, sequence 20, field sequence: the pack has no event 20 of ses_one
        line 23, section log, sequence 1: seal 1 is missing
        line 13, section log, sequence 1: seal 1 does not follow from seal 0
        line 13, section log, sequence 1: seal 1 was altered
        line 13, section log, field sessionId: the seal is of another session
        line 5, section log, sequence 3, field why: a whole log has no such gap
        line 5, section log, sequence 3, field why: the log still has these
        line 29, section timeline, sequence 3, field eventId: is not that of the event in the log
        line 29, section timeline, sequence 3, field type: is not that of the event in the log
        line 29, section timeline, sequence 99, field sequence: the pack has no event 99 of ses_one
        line 55, section routing, sequence 4, field event: is not the event that the log has there
        line 55, section manifest, field sealed: is not what the log shows
    "#]]
    .assert_eq(&(found.join("\n") + "\n"));
}

#[test]
fn what_retention_did_is_reported_and_no_tampering() {
    let digests: Vec<_> = (1..=6).map(|n| digest(delta(n).get()).unwrap()).collect();
    let mut seal = Seal::next(SESSION.into(), None, &digests);
    // Events 2 to 4 became one, in the place of the last.
    let joined = event(4, "model.delta", TURN, json!({"firstSequence": "2"}));
    let left = hex(&digest(joined.get()).unwrap());
    seal.replaced = vec![Replaced { first: 2, through: 4, digest: left }];
    let made = |log: Vec<Value>| Made {
        whole: true,
        from: 1,
        through: 6,
        first: 1,
        events: log.iter().filter(|line| line.get("event").is_some()).count() as u64,
        seals: log.iter().filter(|line| line.get("seal").is_some()).count() as u64,
        unsealed: 0,
        log,
        rest: vec![],
    };
    let shown = |event: Box<RawValue>| json!({ "event": event });
    let log = vec![
        shown(delta(1)),
        shown(joined.clone()),
        shown(delta(5)),
        shown(delta(6)),
        json!({ "seal": seal }),
    ];
    assert_eq!(says(&made(log.clone())), "whole: 2 joined, 0 removed, 0 elsewhere");
    let mut altered = log.clone();
    altered[1] = shown(event(4, "model.delta", TURN, json!({"firstSequence": "2", "x": "y"})));
    assert_eq!(says(&made(altered)), "line 7, section log, sequence 4: event 4 was altered");

    // The beginning was removed, and its seal has no digests any more.
    let gone = Seal { digests: None, replaced: vec![], ..seal.clone() };
    let before = Some((1, 6, seal.digest.clone()));
    let kept: Vec<_> = (7..=8).map(|n| digest(delta(n).get()).unwrap()).collect();
    let next = Seal::next(SESSION.into(), before, &kept);
    let log = vec![
        json!({"gap": {"first": 1, "through": 6, "why": "removed"}}),
        json!({ "seal": gone }),
        shown(delta(7)),
        shown(delta(8)),
        json!({ "seal": next }),
    ];
    let expired = Made { first: 7, through: 8, ..made(log) };
    assert_eq!(says(&expired), "whole: 0 joined, 6 removed, 0 elsewhere");
}

#[test]
fn a_turn_is_proved_without_the_turns_beside_it() {
    // Of six events under one seal, 2, 3 and 5 belong to the turn.
    let all: Vec<_> = (1..=6)
        .map(|n| {
            event(
                n,
                "model.delta",
                if [2, 3, 5].contains(&n) { TURN } else { "turn_two" },
                json!({}),
            )
        })
        .collect();
    let digests: Vec<_> = all.iter().map(|event| digest(event.get()).unwrap()).collect();
    let seal = Seal::next(SESSION.into(), Some((4, 0, "before".into())), &digests);
    let shown = |n: usize| json!({ "event": all[n - 1] });
    let gap = |n: i64| json!({"gap": {"first": n, "through": n, "why": "elsewhere"}});
    let made = |log: Vec<Value>| Made {
        whole: false,
        from: 2,
        through: 5,
        first: 1,
        log,
        rest: vec![],
        seals: 1,
        events: 3,
        unsealed: 0,
    };
    let log = vec![shown(2), shown(3), gap(4), shown(5), json!({ "seal": seal })];
    assert_eq!(says(&made(log.clone())), "whole: 0 joined, 0 removed, 1 elsewhere");
    let mut strange = log.clone();
    strange[2] = shown(4);
    assert_eq!(
        says(&made(strange)),
        "line 5, section log, sequence 4, field turnId: is not of turn_one"
    );
    let mut hole = log;
    hole.remove(2);
    assert_eq!(
        says(&made(hole)),
        "line 5, section log, sequence 5, field sequence: event 4 is missing before event 5"
    );
}

#[test]
fn keys_are_read_from_pem_and_from_nothing_else() {
    let (private, public, _) = new_key().unwrap();
    assert!(SigningKey::read(&public).is_err());
    assert!(PublicKey::read(&private).is_err());
    assert!(SigningKey::read("").is_err());
    assert!(SigningKey::read(&private.replace("M", "N")).is_err());
    // As `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write them.
    let key = "-----BEGIN PRIVATE KEY-----\n\
               MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
               -----END PRIVATE KEY-----\n";
    let public = "-----BEGIN PUBLIC KEY-----\n\
                  MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
                  -----END PUBLIC KEY-----\n";
    let (key, public) = (SigningKey::read(key).unwrap(), PublicKey::read(public).unwrap());
    assert_eq!(key.id(), public.id());
    assert!(public.verify(b"hello", &key.sign(b"hello")));
    assert!(!public.verify(b"hullo", &key.sign(b"hello")));
    assert!(!public.verify(b"hello", &key.sign(b"hello").to_uppercase()));
}
