use proto::event::v1::{BenchmarkReward, Payload};
use sqlx::PgPool;

use crate::{
    error::Error,
    ids::{SessionId, TrialId},
    store::trials::{self, NewTrial, Reward},
    testing::{World, stamp},
};

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_reward_is_recorded_once(db: PgPool) {
    let world = World::new(db).await;
    let session_id = world.session().await;
    let id = world.trial(session_id, "one", "base", "t1").await;
    assert_eq!(world.trial(session_id, "one", "base", "t1").await, id);
    world.earn(id, 0.5, "").await.unwrap();
    world.earn(id, 0.5, "").await.unwrap();
    assert!(matches!(world.earn(id, 0.6, "").await, Err(Error::TrialRewarded(_))));
    let nobody = TrialId::new();
    assert!(matches!(world.earn(nobody, 0.5, "").await, Err(Error::TrialNotFound(_))));
    let rewards = world.log(session_id).await.matches("benchmark.reward.recorded").count();
    assert_eq!(rewards, 1);
    let listed = trials::list(&world.db, &world.tenant, "set", None, 10).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].reward.as_ref().unwrap().value, 0.5);
    let rival = "rival".parse().unwrap();
    assert!(trials::list(&world.db, &rival, "set", None, 10).await.unwrap().is_empty());
    assert!(matches!(trials::get(&world.db, &rival, id).await, Err(Error::TrialNotFound(_))));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn configurations_are_compared_task_by_task(db: PgPool) {
    let world = World::new(db).await;
    let session_id = world.session().await;
    let compare = async || {
        let (db, tenant) = (&world.db, &world.tenant);
        trials::difference(db, tenant, "set", "base", "new").await.unwrap()
    };
    assert_eq!((compare().await.trials, compare().await.decision()), (0, "unknown"));
    // The first task was tried more often, and counts as much as the second.
    for (number, (configuration, task, value, failure)) in [
        ("base", "t1", 0.0, "timeout"),
        ("base", "t1", 1.0, ""),
        ("base", "t2", 0.5, ""),
        ("base", "t3", 9.0, ""),
        ("new", "t1", 1.0, ""),
        ("new", "t2", 0.75, "wrong"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = world.trial(session_id, &format!("r{number}"), configuration, task).await;
        world.earn(id, value, failure).await.unwrap();
    }
    world.trial(session_id, "unrewarded", "new", "t3").await;
    let found = compare().await;
    assert_eq!((found.trials, found.decision()), (5, "better"));
    assert!((found.reward - 0.375).abs() < 1e-9 && (found.timeouts + 0.25).abs() < 1e-9);
}

impl World {
    async fn trial(
        &self,
        session_id: SessionId,
        request_id: &str,
        configuration_id: &str,
        benchmark_task_id: &str,
    ) -> TrialId {
        let new = NewTrial {
            id: TrialId::new(),
            tenant: &self.tenant,
            session_id,
            request_id,
            request_digest: "digest",
            dataset_id: "set",
            dataset_version: "1",
            benchmark_task_id,
            configuration_id,
            role: "control",
        };
        trials::start(&self.db, new, &[], &stamp(self.replica)).await.unwrap().0
    }

    async fn earn(&self, id: TrialId, value: f64, failure: &str) -> Result<(), Error> {
        let reward =
            Reward { value, criteria: vec!["right".into()], failure_category: failure.into() };
        let said = [Payload::BenchmarkRewardRecorded(BenchmarkReward {
            trial_id: id.to_string(),
            value,
            ..BenchmarkReward::default()
        })];
        let (db, stamp) = (&self.db, stamp(self.replica));
        trials::reward(db, &self.tenant, id, &reward, &said, &stamp).await.map(drop)
    }
}
