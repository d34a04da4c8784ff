use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use local::Service;
use proto::session::v1::{
    CancelJobRequest, ExportJobRequest, GetJobRequest, Job, ListSessionsRequest,
    RetryJobItemRequest,
};
use serde_json::Value;
use tests::{Client, Session, World, item, reason, request_id};
use tokio::time::{sleep, timeout};

use crate::{facts::assert_valid, what_dies::plan};

const SCHEMA: &str =
    r#"{"type": "object", "required": ["output"], "properties": {"output": {"const": "ok\n"}}}"#;
const GOOD: &str = r#"say {"output":"ok\n"}"#;

/// As good as what is in a file of the workspace.
const LOOK: &str = "call bash {\"command\": \"cat answer\"}\n---\nsay {{tool_result}}";

#[tokio::test]
async fn job_item_retry() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let workspace_id = client.create_workspace().await;
    let items = vec![item(GOOD), item(LOOK), item(GOOD)];
    let job = client
        .create_job_that(items, |new| {
            new.workspace_id = workspace_id.clone();
            new.output_schema_json = SCHEMA.into();
            new.inspectable = true;
        })
        .await;
    let failed = client.job_when(&job, "job.failed", 1).await;
    assert_eq!((failed.status.as_str(), failed.completed, failed.failed), ("failed", 2, 1));
    let before = client.job_items(&job, "").await;
    let statuses: Vec<_> =
        before.iter().map(|item| (item.status.as_str(), item.attempts)).collect();
    assert_eq!(statuses, [("completed", 1), ("failed", 1), ("completed", 1)]);
    let problem = "the answer does not match the schema: /output: ";
    assert!(before[1].last_error.starts_with(problem), "{:?}", before[1]);

    client.write_file(&workspace_id, "answer", "ok\n").await;
    let retry = RetryJobItemRequest {
        job_id: job.job_id.clone(),
        item_id: before[1].item_id.clone(),
        request_id: request_id(),
    };
    let finished = RetryJobItemRequest {
        item_id: before[0].item_id.clone(),
        request_id: request_id(),
        ..retry.clone()
    };
    let refused = client.jobs().retry_job_item(finished).await.unwrap_err();
    assert_eq!(reason(&refused), "REASON_JOB_WRONG_STATUS");
    client.jobs().retry_job_item(retry.clone()).await.unwrap();
    client.jobs().retry_job_item(retry).await.unwrap();
    let completed = client.job_when(&job, "job.completed", 1).await;
    assert_eq!((completed.completed, completed.failed), (3, 0));
    let after = client.job_items(&job, "").await;
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]), "finished items were touched");
    assert_eq!((after[1].status.as_str(), after[1].attempts), ("completed", 2));
    assert_eq!(after[1].last_error, before[1].last_error);
    assert_eq!(after[1].result_json, r#"{"exit_code":0,"output":"ok\n"}"#);
    assert_ne!(after[1].session_id, before[1].session_id);

    let lines = export(&client, &job).await;
    let results: Vec<_> = lines
        .iter()
        .map(|line| (line["index"].as_i64(), line["result"]["output"].as_str()))
        .collect();
    assert_eq!(results, [0, 1, 2].map(|index| (Some(index), Some("ok\n"))));
    assert_eq!(lines[1]["input"].to_string(), item(LOOK));

    // Whoever wants to know how an item went finds its session.
    let shown = client.sessions().list_sessions(ListSessionsRequest::default()).await.unwrap();
    let shown: Vec<_> =
        shown.into_inner().sessions.into_iter().map(|found| found.session_id).collect();
    assert!(
        after.iter().all(|item| shown.contains(&item.session_id))
            && !shown.contains(&job.session_id)
    );
    let log = Session { client: client.clone(), id: job.session_id.clone() }.log_json().await;
    assert_valid(&log, |event| {
        let name = event["type"].as_str().unwrap();
        if name.starts_with("job.") {
            assert_eq!(event["jobId"], job.job_id.as_str(), "{event}");
        }
        if name.starts_with("job.item.") {
            assert!(event["jobItemId"].is_string(), "{event}");
        }
    });
}

#[tokio::test]
async fn a_cancelled_job_stops_what_runs_and_starts_nothing_more() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let items = vec![item(GOOD), item("hang"), item("hang"), item(GOOD)];
    let job = client.create_job_that(items, |new| new.parallelism = 2).await;
    client.job_when(&job, "job.item.started", 3).await;
    let cancel = CancelJobRequest { job_id: job.job_id.clone(), reason: "enough".into() };
    let cancelled = client.jobs().cancel_job(cancel.clone()).await.unwrap().into_inner();
    assert_eq!(cancelled.job.unwrap().status, "cancelled");
    let job = client.job_when(&job, "job.item.failed", 2).await;
    assert_eq!((job.completed, job.cancelled, job.running, job.pending), (1, 3, 0, 0));
    assert!(job.end_time.is_some());
    client.jobs().cancel_job(cancel).await.unwrap();
    let items = client.job_items(&job, "cancelled").await;
    assert_eq!(items[0].last_error, "the job was cancelled: enough");
    assert_eq!(items[2].attempts, 0);
}

#[tokio::test]
async fn ten_thousand_items_add_up_whatever_dies() {
    const ITEMS: usize = 10_000;
    // A machine that is this busy takes longer to show that it lives.
    let plan = plan().replicas(Service::Session, 2).env_of(Service::Session, "LEASE", "5");
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let workspace_id = client.create_workspace().await;
    // One in twenty looks for its answer where there is none yet.
    let input = |index: usize| item(if index % 20 == 7 { LOOK } else { GOOD });
    let job = client
        .create_job_that((0..ITEMS).map(input).collect(), |new| {
            new.output_schema_json = SCHEMA.into();
            new.parallelism = 64;
            new.workspace_id = workspace_id.clone();
        })
        .await;
    assert_eq!((job.pending + job.running) as usize, ITEMS);
    for (index, enough) in [(1, ITEMS / 5), (0, ITEMS / 2)] {
        done(&client, &job, enough).await;
        world.fleet.replica(Service::Session, index).kill().await.unwrap();
        world.fleet.replica(Service::Session, index).restart().await.unwrap();
    }
    let over = done(&client, &job, ITEMS).await;
    assert_eq!((over.status.as_str(), over.pending, over.running), ("failed", 0, 0));
    assert_eq!((over.completed + over.failed) as usize, ITEMS);
    let failed = client.job_items(&job, "failed").await;
    assert_eq!(failed.len() as i32, over.failed);
    let (wrong, lost): (Vec<_>, Vec<_>) = failed.iter().partition(|item| item.index % 20 == 7);
    assert_eq!(wrong.len(), ITEMS / 20);
    for item in &lost {
        assert!(item.last_error.contains("host restarted"), "{item:?}");
    }
    // No more than ran when the processes died.
    assert!(lost.len() <= 2 * 64, "{} items were lost", lost.len());

    client.write_file(&workspace_id, "answer", "ok\n").await;
    let retries = stream::iter(&failed).map(|item| client.retry_item(&job, item));
    let retried = retries.buffer_unordered(8).count().await;
    let over = done(&client, &job, ITEMS).await;
    let failed = client.job_items(&job, "failed").await;
    assert!(failed.is_empty(), "{} failed again: {:?}", failed.len(), failed[0]);
    assert_eq!((over.status.as_str(), over.completed as usize), ("completed", ITEMS));
    let items = client.job_items(&job, "").await;
    let attempts: usize = items.iter().map(|item| item.attempts as usize).sum();
    assert_eq!(attempts, ITEMS + retried);
    let lines = export(&client, &job).await;
    assert_eq!(lines.len(), ITEMS);
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line["index"], index);
        assert_eq!(line["result"]["output"], "ok\n");
    }
}

/// Waits until so many items are over, whoever answers; how the job is then.
async fn done(client: &Client, job: &Job, enough: usize) -> Job {
    let waiting = async {
        loop {
            let request = GetJobRequest { job_id: job.job_id.clone() };
            // The one that is asked may be the one that was killed.
            if let Ok(answer) = client.jobs().get_job(request).await {
                let job = answer.into_inner().job.unwrap();
                let over = (job.completed + job.failed + job.cancelled) as usize;
                if over >= enough && (over < 10_000 || job.status != "running") {
                    return job;
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(900), waiting).await.expect("so many items are over by now")
}

async fn export(client: &Client, job: &Job) -> Vec<Value> {
    let request = ExportJobRequest { job_id: job.job_id.clone() };
    let chunks = client.jobs().export_job(request).await.unwrap().into_inner();
    let chunks: Vec<_> = chunks.map_ok(|chunk| chunk.data).try_collect().await.unwrap();
    let text = String::from_utf8(chunks.concat()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
