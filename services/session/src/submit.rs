//! Takes a turn in, and runs it here if there is room: then nobody else has to hear of it.

use std::{mem, sync::Arc};

use chassis::Tenant;
use proto::event::v1::{Event, Payload};
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::{
    driver::Known,
    error::{Error, Result},
    host::Host,
    ids::SessionId,
    message::{Message, Role},
    store::{
        self,
        turns::{Claim, Context, NewTurn, Stamp, Submitted},
    },
    worker::{self, Place},
};

/// Stores the turn, tells readers, and starts what is ready.
pub async fn submit(host: &Arc<Host>, new: NewTurn, stamp: Stamp) -> Result<Submitted> {
    let host = host.clone();
    let (told, answer) = oneshot::channel();
    // In a task of its own, which goes on with the turn: a caller that hangs up after the commit
    // must not leave a session that is claimed and that nobody drives.
    let submission = take_in(host.clone(), new, stamp).in_current_span();
    tokio::spawn(async move {
        let (turn, news, ready) = match submission.await {
            Ok(taken) => taken,
            Err(error) => return drop(told.send(Err(error))),
        };
        let tell = async {
            host.bus.publish(&news.tenant, news.session_id, news.events, news.ready);
            let _ = told.send(Ok(turn));
        };
        match ready {
            // In this order: others are told while the model thinks.
            Some(Ready { place, claim, context, known }) => {
                futures::join!(worker::work(host.clone(), place, claim, context, known), tell);
            }
            None => tell.await,
        }
    });
    answer.await.unwrap_or(Err(Error::Corrupt("a submission broke off")))
}

/// What others are told.
struct News {
    tenant: Tenant,
    session_id: SessionId,
    events: Vec<Event>,
    ready: bool,
}

/// A turn that can run here and now.
struct Ready {
    place: Place,
    claim: Claim,
    context: Context,
    known: Option<Known>,
}

async fn take_in(
    host: Arc<Host>,
    new: NewTurn,
    stamp: Stamp,
) -> Result<(Submitted, News, Option<Ready>)> {
    let place = host.places.take(&new.tenant);
    let claimant = place.as_ref().map(|_| host.replica);
    let store = async |db: &mut _| store::turns::submit(db, &new, claimant, &stamp).await;
    let mut turn = host.lanes.run(store).await?;
    let events = mem::take(&mut turn.events);
    let claimed = turn.claimed.take();
    let ready = claimed.is_none() && events.iter().any(makes_ready);
    let news = News { tenant: new.tenant.clone(), session_id: new.session_id, events, ready };
    let (Some((claim, context)), Some(place)) = (claimed, place) else {
        return Ok((turn, news, None));
    };
    let known = known(&host, new, &turn).filter(|_| claim.turn_id == turn.turn_id);
    Ok((turn, news, Some(Ready { place, claim, context, known })))
}

/// The conversation, if its last turn ran here and nothing came between that and this one.
fn known(host: &Host, new: NewTurn, turn: &Submitted) -> Option<Known> {
    let mut messages = host.recent.take(new.session_id, turn.sequence - 1)?;
    messages.push(Message {
        id: turn.message_id,
        turn_id: turn.turn_id,
        role: Role::User,
        metadata: serde_json::from_value(new.metadata).ok()?,
        parts: new.parts,
    });
    Some(Known { messages, submitted_at: turn.submitted_at })
}

/// Whether there is a turn to claim now: this one, or one that waited before it.
pub fn makes_ready(event: &Event) -> bool {
    match &event.payload {
        Some(Payload::TurnSubmitted(submitted)) => submitted.status == "accepted",
        Some(Payload::QueueChanged(changed)) => changed.change == "fired",
        _ => false,
    }
}
