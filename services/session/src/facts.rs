//! What happens at the tools service outside of a turn: taken from its outbox and put into the
//! log, once, by whichever replica comes first; and telling it and the triggers service which
//! sessions are gone.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use chassis::{Caller, Tenant};
use proto::{
    event::v1::{Event, RareIds},
    tools::v1::{
        AcknowledgeFactsRequest, EndSessionRequest, Fact as Taken, TakeFactsRequest,
        acknowledge_facts_request::Through,
    },
    triggers::v1::CancelSessionWakeupsRequest,
};
use rand::Rng as _;
use serde_json::value::RawValue;
use tokio::time::sleep;
use tonic::Status;
use tracing::{debug, warn};

use crate::{
    error::{Error, Result},
    host::{ANSWER, Host},
    ids::SessionId,
    store::facts::{self, Fact},
};

/// How much is taken at a time, and how long the tools service waits when there is nothing.
const AT_ONCE: i32 = 200;
const WAIT: Duration = Duration::from_secs(20);

/// How long to wait before asking again somebody who did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// How often somebody looks for sessions that are gone and of which nobody has told.
const LOOK: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(30);
const ENDED: i64 = 100;

/// Takes facts for ever.
pub async fn run(host: Arc<Host>) {
    loop {
        match take(&host).await {
            Ok(facts) => {
                let mut through = Vec::new();
                for ((tenant, session_id), facts) in by_session(facts) {
                    through.extend(append(&host, tenant, session_id, facts).await);
                }
                if let Err(status) = acknowledge(&host, through).await {
                    // They come again, and are known.
                    debug!(%status, "facts could not be acknowledged");
                }
            }
            Err(status) => {
                debug!(%status, "the tools service has no facts for us, asking again");
                sleep(about(AGAIN)).await;
            }
        }
    }
}

/// Not all replicas ask at once.
fn about(time: Duration) -> Duration {
    time.mul_f64(rand::rng().random_range(0.5..1.5))
}

/// Tells the other services of sessions that are gone, for ever.
pub async fn tell(host: Arc<Host>) {
    loop {
        sleep(about(LOOK)).await;
        if let Err(error) = tell_some(&host).await {
            warn!(%error, "cannot look for sessions that are gone, trying again");
        }
    }
}

async fn tell_some(host: &Host) -> Result<()> {
    for (tenant, session_id) in facts::ended(&host.db, ENDED, LEASE).await? {
        let caller = Caller::service(tenant, "system");
        // Hearing it twice does no harm, so both are told until both have heard.
        match tokio::try_join!(end(host, &caller, session_id), forget(host, &caller, session_id)) {
            Ok(_) => facts::told(&host.db, session_id).await?,
            Err(status) => {
                warn!(%status, session.id = %session_id, "cannot tell others that session {session_id} is gone, trying again");
            }
        }
    }
    Ok(())
}

/// Ends what the session has running.
async fn end(host: &Host, caller: &Caller, session_id: SessionId) -> Result<(), Status> {
    let (mut client, peer) = host.processes();
    let request = EndSessionRequest { session_id: session_id.to_string() };
    client.end_session(peer.request_within(ANSWER, caller, request)).await?;
    Ok(())
}

/// Takes back the wake-ups that it asked for.
async fn forget(host: &Host, caller: &Caller, session_id: SessionId) -> Result<(), Status> {
    let (mut client, peer) = host.wakeups();
    let request = CancelSessionWakeupsRequest { session_id: session_id.to_string() };
    client.cancel_session_wakeups(peer.request_within(ANSWER, caller, request)).await?;
    Ok(())
}

/// The facts of the tools service are those of all tenants, whoever asks.
fn caller() -> Caller {
    let tenant = "system".parse::<Tenant>();
    Caller::service(tenant.expect("a word is a tenant"), "system")
}

async fn take(host: &Host) -> Result<Vec<Taken>, Status> {
    let (mut client, peer) = host.facts();
    let request = TakeFactsRequest { limit: AT_ONCE, wait_ms: WAIT.as_millis() as i32 };
    let request = peer.request_within(WAIT + ANSWER, &caller(), request);
    Ok(client.take_facts(request).await?.into_inner().facts)
}

async fn acknowledge(host: &Host, sessions: Vec<Through>) -> Result<(), Status> {
    if sessions.is_empty() {
        return Ok(());
    }
    let (mut client, peer) = host.facts();
    let request = AcknowledgeFactsRequest { sessions };
    client.acknowledge_facts(peer.request_within(ANSWER, &caller(), request)).await?;
    Ok(())
}

/// Facts in their order, by whose they are.
fn by_session(facts: Vec<Taken>) -> BTreeMap<(String, String), Vec<(i64, Event)>> {
    let mut sessions = BTreeMap::<_, Vec<_>>::new();
    for Taken { tenant_id, number, event } in facts {
        let event = event.unwrap_or_default();
        let key = (tenant_id, event.session_id.clone());
        sessions.entry(key).or_default().push((number, event));
    }
    sessions
}

/// Puts a session's facts into its log. Returns up to which they can be forgotten.
async fn append(
    host: &Host,
    tenant_id: String,
    session_id: String,
    taken: Vec<(i64, Event)>,
) -> Option<Through> {
    let number = taken.last()?.0;
    match try_append(host, &tenant_id, &session_id, taken).await {
        Ok(()) => Some(Through { tenant_id, session_id, number }),
        Err(error) => {
            warn!(%error, session.id = session_id, "cannot record facts of session {session_id}, they come again");
            None
        }
    }
}

async fn try_append(
    host: &Host,
    tenant_id: &str,
    session_id: &str,
    taken: Vec<(i64, Event)>,
) -> Result<()> {
    let (Ok(tenant), Ok(session_id)) =
        (tenant_id.parse::<Tenant>(), session_id.parse::<SessionId>())
    else {
        return Err(Error::Corrupt("a fact that belongs to nobody"));
    };
    let facts = taken.into_iter().filter_map(|(number, event)| fact(number, event).transpose());
    let facts = facts.collect::<Result<Vec<_>>>()?;
    let events = facts::append(&host.db, &tenant, session_id, &facts, host.replica).await?;
    host.bus.publish(&tenant, session_id, events, false);
    Ok(())
}

/// A fact as the log takes it; nothing for one whose payload a newer server wrote.
fn fact(number: i64, event: Event) -> Result<Option<Fact>> {
    let Some(payload) = &event.payload else { return Ok(None) };
    let ids = RareIds {
        process_id: event.process_id,
        output_ref: event.output_ref,
        request_id: event.request_id,
        ..RareIds::default()
    };
    let payload = RawValue::from_string(payload.to_json()?)?;
    Ok(Some(Fact { number, r#type: event.r#type, ids, payload }))
}
