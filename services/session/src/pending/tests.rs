use std::collections::BTreeMap;

use proptest::prelude::*;
use proto::event::v1::{ModelDelta, TurnStarted};
use serde_json::Value;

use super::*;
use crate::{
    ids::MessageId,
    message::{MessageStatus, Metadata, Part, Text},
    testing::{batch, delta},
};

/// What may happen between the machine and the database.
#[derive(Debug, Clone)]
enum Move {
    /// The last part, or with `true` a new one, grows.
    Speak(bool, String),
    /// Its row is written as it is now.
    Fold,
    /// Something that is no delta.
    Fact,
    /// What waits is committed.
    Flush,
    /// Somebody else appends to the log.
    Stranger,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => (any::<bool>(), "[a-z]{1,3}").prop_map(|(new, text)| Move::Speak(new, text)),
        1 => Just(Move::Fold),
        1 => Just(Move::Fact),
        2 => Just(Move::Flush),
        1 => Just(Move::Stranger),
    ];
    prop::collection::vec(one, 0..60)
}

/// What `session.flush_turns` would have kept.
struct Stored {
    next_seq: i64,
    parts: BTreeMap<usize, (String, i64)>,
    deltas: Vec<(i64, usize, String)>,
}

impl Stored {
    fn commit(&mut self, owner: &Owner, pending: &Pending) {
        let rows = batch(ReplicaId::new(), &[(owner, pending)]);
        let rows = &rows.leases[0];
        let ordinals: Vec<_> = rows.events.iter().map(|event| event.ordinal).collect();
        assert_eq!(ordinals, (0..rows.events.len()).collect::<Vec<_>>());
        for event in &rows.events {
            let payload: Value = serde_json::from_str(event.payload.get()).unwrap();
            if event.r#type == "model.delta" {
                let index = payload["partIndex"].as_u64().unwrap_or_default() as usize;
                let text = payload["text"].as_str().unwrap().to_owned();
                self.deltas.push((self.next_seq + event.ordinal as i64, index, text));
            }
        }
        for part in rows.parts {
            let text = part.data["text"].as_str().unwrap().to_owned();
            self.parts.insert(part.index, (text, self.next_seq + part.ordinal));
        }
        self.next_seq += rows.events.len() as i64;
    }

    fn read(&self) -> Vec<String> {
        let after = |index: usize, folded: i64| {
            let later =
                move |(seq, part, _): &&(i64, usize, String)| *part == index && *seq > folded;
            self.deltas.iter().filter(later).map(|(_, _, text)| text.as_str())
        };
        self.parts
            .iter()
            .map(|(index, (text, folded))| {
                text.clone() + &after(*index, *folded).collect::<String>()
            })
            .collect()
    }
}

proptest! {
    #[test]
    fn rows_and_later_deltas_add_up_to_the_text_at_every_commit(moves in moves()) {
        let owner = Owner { tenant: "acme".parse().unwrap(), session_id: SessionId::new(), turn_id: MessageId::new().turn(), epoch: 1, flush_no: 0 };
        let mut said = Step {
            message_id: MessageId::new(),
            status: MessageStatus::Streaming,
            metadata: Metadata::default(),
            parts: vec![],
        };
        let mut stored = Stored { next_seq: 1, parts: BTreeMap::new(), deltas: vec![] };
        let mut pending = Pending::default();
        let now = time::now();
        for next in moves {
            match next {
                Move::Speak(new, text) => {
                    let new = new || said.parts.is_empty();
                    if new {
                        said.parts.push(Part::Text(Text { streaming: true, ..Text::default() }));
                    }
                    let index = said.parts.len() - 1;
                    said.parts[index].extend(&text);
                    let (message_id, part_index) = (said.message_id.to_string(), index as i32);
                    let spoken = Payload::ModelDelta(ModelDelta { message_id, part_index, text });
                    pending.append(Event::fact(spoken), now);
                    // A part has a row from its first delta on.
                    if new {
                        pending.save_part(&said, index);
                    }
                }
                Move::Fold if said.parts.is_empty() => {}
                Move::Fold => pending.save_part(&said, said.parts.len() - 1),
                Move::Fact => {
                    pending.append(Event::fact(Payload::TurnStarted(TurnStarted::default())), now);
                }
                Move::Flush => {
                    stored.commit(&owner, &std::mem::take(&mut pending));
                    let text = |part: &Part| part.data()["text"].as_str().unwrap().to_owned();
                    prop_assert_eq!(stored.read(), said.parts.iter().map(text).collect::<Vec<_>>());
                }
                Move::Stranger => stored.next_seq += 2,
            }
        }
    }
}

#[test]
fn deltas_of_one_part_are_one_event_until_its_row_holds_them() {
    let (message_id, now) = (MessageId::new(), time::now());
    let mut pending = Pending::default();
    pending.append(delta(message_id, "a"), now);
    pending.append(delta(message_id, "b"), now);
    pending.save_part(&crate::testing::step(message_id, "ab"), 0);
    pending.append(delta(message_id, "c"), now);
    pending.append(delta(MessageId::new(), "d"), now);
    let texts: Vec<_> = pending.events.iter().filter_map(|(event, _)| text_of(event)).collect();
    assert_eq!(texts, ["ab", "c", "d"]);
}

#[test]
fn a_message_that_comes_after_its_event_was_committed_stands_where_that_event_does() {
    let (message_id, now) = (MessageId::new(), time::now());
    let mut pending = Pending::default();
    pending.save_message(message_id.turn(), &crate::testing::step(message_id, ""), now);
    pending.append(delta(message_id, "a"), now);
    assert_eq!(pending.messages[0].ordinal, -1);
}
