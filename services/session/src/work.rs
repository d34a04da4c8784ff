//! Runs what tasks and jobs have to run, and takes in what became of it.
//!
//! Every replica does, and none of them has to: what is to be done is in Postgres, each step is a
//! transaction that somebody else may have made before, and submissions are known by their ids. A
//! replica hears of the turns that it started, and looks at everything now and then.

mod jobs;
mod tasks;

use std::{sync::Arc, time::Duration};

use chassis::Tenant;
use proto::event::v1::{Payload, TurnSubmitted};
use rand::Rng as _;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::{
    error::{Error, Result},
    host::Host,
    ids::{RunId, SessionId},
    message::{Metadata, Part},
    store::{
        self,
        turns::{NewTurn, Stamp},
    },
    submit::submit,
    works::Work,
};

pub use tasks::stop_runs;

/// A hint that was lost costs this long.
const SWEEP: Duration = Duration::from_secs(1);

/// How long to wait for more items to end: nobody waits for one of them, and those that are taken
/// in together cost little more than one.
const GATHER: Duration = Duration::from_millis(20);

/// How much one look takes on; the next one goes on from there.
const RUNS: i64 = 1000;

/// Looks for ever, and at once when something is heard.
pub async fn run(host: Arc<Host>) {
    let mut tasks = tasks::Tasks::new(host.clone());
    let mut jobs = jobs::Jobs::new(host.clone());
    let mut swept = Instant::now();
    loop {
        let rest = SWEEP.saturating_sub(swept.elapsed());
        // Not all replicas look at once.
        let rest = rest.mul_f64(rand::rng().random_range(0.5..1.5));
        let mut heard = host.bus.works().listen(rest).await;
        if !heard.items.is_empty() {
            sleep(GATHER).await;
            heard.add(host.bus.works().heard());
        }
        heard.everything |= swept.elapsed() >= SWEEP;
        if heard.everything {
            swept = Instant::now();
        }
        report("tasks", tasks.look(&heard).await);
        report("jobs", jobs.look(&heard).await);
    }
}

fn report(what: &str, result: Result<()>) {
    if let Err(error) = result {
        warn!(%error, "cannot look after {what}, trying again");
    }
}

/// What is asked for in a session.
struct Order {
    tenant: Tenant,
    session_id: SessionId,
    run_id: RunId,
    subject: String,
    texts: Vec<String>,
    headless: bool,
    /// What is kept with the message.
    about: Value,
}

/// Submits a turn as anybody would. Whoever repeats it finds it done.
async fn place(host: &Arc<Host>, order: Order, work: Work) -> Result<()> {
    let message_id = order.run_id.message();
    let submitted = Payload::TurnSubmitted(TurnSubmitted {
        status: String::new(),
        message_id: message_id.to_string(),
        subject: order.subject.clone(),
        source: "system".to_owned(),
    });
    let metadata =
        Metadata { headless: order.headless, client: Some(order.about), ..Metadata::default() };
    let new = NewTurn {
        tenant: order.tenant,
        session_id: order.session_id,
        message_id,
        request_id: order.run_id.to_string(),
        request_digest: order.run_id.to_string(),
        parts: order.texts.into_iter().map(Part::text).collect(),
        metadata: serde_json::to_value(&metadata)?,
        submitted: serde_json::from_str(&submitted.to_json()?)?,
        subject: order.subject,
        trace_parent: None,
        reject: false,
        queue_limit: host.config.max_queue,
    };
    let works = host.bus.works();
    works.know(order.session_id, work);
    let submitted = submit(host, new, Stamp::of(host.replica)).await;
    submitted.map(drop).inspect_err(|_| works.forget(order.session_id))
}

/// Has a turn stopped, wherever it is. Repeating it, or being late, is no error.
async fn stop_turn(
    host: &Host,
    tenant: &Tenant,
    session_id: SessionId,
    run_id: RunId,
    reason: &str,
) -> Result<()> {
    let (turn_id, stamp) = (Some(run_id.turn()), Stamp::of(host.replica));
    let stopped =
        store::turns::interrupt(&host.db, tenant, session_id, turn_id, "", reason, &stamp).await;
    match stopped {
        Ok(interrupted) => {
            host.bus.publish(tenant, session_id, interrupted.events, interrupted.ready);
            if let Some(owner) = interrupted.owner {
                host.bus.nudge(owner);
            }
            Ok(())
        }
        Err(
            Error::TurnOver { .. }
            | Error::TurnNotFound { .. }
            | Error::NothingRuns(_)
            | Error::SessionNotFound(_),
        ) => Ok(()),
        Err(error) => Err(error),
    }
}
