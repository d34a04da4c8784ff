use expect_test::expect;
use serde_json::json;
use sqlx::PgPool;

use crate::{
    error::Error,
    ids::{JobId, RunId},
    store::{
        items::{self, Outcome},
        jobs::{self, Item, NewJob},
    },
    testing::{World, stamp},
};

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_large_job_is_one_statement_and_counts_exactly(db: PgPool) {
    let world = World::new(db).await;
    let id = world.job("large", 10_000, 64).await;
    assert_eq!(world.job("large", 10_000, 64).await, id);
    assert_eq!(world.counts(id).await, "running 10000 0 0 0 0");
    let first = world.start_items(id, 100).await;
    assert_eq!(first.len(), 64);
    assert_eq!(world.start_items(id, 100).await.len(), 0);
    assert_eq!(world.counts(id).await, "running 9936 64 0 0 0");

    let outcomes: Vec<_> = first.iter().map(|run| done(*run)).collect();
    world.settle(id, &outcomes[..10]).await;
    // Some of them again, by somebody who is late.
    world.settle(id, &outcomes[5..20]).await;
    world.settle(id, &[done(RunId::new())]).await;
    assert_eq!(world.counts(id).await, "running 9936 44 20 0 0");
    assert_eq!(world.start_items(id, 7).await.len(), 7);
    assert_eq!(world.counts(id).await, "running 9929 51 20 0 0");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn never_more_run_than_may(db: PgPool) {
    let world = World::new(db).await;
    let id = world.job("busy", 200, 8).await;
    let worker = || async {
        let mut done_here = 0;
        loop {
            let runs = world.start_items(id, 5).await;
            let job = jobs::get(&world.db, &world.tenant, id).await.unwrap();
            assert!(job.running <= 8);
            let sum = job.pending + job.running + job.completed + job.failed + job.cancelled;
            assert_eq!(sum, 200);
            if runs.is_empty() && job.pending == 0 {
                return done_here;
            }
            for run in runs {
                world.settle(id, &[done(run)]).await;
                done_here += 1;
            }
        }
    };
    let (a, b, c) = tokio::join!(worker(), worker(), worker());
    assert_eq!(a + b + c, 200);
    assert_eq!(world.counts(id).await, "completed 0 0 200 0 0");
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn only_what_failed_is_tried_again(db: PgPool) {
    let world = World::new(db).await;
    let id = world.job("three", 3, 3).await;
    let runs = world.start_items(id, 3).await;
    world.settle(id, &[done(runs[0]), failed(runs[1], "no tea"), done(runs[2])]).await;
    assert_eq!(world.counts(id).await, "failed 0 0 2 1 0");
    let items = world.items(id).await;
    let retry = async |item: &Item, request_id: &str| {
        let (db, stamp) = (&world.db, stamp(world.replica));
        jobs::retry(db, &world.tenant, id, item.id, request_id, &stamp).await
    };
    assert!(matches!(retry(&items[0], "done").await, Err(Error::JobWrongStatus { .. })));
    retry(&items[1], "again").await.unwrap();
    retry(&items[1], "again").await.unwrap();
    assert!(matches!(retry(&items[0], "again").await, Err(Error::RequestIdReused(_))));
    assert_eq!(world.counts(id).await, "running 1 0 2 0 0");

    let second = world.start_items(id, 3).await;
    assert_eq!(second.len(), 1);
    world.settle(id, &[failed(runs[1], "late")]).await;
    assert_eq!(world.counts(id).await, "running 0 1 2 0 0");
    world.settle(id, &[done(second[0])]).await;
    assert_eq!(world.counts(id).await, "completed 0 0 3 0 0");
    let lines: Vec<_> = world.items(id).await.iter().map(line).collect();
    expect![[r#"
        [
            "0 completed 1 \"yes\" ",
            "1 completed 2 \"yes\" no tea",
            "2 completed 1 \"yes\" ",
        ]
    "#]]
    .assert_debug_eq(&lines);
    expect![[r#"
        1 session.created
        2 thread.started
        3 job.created
        4 job.started
        5 job.item.started
        6 job.item.started
        7 job.item.started
        8 job.item.completed
        9 job.item.failed
        10 job.item.completed
        11 job.progress
        12 job.failed
        13 job.progress
        14 job.item.started
        15 job.item.completed
        16 job.progress
        17 job.completed
    "#]]
    .assert_eq(&world.log(id.session()).await);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_cancelled_job_starts_nothing_more(db: PgPool) {
    let world = World::new(db).await;
    let id = world.job("five", 5, 2).await;
    let runs = world.start_items(id, 5).await;
    world.settle(id, &[done(runs[0])]).await;
    let cancel =
        async || jobs::cancel(&world.db, &world.tenant, id, "enough", &stamp(world.replica)).await;
    cancel().await.unwrap();
    cancel().await.unwrap();
    assert_eq!(world.counts(id).await, "cancelled 0 1 1 0 3");
    assert!(world.start_items(id, 5).await.is_empty());
    let stopping = items::stopping(&world.db, 10).await.unwrap();
    assert_eq!(stopping.iter().map(|item| item.run_id).collect::<Vec<_>>(), [runs[1]]);
    assert_eq!(stopping[0].reason, "enough");
    let stopped = Outcome { status: "cancelled", ..failed(runs[1], "stopped") };
    world.settle(id, &[stopped]).await;
    assert_eq!(world.counts(id).await, "cancelled 0 0 1 0 4");
    let item = world.items(id).await.remove(1);
    let (db, stamp) = (&world.db, stamp(world.replica));
    let refused = jobs::retry(db, &world.tenant, id, item.id, "again", &stamp).await;
    assert!(matches!(refused, Err(Error::JobWrongStatus { .. })));
    let rival = "rival".parse().unwrap();
    assert!(matches!(jobs::get(db, &rival, id).await, Err(Error::JobNotFound(_))));
    let refused = jobs::cancel(db, &rival, id, "", &stamp).await;
    assert!(matches!(refused, Err(Error::JobNotFound(_))));
}

fn done(run_id: RunId) -> Outcome {
    Outcome { run_id, status: "completed", error: None, result: Some("\"yes\"".into()) }
}

fn failed(run_id: RunId, error: &str) -> Outcome {
    Outcome { run_id, status: "failed", error: Some(error.into()), result: None }
}

fn line(item: &Item) -> String {
    let Item { index, status, attempts, result, last_error, .. } = item;
    format!("{index} {status} {attempts} {result} {last_error}")
}

impl World {
    async fn job(&self, request_id: &str, items: usize, parallelism: i64) -> JobId {
        let inputs: Vec<_> = (0..items).map(|number| number.to_string()).collect();
        let new = NewJob {
            id: JobId::new(),
            tenant: &self.tenant,
            subject: "alice",
            request_id,
            request_digest: "digest",
            title: "A job",
            instruction: "Count.",
            agent: "default",
            output_schema: "",
            parallelism,
            inspectable: false,
            workspace_id: None,
            inputs: &inputs,
            created: &json!({}),
        };
        jobs::create(&self.db, new, &stamp(self.replica)).await.unwrap()
    }

    async fn start_items(&self, id: JobId, room: usize) -> Vec<RunId> {
        let (started, _) = items::start(&self.db, id, room, &stamp(self.replica)).await.unwrap();
        started.into_iter().map(|item| item.run_id).collect()
    }

    async fn settle(&self, id: JobId, outcomes: &[Outcome]) {
        items::settle(&self.db, id, outcomes, &stamp(self.replica)).await.unwrap();
    }

    /// Status, then how many are pending, running, completed, failed and cancelled; and whether
    /// the items say the same.
    async fn counts(&self, id: JobId) -> String {
        let job = jobs::get(&self.db, &self.tenant, id).await.unwrap();
        let items = self.items(id).await;
        let count = |status: &str| items.iter().filter(|item| item.status == status).count() as i32;
        let counted = ["pending", "running", "completed", "failed", "cancelled"].map(count);
        assert_eq!(counted, [job.pending, job.running, job.completed, job.failed, job.cancelled]);
        let counts = counted.map(|count| count.to_string()).join(" ");
        assert_eq!(job.ended_at.is_some(), job.pending + job.running == 0);
        format!("{} {counts}", job.status)
    }

    async fn items(&self, id: JobId) -> Vec<Item> {
        jobs::items(&self.db, id, None, -1, 20_000, i64::MAX).await.unwrap()
    }
}
