use futures::{StreamExt as _, stream::BoxStream};
use proto::{
    event::v1::{BenchmarkComparison, BenchmarkResolved, BenchmarkReward, BenchmarkTrial, Payload},
    session::v1::{self as pb, benchmark_service_server::BenchmarkService},
};
use serde_json::json;
use tonic::{Request, Response, Status};

use super::{Api, check, stamp};
use crate::{
    error::{Error, Result, parse},
    ids::{SessionId, TrialId},
    store::{
        self,
        trials::{NewTrial, Reward, Trial},
    },
};

const MOST_CRITERIA: usize = 50;

/// How many trials one piece of an export has.
const PAGE: i64 = 500;

#[tonic::async_trait]
impl BenchmarkService for Api {
    async fn start_trial(
        &self,
        request: Request<pb::StartTrialRequest>,
    ) -> Result<Response<pb::StartTrialResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let request_id = check::request_id(&request.request_id)?;
        let session_id: SessionId = parse("session_id", &request.session_id)?;
        name("dataset_id", &request.dataset_id)?;
        check::text("dataset_version", &request.dataset_version, 200)?;
        name("benchmark_task_id", &request.benchmark_task_id)?;
        name("configuration_id", &request.configuration_id)?;
        if !["baseline", "candidate", "control"].contains(&request.role.as_str()) {
            return Err(check::invalid("role", "expected baseline, candidate or control").into());
        }
        let id = TrialId::new();
        let resolved = BenchmarkResolved {
            dataset_id: request.dataset_id.clone(),
            dataset_version: request.dataset_version.clone(),
            configuration_id: request.configuration_id.clone(),
            role: request.role.clone(),
        };
        let said = [
            Payload::BenchmarkDatasetResolved(resolved.clone()),
            Payload::BenchmarkConfigurationResolved(resolved),
            Payload::BenchmarkTrialStarted(BenchmarkTrial {
                trial_id: id.to_string(),
                dataset_id: request.dataset_id.clone(),
                configuration_id: request.configuration_id.clone(),
                benchmark_task_id: request.benchmark_task_id.clone(),
                failure_category: String::new(),
            }),
        ];
        let new = NewTrial {
            id,
            tenant: &caller.tenant,
            session_id,
            request_id,
            request_digest: &check::digest(&request),
            dataset_id: &request.dataset_id,
            dataset_version: &request.dataset_version,
            benchmark_task_id: &request.benchmark_task_id,
            configuration_id: &request.configuration_id,
            role: &request.role,
        };
        let stamp = stamp(self.host.replica);
        let (id, events) = store::trials::start(&self.host.db, new, &said, &stamp).await?;
        self.host.bus.publish(&caller.tenant, session_id, events, false);
        Ok(Response::new(pb::StartTrialResponse { trial_id: id.to_string() }))
    }

    async fn record_reward(
        &self,
        request: Request<pb::RecordRewardRequest>,
    ) -> Result<Response<pb::RecordRewardResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: TrialId = parse("trial_id", &request.trial_id)?;
        if !request.value.is_finite() {
            return Err(check::invalid("value", "is not a number").into());
        }
        if request.criteria.len() > MOST_CRITERIA {
            return Err(check::invalid("criteria", format!("at most {MOST_CRITERIA}")).into());
        }
        for criterion in &request.criteria {
            check::text("criteria", criterion, 200)?;
        }
        check::text("failure_category", &request.failure_category, 200)?;

        let (db, tenant) = (&self.host.db, &caller.tenant);
        let trial = store::trials::get(db, tenant, id).await?;
        let ended = BenchmarkTrial {
            trial_id: id.to_string(),
            dataset_id: trial.dataset_id,
            configuration_id: trial.configuration_id,
            benchmark_task_id: trial.benchmark_task_id,
            failure_category: request.failure_category.clone(),
        };
        let said = [
            Payload::BenchmarkRewardRecorded(BenchmarkReward {
                trial_id: id.to_string(),
                value: request.value,
                criteria: request.criteria.clone(),
                details_ref: String::new(),
            }),
            match request.failure_category.as_str() {
                "" => Payload::BenchmarkTrialCompleted(ended),
                _ => Payload::BenchmarkTrialFailed(ended),
            },
        ];
        let reward = Reward {
            value: request.value,
            criteria: request.criteria,
            failure_category: request.failure_category,
        };
        let stamp = stamp(self.host.replica);
        let events = store::trials::reward(db, tenant, id, &reward, &said, &stamp).await?;
        self.host.bus.publish(tenant, trial.session_id, events, false);
        Ok(Response::new(pb::RecordRewardResponse {}))
    }

    async fn compare_trials(
        &self,
        request: Request<pb::CompareTrialsRequest>,
    ) -> Result<Response<pb::CompareTrialsResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let dataset = name("dataset_id", &request.dataset_id)?;
        let baseline = name("baseline_configuration_id", &request.baseline_configuration_id)?;
        let candidate = name("candidate_configuration_id", &request.candidate_configuration_id)?;
        let (db, tenant) = (&self.host.db, &caller.tenant);
        let found = store::trials::difference(db, tenant, dataset, baseline, candidate).await?;
        let (decision, stamp) = (found.decision().to_owned(), stamp(self.host.replica));
        if found.trials > 0 {
            let result = Payload::BenchmarkComparisonCompleted(BenchmarkComparison {
                baseline_configuration_id: baseline.to_owned(),
                candidate_configuration_id: candidate.to_owned(),
                mean_reward_delta: found.reward,
                timeout_rate_delta: found.timeouts,
                decision: decision.clone(),
            });
            let recorded =
                store::trials::compare(db, tenant, dataset, baseline, candidate, &result, &stamp);
            if let Some((session_id, events)) = recorded.await? {
                self.host.bus.publish(tenant, session_id, events, false);
            }
        }
        Ok(Response::new(pb::CompareTrialsResponse {
            trials: i32::try_from(found.trials).unwrap_or(i32::MAX),
            mean_reward_delta: found.reward,
            timeout_rate_delta: found.timeouts,
            decision,
        }))
    }

    async fn export_trials(
        &self,
        request: Request<pb::ExportTrialsRequest>,
    ) -> Result<Response<BoxStream<'static, Result<pb::ExportTrialsResponse, Status>>>, Status>
    {
        let caller = chassis::caller(&request)?;
        let dataset = name("dataset_id", &request.into_inner().dataset_id)?.to_owned();
        let (db, stop) = (self.host.db.clone(), self.stop.clone());
        let stream = async_stream::try_stream! {
            let mut after = None;
            loop {
                let page = store::trials::list(&db, &caller.tenant, &dataset, after, PAGE);
                let page = stop.run_until_cancelled(page).await.ok_or(Error::Stopping)??;
                let Some(last) = page.last() else { break };
                after = Some(last.id);
                let lines: String = page.into_iter().map(line).collect();
                yield pb::ExportTrialsResponse { data: lines.into_bytes() };
            }
        };
        Ok(Response::new(stream.boxed()))
    }
}

fn name<'a>(field: &'static str, text: &'a str) -> Result<&'a str> {
    match check::text(field, text, 200)? {
        "" => Err(check::invalid(field, "is missing")),
        text => Ok(text),
    }
}

fn line(trial: Trial) -> String {
    let mut line = json!({
        "trialId": trial.id,
        "sessionId": trial.session_id,
        "datasetId": trial.dataset_id,
        "datasetVersion": trial.dataset_version,
        "benchmarkTaskId": trial.benchmark_task_id,
        "configurationId": trial.configuration_id,
        "role": trial.role,
        "startedAt": trial.started_at.to_jiff(),
    });
    if let (Some(reward), Some(rewarded_at)) = (trial.reward, trial.rewarded_at) {
        line["reward"] = json!(reward.0);
        line["rewardedAt"] = json!(rewarded_at.to_jiff());
    }
    format!("{line}\n")
}
