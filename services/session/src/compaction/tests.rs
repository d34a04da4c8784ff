use proto::event::v1::ToolMetadata;

use super::*;
use crate::{
    ids::ToolCallId,
    message::{MessageStatus, Metadata, ToolState},
};

fn message(role: Role, turn_id: TurnId, parts: Vec<Part>) -> Message {
    Message { id: MessageId::new(), turn_id, role, metadata: Metadata::default(), parts }
}

/// A turn: somebody asks and is answered.
fn turn(question: &str, answer: &str) -> [Message; 2] {
    let turn_id = TurnId::new();
    [(Role::User, question), (Role::Assistant, answer)]
        .map(|(role, text)| message(role, turn_id, vec![Part::text(text)]))
}

fn marked(turn_id: TurnId, tail_start_id: Option<MessageId>) -> Message {
    let summary = "so far".to_owned();
    let marker = Marker { summary, tail_start_id, auto: true, summary_tokens: 2 };
    message(Role::Assistant, turn_id, vec![marker.part()])
}

fn output(bytes: usize) -> Part {
    Part::Tool(ToolUse {
        state: ToolState::OutputAvailable,
        input_json: "{}".into(),
        output_json: Some("x".repeat(bytes)),
        metadata: Some(ToolMetadata { output_ref: "out_1".into(), ..ToolMetadata::default() }),
        ..ToolUse::new(ToolCallId::new(), "bash".into())
    })
}

fn texts(view: &View<'_>) -> Vec<String> {
    let summary = view.summary.iter().map(|summary| format!("({summary})"));
    let entries = view.entries.iter().map(|entry| match &entry.parts[0] {
        Part::Text(text) => text.text.clone(),
        other => other.kind(),
    });
    summary.chain(entries).collect()
}

#[test]
fn without_a_marker_everything_is_visible() {
    let history = [turn("a", "b"), turn("c", "d")].concat();
    let view = view(&history, TurnId::new(), &[]);
    assert_eq!(texts(&view), ["a", "b", "c", "d"]);
}

#[test]
fn a_marker_hides_what_it_summarized_and_keeps_its_tail() {
    let mut history = [turn("a", "b"), turn("c", "d"), turn("e", "f")].concat();
    let (turn_id, tail) = (history[4].turn_id, history[2].id);
    // Between the message of the third turn and its answer.
    history.insert(5, marked(turn_id, Some(tail)));
    assert_eq!(texts(&view(&history, turn_id, &[])), ["(so far)", "c", "d", "e", "f"]);

    // Hidden by a rewind, and so not loaded: everything is there again.
    history.remove(5);
    assert_eq!(texts(&view(&history, turn_id, &[])), ["a", "b", "c", "d", "e", "f"]);
}

#[test]
fn a_request_to_compact_keeps_nothing_and_is_not_seen() {
    let mut history = [turn("a", "b"), turn("", "")].concat();
    history[2].metadata.compact = true;
    history[3] = marked(history[2].turn_id, None);
    history.extend(turn("c", "d"));
    assert_eq!(texts(&view(&history, TurnId::new(), &[])), ["(so far)", "c", "d"]);
}

#[test]
fn what_the_running_turn_asks_for_stays_visible_when_its_steps_are_summarized() {
    let turn_id = TurnId::new();
    let history =
        [&turn("a", "b")[..], &[message(Role::User, turn_id, vec![Part::text("do it")])]].concat();
    let step = |parts| Step {
        message_id: MessageId::new(),
        status: MessageStatus::Completed,
        metadata: Metadata::default(),
        parts,
    };
    let steps = [
        step(vec![Part::text("one")]),
        step(vec![Part::text("two")]),
        step(marked(turn_id, None).parts),
        step(vec![Part::text("three")]),
    ];
    assert_eq!(texts(&view(&history, turn_id, &steps)), ["(so far)", "do it", "three"]);
}

#[test]
fn an_automatic_compaction_keeps_two_turns_if_they_fit() {
    let history = [turn("a", "b"), turn("c", "d"), turn("e", "f")].concat();
    let mut history = history[..5].to_vec();
    let turn_id = history[4].turn_id;
    let seen = view(&history, turn_id, &[]);
    let planned = plan(&seen, turn_id, 1000, true).unwrap();
    assert_eq!(planned.tail_start_id, Some(history[2].id));
    assert_eq!(planned.turn_ids, [history[0].turn_id]);

    let by_hand = plan(&seen, turn_id, 1000, false).unwrap();
    assert_eq!((by_hand.tail_start_id, by_hand.head.len()), (None, 5));

    // The turn before is more than a quarter of what the model can take.
    history[3].parts = vec![Part::text("d".repeat(1001))];
    let seen = view(&history, turn_id, &[]);
    let planned = plan(&seen, turn_id, 1000, true).unwrap();
    assert_eq!(planned.tail_start_id, Some(history[4].id));

    // And so is what is asked now, which nobody summarizes.
    history[4].parts = vec![Part::text("e".repeat(1001))];
    let seen = view(&history, turn_id, &[]);
    let planned = plan(&seen, turn_id, 1000, true).unwrap();
    assert_eq!((planned.tail_start_id, planned.head.len()), (None, 4));
    let alone = view(&history[4..], turn_id, &[]);
    assert_eq!(plan(&alone, turn_id, 1000, true), None);
}

#[test]
fn a_turn_that_is_too_long_for_a_tail_keeps_its_last_steps() {
    let turn_id = TurnId::new();
    let mut history = vec![message(Role::User, turn_id, vec![Part::text("go")])];
    history.extend((0..4).map(|_| message(Role::Assistant, turn_id, vec![output(800)])));
    let seen = view(&history, turn_id, &[]);
    let planned = plan(&seen, turn_id, 2000, true).unwrap();
    assert_eq!(planned.tail_start_id, Some(history[3].id));
    assert_eq!(
        planned.head.iter().map(|entry| entry.id).collect::<Vec<_>>(),
        [history[1].id, history[2].id]
    );
    assert_eq!(planned.evidence_refs, ["out_1", "out_1"]);
}

#[test]
fn old_outputs_are_left_out_beyond_a_budget() {
    let mut history = Vec::new();
    for _ in 0..6 {
        let [question, mut answer] = turn("a", "b");
        answer.parts = vec![output(OLD_OUTPUT_BYTES / 2)];
        history.extend([question, answer]);
    }
    let pruned = view(&history, TurnId::new(), &[]).pruned();
    let pruned: Vec<_> = pruned.chunks(2).map(|turn| turn[1]).collect();
    assert_eq!(pruned, [true, true, false, false, false, false]);
}

/// How the ladder goes with this much room: the first way that is open, and its pieces.
fn climb(history: &[Message], room: usize) -> (Method, Vec<String>) {
    let seen = view(history, TurnId::new(), &[]);
    let mut method = Method::Summary;
    loop {
        if let Some(pieces) = pieces(method, None, &seen.entries, room, 300) {
            return (method, pieces);
        }
        method = method.next().unwrap();
    }
}

#[test]
fn the_ladder_goes_as_far_as_it_must() {
    let [question, mut answer] = turn("please", "look");
    answer.parts.push(output(6000));
    let mut history = vec![question, answer];
    let (method, pieces) = climb(&history, 10_000);
    assert_eq!((method, pieces.len()), (Method::Summary, 1));
    assert!(pieces[0].contains(&"x".repeat(6000)));

    let (method, pieces) = climb(&history, 2_000);
    assert_eq!((method, pieces.len()), (Method::Pruned, 1));
    assert!(pieces[0].contains("[an old output of 6000 bytes, left out]"), "{}", pieces[0]);

    history.extend(turn(&"ä".repeat(1500), &"b".repeat(1000)));
    let (method, pieces) = climb(&history, 2_000);
    assert_eq!(method, Method::Chunked);
    assert!((2..=8).contains(&pieces.len()));
    assert!(pieces.iter().all(|piece| piece.len() <= 2_000 - 300));
    let letters = |letter| pieces.iter().map(|piece| piece.matches(letter).count()).sum::<usize>();
    assert_eq!((letters('ä'), letters('b') >= 1000), (1500, true));

    for index in 0..100 {
        history.extend(turn(&format!("question {index}"), &"b".repeat(400)));
    }
    let (method, pieces) = climb(&history, 2_000);
    assert_eq!((method, pieces.len()), (Method::DroppedMiddle, 1));
    assert!(pieces[0].len() <= 2_000);
    assert!(pieces[0].contains("please") && pieces[0].contains("question 99"));
    assert!(pieces[0].contains("messages are left out here"));

    let seen = view(&history, TurnId::new(), &[]);
    assert_eq!(super::pieces(Method::DroppedMiddle, None, &seen.entries, 100, 0), None);
}

#[test]
fn a_summary_goes_on_from_the_one_before() {
    let history = turn("a", "b");
    let seen = view(&history, TurnId::new(), &[]);
    let pieces = pieces(Method::Summary, Some("before"), &seen.entries, 10_000, 0).unwrap();
    assert_eq!(
        pieces,
        ["### summary of everything before\nbefore\n\n### user\na\n\n### assistant\nb"]
    );
}
