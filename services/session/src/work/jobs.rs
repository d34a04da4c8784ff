use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chassis::schema::Validator;
use moka::future::Cache;
use serde_json::json;
use tracing::warn;

use super::{Order, RUNS, place, stop_turn};
use crate::{
    error::{Error, Result},
    host::Host,
    ids::{JobId, RunId},
    job,
    store::{
        items::{self, Outcome, Plan, Run, Stopping},
        turns::Stamp,
    },
    works::{Heard, Work},
};

/// How many answers are taken in at once: each may be long.
const ANSWERS: usize = 200;

/// How many jobs are looked at in one go.
const JOBS: i64 = 100;

/// How many jobs are remembered.
const REMEMBERED: u64 = 200;

pub struct Jobs {
    host: Arc<Host>,
    plans: Cache<JobId, Arc<Known>>,
    /// How far the look at all items got.
    after: Option<RunId>,
}

/// What all items of a job share.
struct Known {
    plan: Plan,
    checker: Option<Validator>,
}

impl Jobs {
    pub fn new(host: Arc<Host>) -> Jobs {
        Jobs { host, plans: Cache::new(REMEMBERED), after: None }
    }

    pub async fn look(&mut self, heard: &Heard) -> Result<()> {
        let mut jobs: BTreeSet<_> = heard.jobs.iter().copied().collect();
        let mut ids: Vec<_> = heard.items.iter().copied().collect();
        if heard.everything {
            let page = items::open(&self.host.db, self.after, RUNS).await?;
            self.after = page.last().copied().filter(|_| page.len() as i64 == RUNS);
            ids.extend(page);
        }
        for ids in ids.chunks(ANSWERS) {
            jobs.extend(self.settle(ids).await?);
        }
        if heard.everything || !heard.jobs.is_empty() {
            self.stop().await?;
        }
        if heard.everything {
            jobs.extend(items::due(&self.host.db, JOBS).await?);
        }
        for id in jobs {
            // One job must not keep the others from being started.
            if let Err(error) = self.start(id).await {
                warn!(%error, job.id = %id, "cannot start items of job {id}, trying again");
            }
        }
        Ok(())
    }

    async fn known(&self, id: JobId) -> Result<Arc<Known>> {
        if let Some(known) = self.plans.get(&id).await {
            return Ok(known);
        }
        let plan = items::plan(&self.host.db, id).await?;
        let checker = job::checker(&plan.output_schema);
        let checker = checker.map_err(|_| Error::Corrupt("a job has a schema that is none"))?;
        let known = Arc::new(Known { plan, checker });
        self.plans.insert(id, known.clone()).await;
        Ok(known)
    }

    /// Takes in what became of these, and says which jobs that was about.
    async fn settle(&self, ids: &[RunId]) -> Result<BTreeSet<JobId>> {
        let mut ended = BTreeMap::<JobId, Vec<Outcome>>::new();
        let changed = async |db: &mut _| items::changed(db, ids).await;
        for run in self.host.lanes.run(changed).await? {
            let known = self.known(run.job_id).await?;
            match run.status {
                Some(_) => {
                    self.host.bus.works().forget(run.id.session());
                    let outcome = outcome(&known, &run);
                    ended.entry(run.job_id).or_default().push(outcome);
                }
                None => self.hand_out(known, run.job_id, run.id, run.input),
            }
        }
        let stamp = Stamp::of(self.host.replica);
        for (id, outcomes) in &ended {
            let settle = async |db: &mut _| items::settle(db, *id, outcomes, &stamp).await;
            let events = self.host.lanes.run(settle).await?;
            let known = self.known(*id).await?;
            self.host.bus.publish(&known.plan.tenant, id.session(), events, false);
        }
        Ok(ended.into_keys().collect())
    }

    /// Starts as many items of a job as it and this replica have room for.
    async fn start(&self, id: JobId) -> Result<()> {
        let known = self.known(id).await?;
        let room = self.host.places.spare_of(&known.plan.tenant);
        if room == 0 {
            return Ok(());
        }
        let stamp = Stamp::of(self.host.replica);
        let start = async |db: &mut _| items::start(db, id, room.min(MOST), &stamp).await;
        let (started, events) = self.host.lanes.run(start).await?;
        for item in started {
            self.hand_out(known.clone(), id, item.run_id, item.input);
        }
        self.host.bus.publish(&known.plan.tenant, id.session(), events, false);
        Ok(())
    }

    /// Submits the turn of an item; whatever goes wrong, the next look finds it.
    fn hand_out(&self, known: Arc<Known>, job_id: JobId, run_id: RunId, input: String) {
        let host = self.host.clone();
        tokio::spawn(async move {
            let order = Order {
                tenant: known.plan.tenant.clone(),
                session_id: run_id.session(),
                run_id,
                subject: known.plan.subject.clone(),
                texts: vec![job::message(&known.plan.instruction, &input)],
                headless: true,
                about: json!({ "job_id": job_id, "run_id": run_id }),
            };
            let placed = match place(&host, order, Work::Item(run_id)).await {
                Err(Error::SessionNotFound(_)) => gone(&host, &known, job_id, run_id).await,
                result => result,
            };
            if let Err(error) = placed {
                warn!(%error, job.id = %job_id, "cannot submit an item of job {job_id}, trying again");
            }
        });
    }

    /// Stops what runs of jobs that were cancelled.
    async fn stop(&self) -> Result<()> {
        for Stopping { tenant, run_id, reason } in items::stopping(&self.host.db, RUNS).await? {
            let reason = match reason.as_str() {
                "" => "the job was cancelled".to_owned(),
                reason => format!("the job was cancelled: {reason}"),
            };
            stop_turn(&self.host, &tenant, run_id.session(), run_id, &reason).await?;
        }
        Ok(())
    }
}

/// More than a job may have running at once is never started at once.
const MOST: usize = 64;

/// What the end of its turn means for an item.
fn outcome(known: &Known, run: &Run) -> Outcome {
    let nothing = Outcome { run_id: run.id, status: "failed", error: None, result: None };
    match run.status.as_deref() {
        Some("completed") => match job::result(known.checker.as_ref(), &run.answer) {
            Ok(result) => Outcome { status: "completed", result: Some(result), ..nothing },
            Err(problem) => Outcome { error: Some(problem), ..nothing },
        },
        Some("cancelled") => {
            Outcome { status: "cancelled", error: Some(run.message.clone()), ..nothing }
        }
        _ => Outcome { error: Some(run.message.clone()), ..nothing },
    }
}

/// Somebody deleted the session that an item was to run in.
async fn gone(host: &Host, known: &Known, job_id: JobId, run_id: RunId) -> Result<()> {
    let error = Some("its session was deleted".to_owned());
    let outcome = Outcome { run_id, status: "failed", error, result: None };
    let stamp = Stamp::of(host.replica);
    let events = items::settle(&host.db, job_id, &[outcome], &stamp).await?;
    host.bus.publish(&known.plan.tenant, job_id.session(), events, false);
    Ok(())
}
