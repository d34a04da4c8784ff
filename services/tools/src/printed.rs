use proto::event::v1::Payload;
use tracing::error;

use crate::{
    catalog::Run, facts, output::Output, outputs::Kept, progress::Progress, redact::Redacted,
    spool::Spool,
};

/// What a command prints: the beginning as it happens, beginning and end for the model, and
/// all of it for whoever wants to know. Secrets are in none of them.
pub struct Printed<'a> {
    run: &'a Run<'a>,
    redacted: Redacted<'a>,
    progress: Progress<'a>,
    preview: Output,
    /// Absent after it failed: a full disk must not keep a command from ending.
    spool: Option<Spool>,
}

impl<'a> Printed<'a> {
    /// A model gets to see `budget` bytes.
    pub fn new(run: &'a Run<'a>, budget: usize) -> Printed<'a> {
        Printed {
            run,
            redacted: run.redactor.stream(),
            progress: Progress::new(run.facts, budget),
            preview: Output::new(budget),
            spool: Some(run.outputs.spool(budget)),
        }
    }

    /// The same for what is no news while it arrives.
    pub fn silent(run: &'a Run<'a>, budget: usize) -> Printed<'a> {
        Printed { progress: Progress::new(run.facts, 0), ..Printed::new(run, budget) }
    }

    pub async fn push(&mut self, bytes: &[u8]) {
        let bytes = self.redacted.push(bytes);
        self.progress.push(&bytes);
        self.preview.push(&bytes);
        spool(&mut self.spool, &bytes).await;
    }

    /// Passes on what is new.
    pub async fn tell(&mut self) {
        self.progress.flush().await;
    }

    /// Keeps what is more than a preview, and puts on record what became of it.
    pub async fn finish(self) -> (Output, Option<Kept>) {
        let Printed { run, redacted, mut progress, mut preview, spool: mut spooled } = self;
        let rest = redacted.finish();
        progress.push(&rest);
        preview.push(&rest);
        spool(&mut spooled, &rest).await;
        progress.finish().await;
        if !preview.truncated() {
            return (preview, None);
        }
        let kept = match spooled {
            Some(spool) => keep(run, spool).await,
            None => None,
        };
        let total = preview.total();
        if let Some(kept) = &kept {
            let spilled = facts::output_spilled(total, kept);
            run.facts.note_output(kept, Payload::OutputSpilled(spilled)).await;
        }
        let most = kept.as_ref().map_or(preview.kept(), |kept| kept.bytes);
        if most < total {
            let truncated = facts::output_truncated(total, most);
            run.facts.note(Payload::OutputTruncated(truncated)).await;
        }
        (preview, kept)
    }
}

async fn spool(spool: &mut Option<Spool>, bytes: &[u8]) {
    if let Some(open) = spool
        && let Err(error) = open.push(bytes).await
    {
        error!(%error, "an output cannot be kept");
        *spool = None;
    }
}

async fn keep(run: &Run<'_>, spool: Spool) -> Option<Kept> {
    let call = run.facts.call();
    let whole =
        spool.finish().await.inspect_err(|error| error!(%error, "an output cannot be kept"));
    let kept = run.outputs.keep(call, whole.ok()?).await;
    kept.inspect_err(|error| {
        error!(%error, tool_call.id = %call.tool_call_id, "the output of {} cannot be kept", call.tool);
    })
    .ok()
}
