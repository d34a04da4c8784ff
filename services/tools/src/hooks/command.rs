use std::sync::Arc;

use chassis::Places;
use sandbox::{Exit, Output, Profile, Program, Sandbox, Streams, Tier};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tracing::error;

use super::Place;
use crate::{
    hook::{Answer, Hook, LARGEST_ANSWER, blocked, understand},
    redact::Redactor,
    text::{clean, shorten},
    workspaces::Workspaces,
};

/// With this a command blocks, and says why on its standard error.
const BLOCK: i32 = 2;

/// How much is read of what a command says on its standard error, in bytes.
const LARGEST_REASON: usize = 16 * 1024;

/// How much of that is worth repeating when it failed, in characters.
const LONGEST_COMPLAINT: usize = 300;

/// Runs hooks as commands, in the same sandbox as the tool `bash`.
pub struct Commands {
    pub sandbox: Sandbox,
    pub minimum_tier: Tier,
    pub workspaces: Arc<Workspaces>,
    pub redactor: Redactor,

    /// How many may run at once. The others wait, for as long as their own time lasts.
    pub room: Places,
}

impl Commands {
    pub async fn ask(
        &self,
        hook: &Hook,
        place: &Place,
        command: &str,
        body: String,
    ) -> Result<Answer, String> {
        let room = self.room.take(&place.tenant).await;
        let _room = room.map_err(|_| "this server stops".to_owned())?;
        let entered = self.workspaces.enter(&place.tenant, place.workspace_id).await;
        let entered = entered.map_err(|error| {
            error!(%error, workspace.id = %place.workspace_id, "workspace cannot be opened");
            "the workspace cannot be opened".to_owned()
        })?;
        let before = entered.admit().await.map_err(|error| error.to_string())?;
        let (profile, program) = (Profile::at_least(self.minimum_tier), Program::bash(command));
        let started = self.sandbox.spawn_with(&profile, &entered.path, &program, Streams::Piped);
        let mut child = started.await.map_err(|error| format!("it was not started: {error}"))?;
        let (input, errors) = (child.input.take(), child.errors.take());
        let write = async {
            // One that does not read what it is told need not.
            if let Some(mut input) = input {
                let _ = input.write_all(body.as_bytes()).await;
            }
        };
        let complain = async {
            match errors {
                Some(mut errors) => read(&mut errors, LARGEST_REASON).await,
                None => Ok((vec![], false)),
            }
        };
        let listen =
            async { tokio::join!(write, read(&mut child.output, LARGEST_ANSWER), complain) };
        let (_, said, complaint) = tokio::select! {
            heard = listen => heard,
            // The command ends with what listens to it.
            full = entered.overflow(before) => return Err(full.to_string()),
        };
        entered.forget_used();
        let failed = |error: std::io::Error| format!("it cannot be listened to: {error}");
        let ((said, much), (complaint, _)) = (said.map_err(failed)?, complaint.map_err(failed)?);
        let exit = child.wait().await.map_err(|error| format!("it did not end: {error}"))?;
        let (said, complaint) = (self.redact(&said), self.redact(&complaint));
        let complaint = clean(&complaint);
        match exit {
            Exit::Code(0) if much => Err("its answer is larger than 1 MiB".to_owned()),
            Exit::Code(0) => understand(hook.event, &said),
            Exit::Code(BLOCK) => Ok(blocked(&complaint)),
            exit => {
                let how = match exit {
                    Exit::Code(code) => format!("it ended with the exit code {code}"),
                    Exit::Signal(signal) => format!("it was ended by the signal {signal}"),
                    Exit::Killed => "it was killed".to_owned(),
                };
                match complaint.trim() {
                    "" => Err(how),
                    text => Err(format!("{how}: {}", shorten(text, LONGEST_COMPLAINT))),
                }
            }
        }
    }

    fn redact(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.redactor.stream();
        let mut clean = stream.push(bytes).to_vec();
        clean.extend_from_slice(&stream.finish());
        clean
    }
}

/// The beginning of what a command says, and whether there was more. All of it is read, so that
/// it can come to its end.
async fn read(output: &mut Output, most: usize) -> std::io::Result<(Vec<u8>, bool)> {
    let (mut said, mut much) = (Vec::new(), false);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = output.read(&mut buffer).await?;
        if read == 0 {
            return Ok((said, much));
        }
        let room = (most - said.len()).min(read);
        said.extend_from_slice(&buffer[..room]);
        much |= room < read;
    }
}
