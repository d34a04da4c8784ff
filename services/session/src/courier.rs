//! Delivers what one session has to tell another: that a child is to end, what it waits for, what it
//! was told, and how it ended. Each piece arrives once: it is removed in the transaction that changes
//! its addressee, whoever delivers it.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::StreamExt as _;
use rand::Rng as _;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::{
    error::Result,
    host::Host,
    ids::SessionId,
    message::Message,
    store::{
        messages::{self, Window},
        subagents::{self, Delivery, Mail},
        turns::Stamp,
    },
    subagent::Outcome,
};

/// How often somebody looks for mail that nobody told of: that of a process that died.
const SWEEP: Duration = Duration::from_secs(1);

/// How many sessions one look finds, how many get theirs side by side, and how much each at once.
const SESSIONS: i64 = 500;
const SIDE_BY_SIDE: usize = 8;
const PIECES: i64 = 50;

/// What is read of a child that has ended.
const MESSAGES: i64 = 100;
const BYTES: i64 = 1024 * 1024;

/// Delivers for ever.
pub async fn run(host: Arc<Host>) {
    let mut due = later();
    loop {
        let find = async || subagents::addressees(&host.db, SESSIONS).await;
        let waiting = waiting(&mut due, host.bus.mail(), find).await;
        let deliver = async |id: SessionId| {
            if let Err(error) = deliver(&host, id).await {
                warn!(%error, session.id = %id, "cannot deliver mail to session {id}, trying again");
            }
        };
        futures::stream::iter(waiting).for_each_concurrent(SIDE_BY_SIDE, deliver).await;
    }
}

/// When to look again. Not all replicas look at once.
fn later() -> Instant {
    Instant::now() + SWEEP.mul_f64(rand::rng().random_range(0.5..1.5))
}

/// Who has mail, as soon as somebody has. When a look is due there is one, however much is told
/// meanwhile: what others left is told by nobody.
async fn waiting(
    due: &mut Instant,
    told: impl Future<Output = Vec<SessionId>>,
    find: impl AsyncFnOnce() -> Result<Vec<SessionId>>,
) -> HashSet<SessionId> {
    let mut waiting = HashSet::new();
    tokio::select! {
        told = told => waiting.extend(told),
        () = sleep_until(*due) => {}
    }
    if *due <= Instant::now() {
        *due = later();
        match find().await {
            Ok(found) => waiting.extend(found),
            Err(error) => warn!(%error, "cannot look for mail between sessions, trying again"),
        }
    }
    waiting
}

/// Delivers all mail of a session.
pub async fn deliver(host: &Host, id: SessionId) -> Result<()> {
    loop {
        let mail = subagents::mail(&host.db, id, PIECES).await?;
        if mail.is_empty() {
            return Ok(());
        }
        let mut deliveries = Vec::with_capacity(mail.len());
        for Mail { id, end, gone } in mail {
            let outcome = match end {
                Some((about, end)) => {
                    let (said, more) = match gone {
                        true => Default::default(),
                        false => last_words(host, about.session_id).await?,
                    };
                    Some(Outcome::new(about, end, &said, more))
                }
                None => None,
            };
            deliveries.push(Delivery { id, outcome });
        }
        let stamp = Stamp::of(host.replica);
        let delivered = subagents::deliver(&host.db, id, &deliveries, &stamp).await?;
        if let Some(tenant) = &delivered.tenant {
            host.bus.publish(tenant, id, delivered.events, delivered.ready);
        }
        if let Some(owner) = delivered.owner {
            host.bus.nudge(owner);
        }
    }
}

/// The latest messages of a child, which has ended and says nothing more, and whether there are
/// others before them.
async fn last_words(host: &Host, id: SessionId) -> Result<(Vec<Message>, bool)> {
    let mut db = host.db.acquire().await?;
    let window = Window::Before(i64::MAX, MESSAGES);
    let (stored, more) = messages::page(&mut db, id, window, false, BYTES).await?;
    let said = stored.into_iter().map(|message| message.into_message()).collect::<Result<_>>()?;
    Ok((said, more))
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test]
    async fn who_always_has_mail_to_deliver_looks_for_that_of_others_too() {
        let (own, left) = (SessionId::new(), SessionId::new());
        let told = async || {
            sleep(SWEEP / 20).await;
            vec![own]
        };
        let (begun, mut due) = (Instant::now(), later());
        let mut rounds = 0;
        while !waiting(&mut due, told(), async || Ok(vec![left])).await.contains(&left) {
            assert!(begun.elapsed() < 5 * SWEEP, "nobody looked");
            rounds += 1;
        }
        assert!(rounds > 0, "it looked before it was time");
    }
}
