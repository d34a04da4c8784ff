//! Messages over standard input and output: JSON, one per line.

use std::{io, sync::Arc, time::Instant};

use rmcp::{
    RoleClient,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::Mutex,
};

use super::{LONGEST_MESSAGE, allowance::Allowance, guard::Fault};

type Incoming = RxJsonRpcMessage<RoleClient>;

/// Takes messages out of bytes, which arrive in pieces that need not end where lines do.
#[derive(Debug)]
pub struct Frames {
    held: Vec<u8>,
    /// How much of it is known to have no end of a line in it.
    looked_at: usize,
    longest: usize,
}

/// A line is longer than any message may be.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

/// What a line is.
#[derive(Debug)]
pub enum Line {
    Message(Box<Incoming>),
    /// Programs print all kinds of things.
    Noise,
}

impl Frames {
    pub fn new(longest: usize) -> Frames {
        Frames { held: Vec::new(), looked_at: 0, longest }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next line that is complete, if one is. After a line that is too long there is nothing
    /// more to expect.
    pub fn next(&mut self) -> Result<Option<Line>, TooLong> {
        let end = self.held[self.looked_at..].iter().position(|byte| *byte == b'\n');
        let Some(end) = end.map(|end| end + self.looked_at) else {
            self.looked_at = self.held.len();
            return match self.held.len() > self.longest {
                true => Err(TooLong),
                false => Ok(None),
            };
        };
        if end > self.longest {
            return Err(TooLong);
        }
        let line = match serde_json::from_slice(&self.held[..end]) {
            Ok(message) => Line::Message(Box::new(message)),
            Err(_) => Line::Noise,
        };
        self.held.drain(..=end);
        self.looked_at = 0;
        Ok(Some(line))
    }
}

/// A server at the other end of two pipes.
pub struct Lines<R, W> {
    output: R,
    frames: Frames,
    input: Arc<Mutex<Option<W>>>,
    noise: Allowance,
    fault: Fault,
}

impl<R, W> Lines<R, W> {
    /// What the server prints, and what it reads.
    pub fn new(output: R, input: W, fault: Fault) -> Lines<R, W> {
        Lines {
            output,
            frames: Frames::new(LONGEST_MESSAGE),
            input: Arc::new(Mutex::new(Some(input))),
            noise: Allowance::new(Instant::now()),
            fault,
        }
    }
}

impl<R, W> Transport<RoleClient> for Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let input = self.input.clone();
        async move {
            let mut line = serde_json::to_vec(&item)?;
            line.push(b'\n');
            match input.lock().await.as_mut() {
                Some(input) => {
                    input.write_all(&line).await?;
                    input.flush().await
                }
                None => Err(io::ErrorKind::NotConnected.into()),
            }
        }
    }

    /// Whoever stops waiting loses nothing: what was read is held here.
    async fn receive(&mut self) -> Option<Incoming> {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.frames.next() {
                Ok(Some(Line::Message(message))) => return Some(*message),
                Ok(Some(Line::Noise)) => {
                    if !self.noise.take(Instant::now()) {
                        self.fault.set("it prints too much that is no message");
                        return None;
                    }
                    continue;
                }
                Ok(None) => (),
                Err(TooLong) => {
                    self.fault.set("it sent a message of more than 4 MiB");
                    return None;
                }
            }
            match self.output.read(&mut buffer).await {
                Ok(0) => return None,
                Ok(read) => self.frames.push(&buffer[..read]),
                Err(error) => {
                    self.fault.set(&format!("reading from it failed: {error}"));
                    return None;
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.input.lock().await.take();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MESSAGE: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

    /// Everything that comes of some bytes: how many messages and how much noise, and whether
    /// it ended with a line that is too long.
    fn read(pieces: &[&[u8]], longest: usize) -> (usize, usize, bool) {
        let mut frames = Frames::new(longest);
        let (mut messages, mut noise) = (0, 0);
        for piece in pieces {
            frames.push(piece);
            loop {
                match frames.next() {
                    Ok(Some(Line::Message(_))) => messages += 1,
                    Ok(Some(Line::Noise)) => noise += 1,
                    Ok(None) => break,
                    Err(TooLong) => return (messages, noise, true),
                }
            }
            assert!(frames.held.len() <= longest, "more is held than a message may have");
        }
        (messages, noise, false)
    }

    #[test]
    fn only_whole_lines_of_json_are_messages() {
        let line = format!("{MESSAGE}\n");
        let nested = format!("{}1{}\n", "[".repeat(100_000), "]".repeat(100_000));
        for (what, bytes, expected) in [
            ("nothing", &b""[..], (0, 0, false)),
            ("a message", line.as_bytes(), (1, 0, false)),
            ("half a message", MESSAGE.as_bytes(), (0, 0, false)),
            ("a message and CR", format!("{MESSAGE}\r\n").as_bytes(), (1, 0, false)),
            ("words", b"listening on 8080\n", (0, 1, false)),
            ("empty lines", b"\n\n", (0, 2, false)),
            ("broken UTF-8", b"{\"jsonrpc\":\"\xff\"}\n", (0, 1, false)),
            ("JSON of something else", b"{\"a\":1}\n[]\n", (0, 2, false)),
            ("JSON without end", nested.as_bytes(), (0, 1, false)),
        ] {
            assert_eq!(read(&[bytes], 1_000_000), expected, "{what}");
        }
        assert_eq!(read(&[line.as_bytes()], line.len() - 2), (0, 0, true));
        assert_eq!(read(&[line.as_bytes()], line.len() - 1), (1, 0, false));
    }

    /// Messages, noise, halves and garbage, as a server may mix them.
    fn output() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(format!("{MESSAGE}\n").into_bytes()),
            Just(MESSAGE.as_bytes()[..20].to_vec()),
            Just(b"\n".to_vec()),
            prop::collection::vec(any::<u8>(), 0..80),
            "[\\[\\]{}\":,a-z0-9]{0,60}\n".prop_map(String::into_bytes),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn pieces_make_the_same_messages_as_the_whole(
            output in output(), cuts in prop::collection::vec(1usize..40, 0..40), longest in 40usize..200,
        ) {
            let mut pieces = Vec::new();
            let mut rest = &output[..];
            for cut in cuts {
                let (piece, after) = rest.split_at(rest.len().min(cut));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            let whole = output.split_inclusive(|byte| *byte == b'\n').collect::<Vec<_>>();
            let (messages, noise, too_long) = read(&pieces, longest);
            prop_assert_eq!((messages, noise, too_long), read(&whole, longest));
            prop_assert!(too_long || messages + noise == whole.iter().filter(|line| line.ends_with(b"\n")).count());
        }
    }
}
