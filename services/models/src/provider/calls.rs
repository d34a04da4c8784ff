//! The tool calls of an answer while they grow. Each piece is passed on once and kept
//! once, however many there are.

use super::{Chunk, Delta, Failure};

#[derive(Debug, Default)]
pub struct Calls(Vec<Call>);

#[derive(Debug)]
struct Call {
    /// The provider's name for it within the answer.
    key: u64,
    input_json: String,
    complete: bool,
}

/// More at once is a mistake of the model's.
const MAX_CALLS: usize = 128;

impl Calls {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn knows(&self, key: u64) -> bool {
        self.0.iter().any(|call| call.key == key)
    }

    pub fn start(
        &mut self,
        key: u64,
        provider_call_id: String,
        tool: String,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), Failure> {
        if self.0.len() == MAX_CALLS {
            return Err(Failure::Transient(format!("it made more than {MAX_CALLS} calls at once")));
        }
        let index = self.0.len() as i32;
        self.0.push(Call { key, input_json: String::new(), complete: false });
        chunks.push(Chunk::Delta(Delta::ToolCallStarted { index, provider_call_id, tool }));
        Ok(())
    }

    pub fn grow(&mut self, key: u64, piece: String, chunks: &mut Vec<Chunk>) {
        let call = self.0.iter_mut().enumerate().rev().find(|(_, call)| call.key == key);
        let Some((index, call)) = call.filter(|(_, call)| !call.complete) else { return };
        if piece.is_empty() {
            return;
        }
        call.input_json.push_str(&piece);
        let index = index as i32;
        chunks.push(Chunk::Delta(Delta::ToolCallInput { index, input_json: piece }));
    }

    pub fn complete(&mut self, key: u64, chunks: &mut Vec<Chunk>) {
        for (index, call) in self.0.iter_mut().enumerate() {
            if call.key == key && !call.complete {
                call.complete(index, chunks);
            }
        }
    }

    pub fn complete_all(&mut self, chunks: &mut Vec<Chunk>) {
        for (index, call) in self.0.iter_mut().enumerate() {
            if !call.complete {
                call.complete(index, chunks);
            }
        }
    }
}

impl Call {
    fn complete(&mut self, index: usize, chunks: &mut Vec<Chunk>) {
        self.complete = true;
        let mut input_json = std::mem::take(&mut self.input_json);
        // A tool without arguments is often called with nothing at all.
        if input_json.trim().is_empty() {
            input_json = "{}".to_owned();
        }
        let index = index as i32;
        chunks.push(Chunk::Delta(Delta::ToolCallCompleted { index, input_json }));
    }
}
