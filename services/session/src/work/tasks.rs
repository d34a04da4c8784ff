use std::sync::Arc;

use chassis::Tenant;
use serde_json::json;
use tracing::warn;

use super::{Order, RUNS, place, stop_turn};
use crate::{
    error::{Error, Result},
    host::Host,
    ids::{RunId, TaskId},
    store::{
        runs::{self, Errand, Run, Wish},
        tasks::{self, Change, RunChange},
        turns::Stamp,
    },
    task::{self, Move, Seen},
    works::{Heard, Work},
};

/// How many wishes are delivered before something else gets its turn.
const WISHES: i64 = 200;

pub struct Tasks {
    host: Arc<Host>,
    /// How far the look at all attempts got.
    after: Option<RunId>,
    /// With whom the next look at what waits begins.
    first: Option<Tenant>,
}

impl Tasks {
    pub fn new(host: Arc<Host>) -> Tasks {
        Tasks { host, after: None, first: None }
    }

    pub async fn look(&mut self, heard: &Heard) -> Result<()> {
        let mut ids: Vec<_> = heard.tasks.iter().copied().collect();
        if heard.everything {
            let page = runs::open(&self.host.db, self.after, RUNS).await?;
            self.after = page.last().copied().filter(|_| page.len() as i64 == RUNS);
            ids.extend(page);
        }
        let mut wishes = heard.wishes || heard.everything;
        if !ids.is_empty() {
            for run in runs::changed(&self.host.db, &ids).await? {
                // Whatever is done may be what others wait for.
                wishes = true;
                let id = run.task_id;
                if let Err(error) = follow(&self.host, run).await {
                    warn!(%error, task.id = %id, "cannot follow task {id}, trying again");
                }
            }
        }
        if wishes {
            deliver(&self.host).await?;
            start(&self.host, &mut self.first).await?;
        }
        Ok(())
    }
}

/// Begins attempts of tasks that wait, as many as there is room for.
async fn start(host: &Arc<Host>, first: &mut Option<Tenant>) -> Result<()> {
    let room = host.places.spare();
    if room == 0 {
        return Ok(());
    }
    let due = runs::due(&host.db, first.as_ref(), room as i64).await?;
    *first = due.first().map(|(tenant, _)| tenant.clone());
    for (tenant, id) in due {
        // Nobody's tasks take all of it.
        if host.places.spare_of(&tenant) == 0 {
            continue;
        }
        if let Err(error) = begin(host, id).await {
            warn!(%error, task.id = %id, "cannot begin an attempt of task {id}, trying again");
        }
    }
    Ok(())
}

async fn begin(host: &Arc<Host>, id: TaskId) -> Result<()> {
    let (run_id, events) =
        runs::start(&host.db, id, host.replica, &Stamp::of(host.replica)).await?;
    let errand = runs::errand(&host.db, id).await?;
    host.bus.publish(&errand.tenant, id.session(), events, false);
    match run_id {
        Some(run_id) => hand_out(host, id, run_id, errand).await,
        None => Ok(()),
    }
}

/// Submits the turn of an attempt that began.
async fn hand_out(host: &Arc<Host>, id: TaskId, run_id: RunId, errand: Errand) -> Result<()> {
    let criteria: Vec<_> =
        errand.acceptance.iter().map(|criterion| criterion.criterion.as_str()).collect();
    let order = Order {
        tenant: errand.tenant.clone(),
        session_id: id.session(),
        run_id,
        subject: errand.owner,
        texts: task::message(&errand.objective, &criteria),
        headless: false,
        about: json!({ "task_id": id, "run_id": run_id }),
    };
    match place(host, order, Work::Task(run_id)).await {
        Err(Error::SessionNotFound(_)) => {
            let error = "its session was deleted";
            let run = RunChange { id: run_id, status: "failed", error };
            let change = Change { run: Some(run), error, ..Change::default() };
            move_on(host, &errand.tenant, id, Some(Move::Fail), &change).await
        }
        result => result,
    }
}

/// Takes in what became of an attempt, and stops it where somebody wants that.
async fn follow(host: &Arc<Host>, run: Run) -> Result<()> {
    if !run.submitted {
        let errand = runs::errand(&host.db, run.task_id).await?;
        return hand_out(host, run.task_id, run.id, errand).await;
    }
    let over = ["completed", "failed", "cancelled"].contains(&run.status.as_str());
    let mut stopping = run.stopping.as_deref();
    if run.late && stopping.is_none() {
        runs::stop(&host.db, run.id, "timed_out").await?;
        stopping = Some("timed_out");
    }
    if !over && let Some(why) = stopping {
        let reason = stopped(why, run.timeout_seconds);
        stop_turn(host, &run.tenant, run.task_id.session(), run.id, &reason).await?;
    }
    if run.status == run.known {
        return Ok(());
    }
    if over {
        host.bus.works().forget(run.task_id.session());
    }
    let seen = Seen { status: &run.status, reason: &run.reason, stopping };
    let error = match run.status.as_str() {
        "failed" | "cancelled" => run.message.as_str(),
        _ => "",
    };
    let attempt = RunChange { id: run.id, status: seen.attempt(), error };
    let change = Change { run: Some(attempt), error, ..Change::default() };
    move_on(host, &run.tenant, run.task_id, seen.means(), &change).await
}

/// What the turn is told, and so what the attempt says when it ended.
fn stopped(why: &str, timeout_seconds: i32) -> String {
    match why {
        "timed_out" => format!("the attempt took longer than {timeout_seconds} s"),
        "paused" => "the task was paused".to_owned(),
        _ => "the task was cancelled".to_owned(),
    }
}

async fn move_on(
    host: &Host,
    tenant: &Tenant,
    id: TaskId,
    what: Option<Move>,
    change: &Change<'_>,
) -> Result<()> {
    let stamp = Stamp::of(host.replica);
    let moved = tasks::apply(&host.db, None, id, what, change, &stamp).await?;
    host.bus.publish(tenant, id.session(), moved.events, false);
    Ok(())
}

/// Brings to tasks what others want of them; what follows from it too.
async fn deliver(host: &Host) -> Result<()> {
    loop {
        let wishes = runs::wishes(&host.db, WISHES).await?;
        if wishes.is_empty() {
            return Ok(());
        }
        for wish in wishes {
            grant(host, wish).await?;
        }
    }
}

async fn grant(host: &Host, wish: Wish) -> Result<()> {
    let (id, stamp) = (wish.task_id, Stamp::of(host.replica));
    let command = match wish.wish.as_str() {
        "pause" => Move::Pause,
        "resume" => Move::Resume,
        "cancel" => Move::Cancel,
        "archive" => Move::Archive,
        _ => {
            let moved = runs::check(&host.db, id, wish.id, &stamp).await?;
            let errand = runs::errand(&host.db, id).await?;
            host.bus.publish(&errand.tenant, id.session(), moved.events, false);
            return Ok(());
        }
    };
    let change = Change {
        wish: Some(wish.id),
        origin: Some(&wish.origin),
        ..Change::by_command(command, &wish.subject, &wish.reason)
    };
    let moved = tasks::apply(&host.db, None, id, Some(command), &change, &stamp).await?;
    let errand = runs::errand(&host.db, id).await?;
    host.bus.publish(&errand.tenant, id.session(), moved.events, false);
    if moved.stops {
        stop_runs(host, &errand.tenant, id).await?;
    }
    Ok(())
}

/// Stops what is to be stopped of a task; should this fail, the next look does it.
pub async fn stop_runs(host: &Host, tenant: &Tenant, id: TaskId) -> Result<()> {
    for (run_id, why) in runs::stopping(&host.db, id).await? {
        stop_turn(host, tenant, id.session(), run_id, &stopped(&why, 0)).await?;
    }
    Ok(())
}
