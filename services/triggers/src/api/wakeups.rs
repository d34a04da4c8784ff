use chassis::{Caller, Tenant};
use jiff::{SignedDuration, Timestamp};
use proto::triggers::v1::{
    self as pb, request_wakeup_request::When as PbWhen, wakeup_service_server::WakeupService,
};
use tonic::{Request, Response, Status};

use super::{Api, check};
use crate::{
    error::{Error, Result, invalid, parse},
    ids::TriggerId,
    schedule::{Doubled, Misfire, Overlap, Plan, Problem, Schedule, Skipped, When},
    store::{
        self,
        triggers::{Created, NewTrigger},
    },
    time::to_proto,
    trigger::{Definition, Kind, Source, Status as TriggerStatus, Target, TargetSession, Trigger},
};

const LONGEST_MESSAGE: usize = 16 * 1024;

#[tonic::async_trait]
impl WakeupService for Api {
    async fn request_wakeup(
        &self,
        request: Request<pb::RequestWakeupRequest>,
    ) -> Result<Response<pb::RequestWakeupResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let session_id = check::id_of("session_id", "ses", &request.session_id)?;
        // A slash keeps it apart from what people choose.
        let request_id = format!("{session_id}/{}", check::request_id(&request.request_id)?);
        let now = self.fire.clock.now();
        let trigger = wakeup(caller, &request, now, self.fire.limits.wakeup_horizon)?;
        let plan = trigger.plan().map_err(|Problem { field, problem }| invalid(field, problem))?;
        let due = plan.and_then(|plan| plan.next(now)).ok_or_else(|| check::never("when"))?;
        let horizon = SignedDuration::try_from(self.fire.limits.wakeup_horizon);
        if horizon.is_ok_and(|horizon| due.last || due.at.duration_since(now) > horizon) {
            let days = self.fire.limits.wakeup_horizon.as_secs() / 86_400;
            let problem = format!("it lies beyond the horizon of {days} days");
            return Err(Error::WakeupLimit { limit: "horizon".to_owned(), problem }.into());
        }

        let new = NewTrigger {
            trigger: &trigger,
            request_id: &request_id,
            request_digest: &check::digest(&request),
            due: Some(due),
        };
        let mut db = chassis::database::begin(&self.db, "begin").await.map_err(Error::Database)?;
        store::wakeups::lock(&mut db, session_id).await?;
        let waiting = store::wakeups::count(&mut db, &trigger.tenant, session_id).await?;
        let id = match store::triggers::create(&mut db, &new).await? {
            Created::Before(id) => id,
            Created::Now if waiting >= self.fire.limits.max_wakeups => {
                let problem = format!(
                    "the session has {waiting} wake-ups, which is as many as it may; cancel one first"
                );
                return Err(Error::WakeupLimit { limit: "count".to_owned(), problem }.into());
            }
            Created::Now => trigger.id,
        };
        db.commit().await.map_err(Error::Database)?;
        self.poke.notify_one();
        Ok(Response::new(self.answer(&trigger.tenant, id).await?))
    }

    async fn cancel_wakeup(
        &self,
        request: Request<pb::CancelWakeupRequest>,
    ) -> Result<Response<pb::CancelWakeupResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let session_id = check::id_of("session_id", "ses", &request.session_id)?;
        let id = parse("wakeup_id", &request.wakeup_id)?;
        let cancelled = store::wakeups::cancel(&self.db, &tenant, session_id, id).await?;
        Ok(Response::new(pb::CancelWakeupResponse { cancelled }))
    }

    async fn cancel_session_wakeups(
        &self,
        request: Request<pb::CancelSessionWakeupsRequest>,
    ) -> Result<Response<pb::CancelSessionWakeupsResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let session_id = check::id_of("session_id", "ses", &request.session_id)?;
        let cancelled = store::wakeups::cancel_all(&self.db, &tenant, session_id).await?;
        let cancelled = i32::try_from(cancelled).unwrap_or(i32::MAX);
        Ok(Response::new(pb::CancelSessionWakeupsResponse { cancelled }))
    }
}

impl Api {
    async fn answer(&self, tenant: &Tenant, id: TriggerId) -> Result<pb::RequestWakeupResponse> {
        let shown = store::triggers::get(&self.db, tenant, id).await?;
        Ok(pb::RequestWakeupResponse {
            wakeup_id: id.to_string(),
            next_fire_time: shown.next_fire.map(to_proto),
        })
    }
}

/// A wake-up as a trigger: a schedule of one session, whose message is the agent's own.
fn wakeup(
    caller: Caller,
    request: &pb::RequestWakeupRequest,
    now: Timestamp,
    horizon: std::time::Duration,
) -> Result<Trigger> {
    let message = request.message.as_str();
    if message.trim().is_empty() || message.len() > LONGEST_MESSAGE || message.contains('\0') {
        return Err(invalid("message", "expected 1 to 16,384 bytes without NUL"));
    }
    let when = match &request.when {
        Some(PbWhen::DelayMs(delay @ 1_000..)) => {
            let at = now.checked_add(SignedDuration::from_millis(*delay));
            When::At(at.map_err(|_| invalid("delay_ms", "is too long"))?)
        }
        Some(PbWhen::DelayMs(_)) => return Err(invalid("delay_ms", "expected at least 1,000")),
        Some(PbWhen::Cron(cron)) => When::Cron(cron.trim().to_owned()),
        Some(PbWhen::At(at)) => When::At(check::instant("at", at)?),
        None => return Err(invalid("when", "expected one of delay_ms, cron and at")),
    };
    let time_zone = match request.time_zone.as_str() {
        "" => "UTC".to_owned(),
        name => name.to_owned(),
    };
    let schedule = Schedule {
        when,
        time_zone,
        skipped_hour: Skipped::default(),
        doubled_hour: Doubled::default(),
        misfire: Misfire::default(),
        overlap: Overlap::default(),
        jitter_ms: 0,
        start: None,
        end: None,
    };
    Plan::new(&schedule, now, None, None)
        .map_err(|Problem { field, problem }| invalid(field, problem))?;
    let expires_at = match schedule.is_once() {
        true => None,
        false => now.checked_add(horizon).ok(),
    };
    Ok(Trigger {
        id: TriggerId::new(),
        tenant: caller.tenant,
        subject: caller.subject,
        source: Source::SelfSchedule,
        definition: Definition {
            name: "wake-up".to_owned(),
            kind: Kind::Schedule(schedule),
            target: Target {
                session: TargetSession::Id(request.session_id.clone()),
                agent: String::new(),
                workspace_id: String::new(),
            },
            template: message.to_owned(),
            max_per_minute: None,
            mode: None,
        },
        status: TriggerStatus::Active,
        created_at: now,
        expires_at,
    })
}
