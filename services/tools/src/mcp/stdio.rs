//! Servers that are programs, in the sandbox.

use std::{
    io,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use rmcp::{RoleClient, transport::Transport};
use sandbox::{Child, Output, Profile, Program, Sandbox, Streams};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, ReadBuf},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{guard::Fault, lines::Lines};
use crate::text;

/// How much of the end of what a server prints as errors is kept, in bytes.
const ERRORS: usize = 2 * 1024;

/// How long whoever wants to know why a server ended waits for its last words.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs a server in a sandbox of its own.
pub async fn start(
    sandbox: &Sandbox,
    profile: &Profile,
    workspace: &Path,
    command: &str,
) -> Result<Child, String> {
    let program = Program::bash(command);
    let started = sandbox.spawn_with(profile, workspace, &program, Streams::Piped).await;
    started.map_err(|error| error.to_string())
}

/// The way to a program that was started, which ends with it, and what it prints beside.
pub fn transport(
    mut child: Child,
    fault: Fault,
) -> Result<(impl Transport<RoleClient> + use<>, Errors), String> {
    let broken = || "the sandbox has no pipes".to_owned();
    let input = child.input.take().ok_or_else(broken)?;
    let errors = Errors::of(child.errors.take().ok_or_else(broken)?);
    Ok((Lines::new(Alive { child }, input, fault), errors))
}

/// What a program prints, for as long as somebody reads it: whoever stops, ends the program.
struct Alive {
    child: Child,
}

impl AsyncRead for Alive {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.child.output).poll_read(context, buffer)
    }
}

/// The end of what a server prints as errors.
#[derive(Debug, Clone, Default)]
pub struct Errors {
    held: Arc<Mutex<Vec<u8>>>,
    /// Whether there is more to come. Absent: nothing ever comes.
    over: Option<CancellationToken>,
}

impl Errors {
    /// Collects what is printed here.
    pub fn of(mut printed: Output) -> Errors {
        let over = CancellationToken::new();
        let errors = Errors { over: Some(over.clone()), ..Errors::default() };
        let collected = errors.clone();
        tokio::spawn(async move {
            let _over = over.drop_guard();
            let mut buffer = [0; 4 * 1024];
            while let Ok(read @ 1..) = printed.read(&mut buffer).await {
                collected.push(&buffer[..read]);
            }
        });
        errors
    }

    fn push(&self, bytes: &[u8]) {
        let mut held = self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        held.extend_from_slice(bytes);
        let excess = held.len().saturating_sub(ERRORS);
        held.drain(..excess);
    }

    /// What there is of it, and if it is about to end, all of it.
    pub async fn end(&self) -> String {
        if let Some(over) = &self.over {
            let _ = timeout(LAST_WORDS, over.cancelled()).await;
        }
        let held = self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        text::clean(&held[text::left_over(&held)..])
    }
}

#[tokio::test]
async fn only_the_end_of_errors_is_kept() {
    let errors = Errors::default();
    for number in 0..10_000 {
        errors.push(format!("line {number}\n").as_bytes());
    }
    let end = errors.end().await;
    assert!(end.len() <= ERRORS && end.ends_with("line 9999\n"));
}
