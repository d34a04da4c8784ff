use std::time::Duration;

use chassis::{Caller, Tenant};
use jiff::Timestamp;
use proto::triggers::v1::{self as pb, trigger_service_server::TriggerService};
use secrecy::{ExposeSecret as _, SecretString};
use tonic::{Request, Response, Status};

use super::{Api, check, convert, history};
use crate::{
    error::{Error, Result, invalid, parse},
    ids::TriggerId,
    schedule::Plan,
    store::{
        self,
        triggers::{Created, NewTrigger},
    },
    time::to_proto,
    trigger::{Definition, Kind, Source, Status as TriggerStatus, TargetSession, Trigger},
};

const LONGEST_GRACE_SECONDS: i32 = 604_800;

#[tonic::async_trait]
impl TriggerService for Api {
    async fn create_trigger(
        &self,
        request: Request<pb::CreateTriggerRequest>,
    ) -> Result<Response<pb::CreateTriggerResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let request_id = check::request_id(&request.request_id)?;
        let wanted = request.trigger.as_ref().ok_or_else(|| invalid("trigger", "is missing"))?;
        let definition = check::definition(wanted)?;
        let now = self.fire.clock.now();
        let expires_at =
            check::expiry(wanted, &definition.kind, now, self.fire.limits.trigger_ttl)?;
        let trigger = Trigger {
            id: TriggerId::new(),
            tenant: caller.tenant.clone(),
            subject: caller.subject.clone(),
            source: check::source(&definition.kind),
            definition,
            status: TriggerStatus::Active,
            created_at: now,
            expires_at,
        };
        let due = check::first_due(&trigger, now)?;
        self.allow(&caller, "", &trigger.definition).await?;

        // A digest must not tell anything about a secret.
        let public = pb::CreateTriggerRequest { secret: String::new(), ..request.clone() };
        let new = NewTrigger {
            trigger: &trigger,
            request_id,
            request_digest: &check::digest(&public),
            due,
        };
        let mut db = chassis::database::begin(&self.db, "begin").await.map_err(Error::Database)?;
        let count = store::tenants::triggers(&mut db, &trigger.tenant).await?;
        let (id, secret) = match store::triggers::create(&mut db, &new).await? {
            Created::Now if count >= self.fire.limits.max_triggers => {
                let problem = format!(
                    "the tenant has {count} triggers, which is as many as it may; delete one first"
                );
                return Err(invalid("trigger", problem).into());
            }
            Created::Now => {
                let secret = self.credentials.issue(&mut db, &trigger, &request.secret).await?;
                (trigger.id, secret)
            }
            Created::Before(id) => (id, None),
        };
        db.commit().await.map_err(Error::Database)?;
        self.poke.notify_one();
        let trigger = Some(self.show(&caller.tenant, id).await?);
        Ok(Response::new(pb::CreateTriggerResponse { trigger, secret: shown_once(secret) }))
    }

    async fn get_trigger(
        &self,
        request: Request<pb::GetTriggerRequest>,
    ) -> Result<Response<pb::GetTriggerResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let id = parse("trigger_id", &request.into_inner().trigger_id)?;
        let trigger = Some(self.show(&tenant, id).await?);
        Ok(Response::new(pb::GetTriggerResponse { trigger }))
    }

    async fn list_triggers(
        &self,
        request: Request<pb::ListTriggersRequest>,
    ) -> Result<Response<pb::ListTriggersResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let limit = check::count("page_size", request.page_size, 50, 200)?;
        let before = match request.page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(|_| Error::InvalidCursor)?),
        };
        let session_id = match request.session_id.as_str() {
            "" => None,
            id => Some(check::id_of("session_id", "ses", id)?),
        };
        let found = store::triggers::list(&self.db, &tenant, session_id, before, limit + 1);
        let mut found = found.await?;
        let more = found.len() as i64 > limit;
        found.truncate(limit as usize);
        let next_page_token = match found.last() {
            Some(last) if more => last.trigger.id.to_string(),
            _ => String::new(),
        };
        let now = self.fire.clock.now();
        let triggers =
            found.into_iter().map(|shown| convert::trigger(shown, now, &self.http)).collect();
        Ok(Response::new(pb::ListTriggersResponse { triggers, next_page_token }))
    }

    async fn update_trigger(
        &self,
        request: Request<pb::UpdateTriggerRequest>,
    ) -> Result<Response<pb::UpdateTriggerResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let wanted = request.trigger.ok_or_else(|| invalid("trigger", "is missing"))?;
        let id: TriggerId = parse("trigger.trigger_id", &wanted.trigger_id)?;
        let definition = check::definition(&wanted)?;
        let now = self.fire.clock.now();
        let expires_at =
            check::expiry(&wanted, &definition.kind, now, self.fire.limits.trigger_ttl)?;
        self.allow(&caller, &wanted.trigger_id, &definition).await?;

        let mut db = chassis::database::begin(&self.db, "begin").await.map_err(Error::Database)?;
        let (mut trigger, _) = store::triggers::lock(&mut db, &caller.tenant, id).await?;
        if trigger.source != check::source(&definition.kind) {
            let problem = match trigger.source {
                Source::SelfSchedule => "a wake-up belongs to the agent that asked for it",
                _ => "a trigger stays of its kind, make another one",
            };
            return Err(invalid("trigger.kind", problem).into());
        }
        // Its turns are submitted in the name of whoever decided last what they do.
        trigger.subject = caller.subject;
        (trigger.definition, trigger.expires_at) = (definition, expires_at);
        if trigger.status != TriggerStatus::Paused {
            trigger.status = TriggerStatus::Active;
        }
        let due = check::first_due(&trigger, now)?;
        store::triggers::replace(&mut db, &trigger, due.map(|due| due.at), now).await?;
        db.commit().await.map_err(Error::Database)?;
        self.poke.notify_one();
        let trigger = Some(self.show(&caller.tenant, id).await?);
        Ok(Response::new(pb::UpdateTriggerResponse { trigger }))
    }

    async fn delete_trigger(
        &self,
        request: Request<pb::DeleteTriggerRequest>,
    ) -> Result<Response<pb::DeleteTriggerResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let id = parse("trigger_id", &request.into_inner().trigger_id)?;
        let mut db = chassis::database::begin(&self.db, "begin").await.map_err(Error::Database)?;
        match store::triggers::lock(&mut db, &tenant, id).await {
            Ok(_) => store::triggers::delete(&mut db, id).await?,
            Err(Error::TriggerNotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        db.commit().await.map_err(Error::Database)?;
        Ok(Response::new(pb::DeleteTriggerResponse {}))
    }

    async fn pause_trigger(
        &self,
        request: Request<pb::PauseTriggerRequest>,
    ) -> Result<Response<pb::PauseTriggerResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let id = parse("trigger_id", &request.into_inner().trigger_id)?;
        let trigger =
            Some(self.turn(&tenant, id, TriggerStatus::Active, TriggerStatus::Paused).await?);
        Ok(Response::new(pb::PauseTriggerResponse { trigger }))
    }

    async fn resume_trigger(
        &self,
        request: Request<pb::ResumeTriggerRequest>,
    ) -> Result<Response<pb::ResumeTriggerResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let id = parse("trigger_id", &request.into_inner().trigger_id)?;
        let trigger =
            Some(self.turn(&tenant, id, TriggerStatus::Paused, TriggerStatus::Active).await?);
        self.poke.notify_one();
        Ok(Response::new(pb::ResumeTriggerResponse { trigger }))
    }

    async fn rotate_trigger_secret(
        &self,
        request: Request<pb::RotateTriggerSecretRequest>,
    ) -> Result<Response<pb::RotateTriggerSecretResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let id = parse("trigger_id", &request.trigger_id)?;
        let grace = match request.grace_seconds {
            seconds @ 0..=LONGEST_GRACE_SECONDS => Duration::from_secs(seconds as u64),
            _ => return Err(invalid("grace_seconds", "expected 0 to 604,800").into()),
        };
        let mut db = chassis::database::begin(&self.db, "begin").await.map_err(Error::Database)?;
        let (trigger, _) = store::triggers::lock(&mut db, &tenant, id).await?;
        let secret = self.credentials.rotate(&mut db, &trigger, &request.secret, grace).await?;
        db.commit().await.map_err(Error::Database)?;
        Ok(Response::new(pb::RotateTriggerSecretResponse { secret: shown_once(secret) }))
    }

    async fn run_trigger(
        &self,
        request: Request<pb::RunTriggerRequest>,
    ) -> Result<Response<pb::RunTriggerResponse>, Status> {
        let firing = Some(history::run(self, request).await?);
        Ok(Response::new(pb::RunTriggerResponse { firing }))
    }

    async fn preview_schedule(
        &self,
        request: Request<pb::PreviewScheduleRequest>,
    ) -> Result<Response<pb::PreviewScheduleResponse>, Status> {
        let request = request.into_inner();
        let schedule = request.schedule.ok_or_else(|| invalid("schedule", "is missing"))?;
        let schedule = check::schedule("schedule", &schedule)?;
        let count = check::count("count", request.count, 10, 100)?;
        let now = self.fire.clock.now();
        let plan = Plan::new(&schedule, now, None, None)
            .map_err(|problem| invalid(format!("schedule.{}", problem.field), problem.problem))?;
        let due = std::iter::successors(plan.next(now), |due| plan.next(due.at));
        let fire_times = due.take(count as usize).map(|due| to_proto(due.at)).collect();
        Ok(Response::new(pb::PreviewScheduleResponse { fire_times }))
    }

    async fn list_firings(
        &self,
        request: Request<pb::ListFiringsRequest>,
    ) -> Result<Response<pb::ListFiringsResponse>, Status> {
        Ok(Response::new(history::list(self, request).await?))
    }

    async fn redeliver_firing(
        &self,
        request: Request<pb::RedeliverFiringRequest>,
    ) -> Result<Response<pb::RedeliverFiringResponse>, Status> {
        let firing = Some(history::redeliver(self, request).await?);
        Ok(Response::new(pb::RedeliverFiringResponse { firing }))
    }

    async fn get_trigger_stats(
        &self,
        request: Request<pb::GetTriggerStatsRequest>,
    ) -> Result<Response<pb::GetTriggerStatsResponse>, Status> {
        Ok(Response::new(history::stats(self, request).await?))
    }
}

impl Api {
    async fn show(&self, tenant: &Tenant, id: TriggerId) -> Result<pb::Trigger> {
        let shown = store::triggers::get(&self.db, tenant, id).await?;
        Ok(convert::trigger(shown, self.fire.clock.now(), &self.http))
    }

    /// Whether the caller may use what is named: the MCP server, which can be listened to, and the
    /// session that is targeted. To others it does not exist.
    async fn allow(&self, caller: &Caller, id: &str, definition: &Definition) -> Result<()> {
        if let Kind::McpEvent(event) = &definition.kind {
            self.tools.check(&caller.tenant, &caller.subject, event).await?;
        }
        let TargetSession::Id(session_id) = &definition.target.session else { return Ok(()) };
        let known = self.sessions.knows(caller, session_id).await;
        match known.map_err(|status| Error::Peer(Box::new(status)))? {
            true => Ok(()),
            false => Err(Error::TargetForbidden {
                trigger_id: id.to_owned(),
                session_id: session_id.clone(),
            }),
        }
    }

    /// Pauses or resumes. Repeating it changes nothing.
    async fn turn(
        &self,
        tenant: &Tenant,
        id: TriggerId,
        from: TriggerStatus,
        to: TriggerStatus,
    ) -> Result<pb::Trigger> {
        let now = self.fire.clock.now();
        let mut db = chassis::database::begin(&self.db, "begin").await?;
        let (mut trigger, due) = store::triggers::lock(&mut db, tenant, id).await?;
        if trigger.status != from && trigger.status != to {
            return Err(Error::NotActive { id, status: trigger.status.to_string() });
        }
        if trigger.status == from {
            trigger.status = to;
            let due = due.or_else(|| next(&trigger, now));
            store::triggers::replace(&mut db, &trigger, due, now).await?;
        }
        db.commit().await?;
        self.show(tenant, id).await
    }
}

/// What is in this answer and nowhere else.
fn shown_once(secret: Option<SecretString>) -> String {
    secret.map(|secret| secret.expose_secret().to_owned()).unwrap_or_default()
}

fn next(trigger: &Trigger, now: Timestamp) -> Option<Timestamp> {
    let plan = trigger.plan().ok().flatten()?;
    plan.next(now).map(|due| due.at)
}
