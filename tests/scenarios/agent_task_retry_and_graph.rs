use local::Service;
use proto::{
    event::v1::Payload,
    session::v1::{
        ControlTaskRequest, LinkTasksRequest, Manifest, RetryTaskRequest, Task, UpdateTaskRequest,
        control_task_request::Command, respond_action_request::Decision, subscribe_request::From,
        task::Acceptance,
    },
    tools::v1::rule::Action,
};
use tests::{Client, World, reason, request_id};

use crate::{facts::assert_valid, what_dies::plan};

const ASK: &str = "call bash {\"command\": \"echo one\"}\n---\nsay Built.";
const MODEL: &str = "scripted/demo";

#[tokio::test]
async fn agent_task_retry_and_graph() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    builder(&client, MODEL).await;
    let task = client
        .create_task_that(ASK, |new| {
            new.agent = "builder".into();
            new.acceptance = vec!["it builds".into()];
        })
        .await;
    assert_eq!((task.attempts.len(), &task.attempts[0].run_id), (1, &task.current_run_id));
    let waiting = client.task_when(&task, "task.waiting", 1).await;
    assert_eq!(waiting.status, "waiting_permission");
    assert_eq!(
        (waiting.attempts[0].status.as_str(), &waiting.attempts[0].run_id),
        ("blocked", &task.current_run_id)
    );

    // While it runs it gets a child, and something that waits for it.
    let child =
        client.create_task_that("say Done.", |new| new.parent_task_id = task.task_id.clone()).await;
    assert_eq!((&child.parent_task_id, &child.root_task_id), (&task.task_id, &task.task_id));
    let next = client
        .create_task_that("say Next.", |new| new.blocked_by = vec![task.task_id.clone()])
        .await;
    assert_eq!(next.status, "blocked");
    let link = |from: &Task, to: &Task| LinkTasksRequest {
        task_id: from.task_id.clone(),
        target_task_id: to.task_id.clone(),
        kind: "blocks".into(),
        reason: "in this order".into(),
    };
    let circle = client.tasks().link_tasks(link(&next, &task)).await.unwrap_err();
    assert_eq!(reason(&circle), "REASON_TASK_CYCLE");
    assert_eq!(client.task_when(&child, "task.completed", 1).await.status, "completed");

    // Somebody takes its model away.
    builder(&client, "nobody/nothing").await;
    let session = client.session_of(&task);
    let action = session.actions().await.remove(0);
    session.respond(&action, Decision::Once).await.unwrap();
    let failed = client.task_when(&task, "task.failed", 1).await;
    let first = failed.attempts[0].clone();
    assert_eq!((failed.status.as_str(), failed.attempts.len()), ("failed", 1));
    assert_eq!((first.status.as_str(), &first.run_id), ("failed", &task.current_run_id));
    assert!(!first.error.is_empty() && first.end_time.is_some(), "{first:?}");
    assert_eq!(session.get_turn(&first.turn_id).await.turn_id, first.turn_id);
    assert_eq!(client.task(&next).await.status, "blocked");

    // What is known survives everybody.
    world.fleet.get(Service::Session).kill().await.unwrap();
    world.fleet.get(Service::Session).restart().await.unwrap();
    assert_eq!(client.task(&task).await, failed);
    builder(&client, MODEL).await;
    let retry = RetryTaskRequest { task_id: task.task_id.clone(), request_id: request_id() };
    let retried = client.tasks().retry_task(retry.clone()).await.unwrap().into_inner();
    let retried = retried.task.unwrap();
    assert_eq!((retried.attempts.len(), &retried.attempts[0]), (2, &first));
    assert_eq!((&retried.task_id, &retried.edges), (&task.task_id, &failed.edges));
    client.tasks().retry_task(retry).await.unwrap();
    client.task_when(&task, "task.waiting", 2).await;
    let actions = session.actions().await;
    let action = actions.iter().find(|action| action.status == "open").unwrap();
    session.respond(action, Decision::Once).await.unwrap();
    let completed = client.task_when(&task, "task.completed", 1).await;
    assert_eq!((completed.status.as_str(), completed.percent), ("completed", 100));
    assert_eq!((completed.attempts.len(), &completed.attempts[0]), (2, &first));
    let second = &completed.attempts[1];
    assert_ne!(second.run_id, first.run_id);
    assert_eq!((second.status.as_str(), &second.run_id), ("completed", &completed.current_run_id));
    let done = client.task_when(&next, "task.completed", 1).await;
    assert_eq!(done.edges[0].status, "satisfied");
    let again = RetryTaskRequest { task_id: task.task_id.clone(), request_id: request_id() };
    let refused = client.tasks().retry_task(again).await.unwrap_err();
    assert_eq!(reason(&refused), "REASON_TASK_WRONG_STATUS");

    for task in [&task, &child, &next] {
        let log = client.session_of(task).log_json().await;
        assert_valid(&log, |event| {
            let name = event["type"].as_str().unwrap();
            if name.starts_with("task.") && name != "task.profile.resolved" {
                assert_eq!(event["taskId"], task.task_id.as_str(), "{event}");
            }
            if name.starts_with("task.attempt.") {
                assert!(event["runId"].is_string(), "{event}");
            }
        });
    }
    let attempts = session.log().await.into_iter().filter_map(|event| match event.payload {
        Some(Payload::TaskAttemptStarted(attempt)) => Some((event.run_id, attempt.attempt)),
        _ => None,
    });
    assert_eq!(
        attempts.collect::<Vec<_>>(),
        [(first.run_id.clone(), 1), (second.run_id.clone(), 2)]
    );
}

#[tokio::test]
async fn a_task_whose_host_dies_is_lost_and_can_be_retried() {
    let mut world = World::planned(plan()).await;
    let client = world.client("acme").await;
    let task = client.create_task("pace 50ms\nrepeat 1000 \"word \"").await;
    let mut events = client.session_of(&task).subscribe(From::FromStart(true)).await;
    events.until(|event| event.r#type == "model.delta").await;
    world.fleet.get(Service::Session).kill().await.unwrap();
    world.fleet.get(Service::Session).restart().await.unwrap();
    let lost = client.task_when(&task, "task.lost", 1).await;
    assert_eq!(lost.status, "lost");
    assert!(lost.attempts[0].error.contains("host restarted"), "{lost:?}");

    let retry = RetryTaskRequest { task_id: task.task_id.clone(), request_id: request_id() };
    client.tasks().retry_task(retry).await.unwrap();
    let retried = client.task_when(&task, "task.attempt.started", 2).await;
    assert_eq!((retried.attempts.len(), &retried.attempts[0]), (2, &lost.attempts[0]));
}

#[tokio::test]
async fn commands_and_time_stop_what_runs() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let late = client.create_task_that("hang", |new| new.timeout_seconds = 1).await;
    let late = client.task_when(&late, "task.timed_out", 1).await;
    assert_eq!((late.status.as_str(), late.attempts[0].status.as_str()), ("timed_out", "failed"));
    assert_eq!(late.attempts[0].error, "the attempt took longer than 1 s");

    let top = client.create_task("hang").await;
    let child =
        client.create_task_that("hang", |new| new.parent_task_id = top.task_id.clone()).await;
    for task in [&top, &child] {
        let mut events = client.session_of(task).subscribe(From::FromStart(true)).await;
        events.until(|event| event.r#type == "model.requested").await;
    }
    let control = async |task: &Task, command: Command| {
        let request = ControlTaskRequest {
            task_id: task.task_id.clone(),
            command: command.into(),
            reason: "because".into(),
        };
        client.tasks().control_task(request).await
    };
    let paused = control(&top, Command::Pause).await.unwrap().into_inner().task.unwrap();
    assert_eq!((paused.status.as_str(), paused.status_reason.as_str()), ("paused", "because"));
    for task in [&top, &child] {
        let paused = client.task_when(task, "task.attempt.failed", 1).await;
        assert_eq!((paused.status.as_str(), paused.attempts.len()), ("paused", 1));
        assert_eq!(paused.attempts[0].status, "cancelled");
    }
    control(&top, Command::Pause).await.unwrap();
    control(&top, Command::Resume).await.unwrap();
    for task in [&top, &child] {
        client.task_when(task, "task.attempt.started", 2).await;
    }
    control(&top, Command::Cancel).await.unwrap();
    for task in [&top, &child] {
        assert_eq!(client.task_when(task, "task.cancelled", 1).await.status, "cancelled");
    }
    let refused = control(&top, Command::Pause).await.unwrap_err();
    assert_eq!(reason(&refused), "REASON_TASK_WRONG_STATUS");
    control(&top, Command::Archive).await.unwrap();
    assert_eq!(client.task_when(&child, "task.archived", 1).await.status, "archived");

    let draft = client
        .create_task_that("say Begun.", |new| {
            new.draft = true;
            new.acceptance = vec!["it is begun".into()];
        })
        .await;
    assert_eq!(draft.status, "draft");
    let report = UpdateTaskRequest {
        task_id: draft.task_id.clone(),
        percent: Some(10),
        progress_message: Some("soon".into()),
        acceptance: vec![Acceptance {
            criterion: "it is begun".into(),
            met: true,
            ..Default::default()
        }],
        delivery_state: Some("pending".into()),
    };
    let told = client.tasks().update_task(report).await.unwrap().into_inner().task.unwrap();
    assert!(told.acceptance[0].met);
    assert_eq!((told.percent, told.delivery_state.as_str()), (10, "pending"));
    control(&draft, Command::Resume).await.unwrap();
    client.task_when(&draft, "task.completed", 1).await;
}

/// An agent that asks before it uses `bash`, on this model.
async fn builder(client: &Client, model: &str) {
    client.put_agent_that("builder", Action::Ask).await;
    let manifest = Manifest { model: model.into(), ..client.agent("builder").await };
    client.put_manifest("builder", manifest).await;
}
