use futures::TryStreamExt as _;
use proto::session::v1::{
    CompareTrialsRequest, ExportTrialsRequest, RecordRewardRequest, StartTrialRequest,
};
use serde_json::Value;
use tests::{World, reason, request_id};

use crate::facts::assert_valid;

#[tokio::test]
async fn trials_are_facts_that_can_be_compared() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let start = |configuration: &str, role: &str| StartTrialRequest {
        request_id: request_id(),
        session_id: session.id.clone(),
        dataset_id: "words".into(),
        dataset_version: "2".into(),
        benchmark_task_id: "spell".into(),
        configuration_id: configuration.into(),
        role: role.into(),
    };
    let reward = |trial_id: &str, value, failure_category: &str| RecordRewardRequest {
        trial_id: trial_id.into(),
        value,
        criteria: vec!["letters".into()],
        failure_category: failure_category.into(),
    };
    let mut benchmarks = client.benchmarks();
    for (configuration, role, value, failure) in
        [("old", "baseline", 0.25, "timeout"), ("new", "candidate", 1.0, "")]
    {
        let request = start(configuration, role);
        let trial = benchmarks.start_trial(request.clone()).await.unwrap().into_inner();
        let again = benchmarks.start_trial(request).await.unwrap().into_inner();
        assert_eq!(again, trial);
        session.run("say L-e-t-t-e-r.").await;
        benchmarks.record_reward(reward(&trial.trial_id, value, failure)).await.unwrap();
        benchmarks.record_reward(reward(&trial.trial_id, value, failure)).await.unwrap();
        let other = benchmarks.record_reward(reward(&trial.trial_id, 9.0, "")).await.unwrap_err();
        assert_eq!(reason(&other), "REASON_TRIAL_REWARDED");
    }
    let compare = CompareTrialsRequest {
        dataset_id: "words".into(),
        baseline_configuration_id: "old".into(),
        candidate_configuration_id: "new".into(),
    };
    for _ in 0..2 {
        let compared = benchmarks.compare_trials(compare.clone()).await.unwrap().into_inner();
        assert_eq!((compared.trials, compared.mean_reward_delta), (2, 0.75));
        assert_eq!((compared.timeout_rate_delta, compared.decision.as_str()), (-1.0, "better"));
    }
    let log = session.log_json().await;
    assert_valid(&log, |_| ());
    let names = session.log().await.into_iter().map(|event| event.r#type);
    let names: Vec<_> = names.filter(|name| name.starts_with("benchmark.")).collect();
    assert_eq!(
        names,
        [
            "benchmark.dataset.resolved",
            "benchmark.configuration.resolved",
            "benchmark.trial.started",
            "benchmark.reward.recorded",
            "benchmark.trial.failed",
            "benchmark.dataset.resolved",
            "benchmark.configuration.resolved",
            "benchmark.trial.started",
            "benchmark.reward.recorded",
            "benchmark.trial.completed",
            "benchmark.comparison.completed",
        ]
    );

    let request = ExportTrialsRequest { dataset_id: "words".into() };
    let export = benchmarks.export_trials(request.clone()).await.unwrap().into_inner();
    let data: Vec<_> = export.map_ok(|chunk| chunk.data).try_collect().await.unwrap();
    let text = String::from_utf8(data.concat()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["reward"]["failureCategory"]), (2, &"timeout".into()));

    let stranger = world.client("rival").await;
    let foreign = stranger.benchmarks().start_trial(start("new", "control")).await.unwrap_err();
    assert_eq!(reason(&foreign), "REASON_SESSION_NOT_FOUND");
    let trial_id = lines[0]["trialId"].as_str().unwrap();
    let foreign = stranger.benchmarks().record_reward(reward(trial_id, 1.0, "")).await.unwrap_err();
    assert_eq!(reason(&foreign), "REASON_TRIAL_NOT_FOUND");
    let none = stranger.benchmarks().export_trials(request).await.unwrap().into_inner();
    assert!(none.try_collect::<Vec<_>>().await.unwrap().is_empty());
    let none = stranger.benchmarks().compare_trials(compare).await.unwrap().into_inner();
    assert_eq!((none.trials, none.decision.as_str()), (0, "unknown"));
}
