//! Whether a log is what was sealed.

use chassis::Tenant;
use proto::session::v1 as pb;
use tokio::task::yield_now;

use super::{Api, snapshot};
use crate::{
    error::{Error, Result},
    ids::SessionId,
    keeper::SEALED,
    seal::{Break, Digest, Seal, digest},
    store::{events, seals, sessions},
};

/// How many seals are read at once.
const PAGE: i64 = 16;

impl Api {
    /// Recomputes everything, a piece at a time, in one state of the log.
    pub(super) async fn verify(
        &self,
        tenant: &Tenant,
        id: SessionId,
    ) -> Result<pb::VerifyLogResponse> {
        let place = self.rooms.checks.take(tenant).await;
        let _place = place.map_err(|_| Error::Stopping)?;
        let mut db = snapshot::one_state(&self.host.db).await?;
        let last = sessions::get(&mut *db, tenant, id).await?.last_sequence;
        let first = seals::first_sequence(&mut *db, id).await?;
        let mut answer = pb::VerifyLogResponse { first_sequence: first, ..Default::default() };
        let mut before: Option<Seal> = None;
        loop {
            let page = seals::after(&mut *db, id, answer.seals, PAGE).await?;
            if page.is_empty() {
                break;
            }
            for seal in page {
                // Digests take the processor, and others want it too.
                yield_now().await;
                let (after, through) = (seal.first_sequence - 1, seal.through_sequence);
                let rows = events::rows(&mut *db, id, after, through, SEALED, i64::MAX).await?;
                let found = rows
                    .into_iter()
                    .map(|row| Ok((row.seq, digest(row.into_envelope()?.get())?)))
                    .collect::<Result<Vec<(i64, Digest)>>>()?;
                match seal.check(before.as_ref(), &found, first) {
                    Ok(joined) => answer.joined_events += joined,
                    Err(broken) => return Ok(report(answer, broken)),
                }
                answer.seals = seal.number;
                answer.sealed_through_sequence = through;
                before = Some(seal);
            }
        }
        let sealed = answer.sealed_through_sequence;
        if let Some(sequence) = seals::missing(&mut *db, id, sealed, last).await? {
            let problem = format!("event {sequence} is missing");
            return Ok(report(answer, Break { sequence, problem }));
        }
        Ok(pb::VerifyLogResponse { intact: true, ..answer })
    }
}

fn report(answer: pb::VerifyLogResponse, broken: Break) -> pb::VerifyLogResponse {
    pb::VerifyLogResponse { broken_at_sequence: broken.sequence, problem: broken.problem, ..answer }
}
