//! Server-sent events out of bytes that arrive in any pieces. No event is larger than
//! [`MAX_EVENT_BYTES`], however long its sender goes on.

/// One event. The name is empty where the sender gave none.
#[derive(Debug, Default, PartialEq)]
pub struct Event {
    pub name: String,
    pub data: String,
}

/// Room for a whole tool call that comes in one event, and not for a mistake.
pub const MAX_EVENT_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Up to here, lines were taken.
    taken: usize,
    /// Up to here, there is no end of a line.
    scanned: usize,
    event: Event,
    has_data: bool,
    /// The event was given out, and the next one begins anew.
    complete: bool,
}

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("an event is larger than 4 MiB")]
    TooLarge,
    #[error("an event is not UTF-8")]
    NotText,
}

impl Decoder {
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.scanned -= self.taken;
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole event, if there is one.
    pub fn next(&mut self) -> Result<Option<&Event>, Error> {
        if self.complete {
            self.event.name.clear();
            self.event.data.clear();
            (self.has_data, self.complete) = (false, false);
        }
        while let Some(length) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n')
        {
            let end = self.scanned + length;
            let line = &self.buffer[self.taken..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            (self.taken, self.scanned) = (end + 1, end + 1);
            if line.is_empty() {
                if self.has_data {
                    self.complete = true;
                    return Ok(Some(&self.event));
                }
                self.event.name.clear();
                continue;
            }
            let line = str::from_utf8(line).map_err(|_| Error::NotText)?;
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => {
                    if self.has_data {
                        self.event.data.push('\n');
                    }
                    self.has_data = true;
                    self.event.data.push_str(value);
                }
                "event" => value.clone_into(&mut self.event.name),
                // Comments keep connections alive; ids and times to retry are for readers
                // who come back.
                _ => (),
            }
            if self.event.data.len() > MAX_EVENT_BYTES {
                return Err(Error::TooLarge);
            }
        }
        self.scanned = self.buffer.len();
        match self.buffer.len() - self.taken + self.event.data.len() > MAX_EVENT_BYTES {
            true => Err(Error::TooLarge),
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = ": hello\n\nevent: ping\ndata: {}\n\ndata: one\r\ndata:two\r\n\r\nid: 7\n\ndata: ünï\n\ndata: half";

    fn all(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut decoder = Decoder::default();
        let mut events = Vec::new();
        for piece in pieces {
            decoder.feed(piece);
            while let Some(Event { name, data }) = decoder.next().unwrap() {
                events.push((name.clone(), data.clone()));
            }
        }
        events
    }

    proptest! {
        #[test]
        fn events_are_the_same_however_they_are_cut(mut cuts in prop::collection::vec(0..STREAM.len(), 0..8)) {
            cuts.sort_unstable();
            let (mut pieces, mut from) = (Vec::new(), 0);
            for cut in cuts {
                pieces.push(&STREAM.as_bytes()[from..cut]);
                from = cut;
            }
            pieces.push(&STREAM.as_bytes()[from..]);
            let expected = [("ping", "{}"), ("", "one\ntwo"), ("", "ünï")];
            let expected = expected.map(|(name, data)| (name.to_owned(), data.to_owned()));
            prop_assert_eq!(all(&pieces), expected);
        }

        #[test]
        fn nothing_makes_it_panic(bytes in prop::collection::vec(prop::sample::select(b"da:t \r\n\xff".to_vec()), 0..200)) {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            while let Ok(Some(_)) = decoder.next() {}
        }
    }

    #[test]
    fn an_event_without_an_end_is_given_up() {
        let mut decoder = Decoder::default();
        let piece = vec![b'x'; 64 * 1024];
        let mut fed = 0;
        while decoder.next().is_ok() {
            decoder.feed(&piece);
            fed += piece.len();
        }
        assert!((MAX_EVENT_BYTES..MAX_EVENT_BYTES + 2 * piece.len()).contains(&fed));
    }
}
