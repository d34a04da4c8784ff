use proto::event::v1::{Event, Payload, ProcessEnded, ProcessInput, ProcessOutput, ProcessStarted};

use crate::{
    facts::{int64, output_spilled, output_truncated},
    outputs::Kept,
    store::processes::{End, Key, Stream},
    text::Decoder,
};

/// How much of what a process prints is in the log.
pub const PREVIEW_BYTES: usize = 32 * 1024;

/// A fact about a process.
pub fn about(key: &Key, payload: Payload) -> Event {
    Event {
        session_id: key.session_id.to_string(),
        process_id: key.process_id.to_string(),
        ..Event::fact(payload)
    }
}

pub fn started(command: &str, pty: bool, workspace_id: String) -> Payload {
    Payload::ProcessStarted(ProcessStarted { command: command.into(), pty, workspace_id })
}

pub fn input(kind: &str, bytes: usize, detail: &str, subject: &str) -> Payload {
    Payload::ProcessInput(ProcessInput {
        kind: kind.into(),
        bytes: bytes.try_into().unwrap_or(i32::MAX),
        detail: detail.into(),
        subject: subject.into(),
    })
}

pub fn ended(end: &End) -> Payload {
    let ended = ProcessEnded {
        exit_code: end.exit_code,
        signal: end.signal.clone(),
        reason: end.reason.clone(),
    };
    match end.status {
        "completed" => Payload::ProcessCompleted(ended),
        "terminated" => Payload::ProcessTerminated(ended),
        // A process that is lost has failed as far as anybody knows; the reason says more.
        _ => Payload::ProcessFailed(ended),
    }
}

/// What became of output that was too much for the log.
pub fn stored(key: &Key, total: u64, kept: Option<&Kept>) -> Vec<Event> {
    let mut events = Vec::new();
    if total <= PREVIEW_BYTES as u64 {
        return events;
    }
    if let Some(kept) = kept {
        let spilled = Payload::OutputSpilled(output_spilled(total, kept));
        let output_ref = kept.output_ref.to_string();
        events.push(Event { output_ref, ..about(key, spilled) });
    }
    let most = kept.map_or(PREVIEW_BYTES as u64, |kept| kept.bytes);
    if most < total {
        let truncated = Payload::OutputTruncated(output_truncated(total, most));
        let output_ref = kept.map(|kept| kept.output_ref.to_string()).unwrap_or_default();
        events.push(Event { output_ref, ..about(key, truncated) });
    }
    events
}

pub fn stream_name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
        Stream::Pty => "pty",
        Stream::Mixed => "",
    }
}

/// The beginning of what a process prints, in pieces that are worth a row in the log.
#[derive(Default)]
pub struct Preview {
    shown: usize,
    pieces: Vec<Piece>,
    /// The beginnings of characters whose ends have not arrived, of each stream.
    decoders: [Decoder; 2],
}

struct Piece {
    stream: Stream,
    offset: u64,
    text: String,
}

impl Preview {
    pub fn push(&mut self, stream: Stream, offset: u64, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(PREVIEW_BYTES - self.shown)];
        self.shown += bytes.len();
        let decoder = &mut self.decoders[usize::from(stream == Stream::Stderr)];
        let text = decoder.push(bytes);
        if text.is_empty() {
            return;
        }
        match self.pieces.last_mut() {
            Some(piece) if piece.stream == stream => piece.text += &text,
            _ => self.pieces.push(Piece { stream, offset, text }),
        }
    }

    /// What is new since the last time.
    pub fn take(&mut self, key: &Key) -> Vec<Event> {
        let pieces = std::mem::take(&mut self.pieces).into_iter();
        let events = pieces.map(|Piece { stream, offset, text }| {
            let stream = stream_name(stream).to_owned();
            let output = ProcessOutput { stream, offset: int64(offset), text };
            about(key, Payload::ProcessOutput(output))
        });
        events.collect()
    }
}

#[cfg(test)]
mod tests {
    use chassis::Tenant;

    use super::*;
    use crate::call::{HostId, ProcessId, SessionId};

    fn key() -> Key {
        Key {
            tenant: "acme".parse::<Tenant>().unwrap(),
            session_id: SessionId::new(),
            process_id: ProcessId::new(),
            host_id: HostId::new(),
        }
    }

    fn texts(events: &[Event]) -> Vec<(String, i64, String)> {
        let text = |event: &Event| match &event.payload {
            Some(Payload::ProcessOutput(output)) => {
                (output.stream.clone(), output.offset, output.text.clone())
            }
            other => panic!("{other:?}"),
        };
        events.iter().map(text).collect()
    }

    #[test]
    fn what_arrives_together_is_one_fact_for_each_turn_of_a_stream() {
        let mut preview = Preview::default();
        preview.push(Stream::Stdout, 0, b"one ");
        preview.push(Stream::Stdout, 4, "tw\u{f6}".as_bytes().split_last().unwrap().1);
        preview.push(Stream::Stderr, 7, b"wrong");
        preview.push(Stream::Stdout, 12, &"\u{f6}".as_bytes()[1..]);
        let said = |stream: &str, offset, text: &str| (stream.to_owned(), offset, text.to_owned());
        assert_eq!(
            texts(&preview.take(&key())),
            [said("stdout", 0, "one tw"), said("stderr", 7, "wrong"), said("stdout", 12, "\u{f6}")]
        );
        assert!(preview.take(&key()).is_empty());
    }

    #[test]
    fn the_log_gets_only_the_beginning() {
        let mut preview = Preview::default();
        for number in 0..10 {
            preview.push(Stream::Pty, number * 5000, &[b'x'; 5000]);
        }
        let events = preview.take(&key());
        assert_eq!(
            texts(&events).iter().map(|(_, _, text)| text.len()).sum::<usize>(),
            PREVIEW_BYTES
        );
    }

    #[test]
    fn little_output_is_in_the_log_and_nowhere_else() {
        assert!(stored(&key(), PREVIEW_BYTES as u64, None).is_empty());
        let names =
            |events: Vec<Event>| events.into_iter().map(|event| event.r#type).collect::<Vec<_>>();
        assert_eq!(names(stored(&key(), 1 << 20, None)), ["output.truncated"]);
    }
}
