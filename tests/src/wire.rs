//! Any RPC with any bytes, for whoever wants to say what no generated client would.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _};
use futures::stream;
use http::uri::PathAndQuery;
use tokio::time::timeout;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::{Client, Method};

/// How long a stream may be silent before what it said so far counts as its answer.
const SILENCE: Duration = Duration::from_millis(300);

/// Longer than any answer takes that begins at all, on a busy machine too.
const DEADLINE: Duration = Duration::from_secs(20);

/// A stream that goes on for ever is cut here.
const MOST: usize = 10_000;
const MOST_BYTES: usize = 64 * 1024 * 1024;

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub messages: Vec<Vec<u8>>,
    /// How the call ended; also `OK` when it would have gone on.
    pub status: Status,
}

impl Reply {
    /// Whether any of it has these bytes, be it in a message, an error or the details of one.
    pub fn contains(&self, text: &str) -> bool {
        let holds =
            |bytes: &[u8]| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        self.messages.iter().any(|message| holds(message))
            || self.status.message().contains(text)
            || holds(self.status.details())
    }
}

impl Client {
    /// Sends these bytes as the messages of a call, and hears it out.
    pub async fn send(&self, method: &Method, messages: Vec<Vec<u8>>) -> Reply {
        self.send_within(DEADLINE, method, messages).await
    }

    /// The same for a call that is expected to wait.
    pub async fn send_within(
        &self,
        deadline: Duration,
        method: &Method,
        messages: Vec<Vec<u8>>,
    ) -> Reply {
        let path: PathAndQuery = format!("/{}", method.name).parse().unwrap();
        let mut reply = Reply { messages: Vec::new(), status: Status::new(Code::Ok, "") };
        let mut request = Request::new(stream::iter(messages));
        request.set_timeout(deadline);
        let call = async {
            let mut grpc = Grpc::new(self.to(method.service));
            if let Err(error) = grpc.ready().await {
                return Err(Status::unavailable(error.to_string()));
            }
            grpc.streaming(request, path, Raw).await
        };
        // The server ends a call at its deadline; one that does not is worse than late.
        let answer = match timeout(deadline + SILENCE * 10, call).await {
            Ok(Ok(answer)) => answer,
            // The client may be the first to see that it is too late.
            Ok(Err(status)) if status.message() == "Timeout expired" => {
                return Reply { status: Status::deadline_exceeded("too late"), ..reply };
            }
            Ok(Err(status)) => return Reply { status, ..reply },
            Err(_) => panic!("{} does not even end at its deadline", method.name),
        };
        let mut answer = answer.into_inner();
        let mut bytes = 0;
        while reply.messages.len() < MOST && bytes < MOST_BYTES {
            match timeout(SILENCE, answer.message()).await {
                Ok(Ok(Some(message))) => {
                    bytes += message.len();
                    reply.messages.push(message);
                }
                Ok(Err(status)) => return Reply { status, ..reply },
                Ok(Ok(None)) | Err(_) => break,
            }
        }
        reply
    }
}

/// Bytes as they are.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining()).to_vec()))
    }
}
