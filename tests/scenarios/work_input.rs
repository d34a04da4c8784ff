use expect_test::expect;
use proto::session::v1::{
    CancelJobRequest, ControlTaskRequest, CreateJobRequest, CreateTaskRequest, ExportJobRequest,
    GetJobRequest, GetTaskRequest, LinkTasksRequest, ListJobItemsRequest, ListJobsRequest,
    ListTasksRequest, RetryJobItemRequest, RetryTaskRequest, UpdateTaskRequest,
};
use tests::{World, explain, item, request_id};
use tonic::Status;

/// Well-formed, and nobody's.
const NO_TASK: &str = "task_06evr8d2ksw3x4qg9rjc10t5mm";

#[tokio::test]
async fn bad_tasks_and_jobs_are_refused_with_a_reason() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let mut answers = String::new();
    let mut add = |case: &str, status: Status| {
        answers += &format!("{case} => {}\n", explain(&status));
    };
    let good = || CreateTaskRequest {
        request_id: request_id(),
        objective: "Do it.".into(),
        agent: "scripted".into(),
        ..CreateTaskRequest::default()
    };
    for (case, request) in [
        ("no request id", CreateTaskRequest { request_id: String::new(), ..good() }),
        ("no objective", CreateTaskRequest { objective: " ".into(), ..good() }),
        ("long objective", CreateTaskRequest { objective: "x".repeat(65_537), ..good() }),
        ("long title", CreateTaskRequest { title: "x".repeat(201), ..good() }),
        ("unknown agent", CreateTaskRequest { agent: "nobody".into(), ..good() }),
        ("malformed parent", CreateTaskRequest { parent_task_id: "task_1".into(), ..good() }),
        ("unknown parent", CreateTaskRequest { parent_task_id: NO_TASK.into(), ..good() }),
        ("unknown predecessor", CreateTaskRequest { blocked_by: vec![NO_TASK.into()], ..good() }),
        (
            "a predecessor twice",
            CreateTaskRequest { blocked_by: vec![NO_TASK.into(); 2], ..good() },
        ),
        ("a criterion twice", CreateTaskRequest { acceptance: vec!["a".into(); 2], ..good() }),
        ("51 criteria", CreateTaskRequest { acceptance: vec!["a".into(); 51], ..good() }),
        ("negative time", CreateTaskRequest { timeout_seconds: -1, ..good() }),
        ("31 days", CreateTaskRequest { timeout_seconds: 31 * 86_400, ..good() }),
    ] {
        add(case, client.tasks().create_task(request).await.unwrap_err());
    }
    let mut tasks = client.tasks();
    let request = GetTaskRequest { task_id: NO_TASK.into() };
    add("GetTask", tasks.get_task(request).await.unwrap_err());
    let request = ListTasksRequest { status: "accepted".into(), ..Default::default() };
    add("ListTasks status", tasks.list_tasks(request).await.unwrap_err());
    let request = ListTasksRequest { page_token: "x".into(), ..Default::default() };
    add("ListTasks token", tasks.list_tasks(request).await.unwrap_err());
    let request =
        UpdateTaskRequest { task_id: NO_TASK.into(), percent: Some(101), ..Default::default() };
    add("UpdateTask percent", tasks.update_task(request).await.unwrap_err());
    let delivery_state = Some("lost".into());
    let request =
        UpdateTaskRequest { task_id: NO_TASK.into(), delivery_state, ..Default::default() };
    add("UpdateTask delivery", tasks.update_task(request).await.unwrap_err());
    let request = UpdateTaskRequest { task_id: NO_TASK.into(), ..Default::default() };
    add("UpdateTask unknown", tasks.update_task(request).await.unwrap_err());
    let request = LinkTasksRequest {
        task_id: NO_TASK.into(),
        target_task_id: NO_TASK.into(),
        kind: "likes".into(),
        ..Default::default()
    };
    add("LinkTasks kind", tasks.link_tasks(request.clone()).await.unwrap_err());
    let request = LinkTasksRequest { kind: "blocks".into(), ..request };
    add("LinkTasks unknown", tasks.link_tasks(request).await.unwrap_err());
    let request = ControlTaskRequest { task_id: NO_TASK.into(), ..Default::default() };
    add("ControlTask command", tasks.control_task(request.clone()).await.unwrap_err());
    let request = ControlTaskRequest { command: 1, ..request };
    add("ControlTask unknown", tasks.control_task(request).await.unwrap_err());
    let request = RetryTaskRequest { task_id: NO_TASK.into(), request_id: request_id() };
    add("RetryTask unknown", tasks.retry_task(request).await.unwrap_err());

    let good = || CreateJobRequest {
        request_id: request_id(),
        instruction: "Do it.".into(),
        agent: "scripted".into(),
        items: vec!["1".into()],
        ..CreateJobRequest::default()
    };
    let schema = |json: &str| CreateJobRequest { output_schema_json: json.into(), ..good() };
    for (case, request) in [
        ("no items", CreateJobRequest { items: vec![], ..good() }),
        ("10,001 items", CreateJobRequest { items: vec!["1".into(); 10_001], ..good() }),
        (
            "an item that is no JSON",
            CreateJobRequest { items: vec!["1".into(), "{".into()], ..good() },
        ),
        ("NUL", CreateJobRequest { items: vec!["\"\\u0000\"".into()], ..good() }),
        (
            "a long item",
            CreateJobRequest { items: vec![format!("\"{}\"", "x".repeat(65_536))], ..good() },
        ),
        ("a long instruction", CreateJobRequest { instruction: "x".repeat(65_537), ..good() }),
        ("negative parallelism", CreateJobRequest { parallelism: -1, ..good() }),
        ("no JSON", schema("{")),
        ("no schema", schema(r#"{"type": "thing"}"#)),
        ("a schema elsewhere", schema(r#"{"$ref": "http://169.254.169.254/"}"#)),
        ("a file", schema(r#"{"$ref": "file:///etc/passwd"}"#)),
        ("a circle", schema(r##"{"properties": {"a": {"$ref": "#"}}}"##)),
        ("unknown agent", CreateJobRequest { agent: "nobody".into(), ..good() }),
        ("malformed workspace", CreateJobRequest { workspace_id: "here".into(), ..good() }),
    ] {
        add(case, client.jobs().create_job(request).await.unwrap_err());
    }
    let mut jobs = client.jobs();
    let request = ListJobsRequest { page_token: "x".into(), ..Default::default() };
    add("ListJobs token", jobs.list_jobs(request).await.unwrap_err());
    let job_id = NO_TASK.replace("task", "job");
    let request = ListJobItemsRequest { job_id, status: "done".into(), ..Default::default() };
    add("ListJobItems status", jobs.list_job_items(request).await.unwrap_err());
    expect![[r#"
        no request id => InvalidArgument REASON_INVALID_FIELD: invalid request_id: expected 1 to 100 characters of A-Z, a-z, 0-9, _ and -
        no objective => InvalidArgument REASON_INVALID_FIELD: invalid objective: is missing
        long objective => InvalidArgument REASON_INVALID_FIELD: invalid objective: at most 64 KiB
        long title => InvalidArgument REASON_INVALID_FIELD: invalid title: at most 200 characters
        unknown agent => NotFound REASON_AGENT_NOT_FOUND: agent nobody not found
        malformed parent => InvalidArgument REASON_INVALID_FIELD: invalid parent_task_id: expected task_ and 26 characters
        unknown parent => NotFound REASON_TASK_NOT_FOUND: task task_06evr8d2ksw3x4qg9rjc10t5mm not found
        unknown predecessor => NotFound REASON_TASK_NOT_FOUND: task task_06evr8d2ksw3x4qg9rjc10t5mm not found
        a predecessor twice => InvalidArgument REASON_INVALID_FIELD: invalid blocked_by: names a task twice
        a criterion twice => InvalidArgument REASON_INVALID_FIELD: invalid acceptance: names a criterion twice
        51 criteria => InvalidArgument REASON_INVALID_FIELD: invalid acceptance: at most 50 criteria
        negative time => InvalidArgument REASON_INVALID_FIELD: invalid timeout_seconds: from 0 to 30 days
        31 days => InvalidArgument REASON_INVALID_FIELD: invalid timeout_seconds: from 0 to 30 days
        GetTask => NotFound REASON_TASK_NOT_FOUND: task task_06evr8d2ksw3x4qg9rjc10t5mm not found
        ListTasks status => InvalidArgument REASON_INVALID_FIELD: invalid status: no task has it
        ListTasks token => InvalidArgument REASON_INVALID_CURSOR: the cursor in page_token is not one of ours
        UpdateTask percent => InvalidArgument REASON_INVALID_FIELD: invalid percent: from 0 to 100
        UpdateTask delivery => InvalidArgument REASON_INVALID_FIELD: invalid delivery_state: expected none, pending, delivered or failed
        UpdateTask unknown => NotFound REASON_TASK_NOT_FOUND: task task_06evr8d2ksw3x4qg9rjc10t5mm not found
        LinkTasks kind => InvalidArgument REASON_INVALID_FIELD: invalid kind: expected blocks, parent or relates
        LinkTasks unknown => NotFound REASON_TASK_NOT_FOUND: task task_06evr8d2ksw3x4qg9rjc10t5mm not found
        ControlTask command => InvalidArgument REASON_INVALID_FIELD: invalid command: is missing or unknown
        ControlTask unknown => NotFound REASON_TASK_NOT_FOUND: task task_06evr8d2ksw3x4qg9rjc10t5mm not found
        RetryTask unknown => NotFound REASON_TASK_NOT_FOUND: task task_06evr8d2ksw3x4qg9rjc10t5mm not found
        no items => InvalidArgument REASON_INVALID_FIELD: invalid items: expected 1 to 10000 items
        10,001 items => InvalidArgument REASON_INVALID_FIELD: invalid items: expected 1 to 10000 items
        an item that is no JSON => InvalidArgument REASON_INVALID_FIELD: invalid items: item 1 is not JSON: EOF while parsing an object at line 1 column 1
        NUL => InvalidArgument REASON_INVALID_FIELD: invalid items: item 0 contains NUL
        a long item => InvalidArgument REASON_INVALID_FIELD: invalid items: item 0 is longer than 64 KiB
        a long instruction => InvalidArgument REASON_INVALID_FIELD: invalid instruction: at most 64 KiB
        negative parallelism => InvalidArgument REASON_INVALID_FIELD: invalid parallelism: must not be negative
        no JSON => InvalidArgument REASON_INVALID_FIELD: invalid output_schema_json: is not JSON: EOF while parsing an object at line 1 column 1
        no schema => InvalidArgument REASON_INVALID_FIELD: invalid output_schema_json: is none: "thing" is not valid under any of the schemas listed in the 'anyOf' keyword
        a schema elsewhere => InvalidArgument REASON_INVALID_FIELD: invalid output_schema_json: refers to something outside of it
        a file => InvalidArgument REASON_INVALID_FIELD: invalid output_schema_json: refers to something outside of it
        a circle => InvalidArgument REASON_INVALID_FIELD: invalid output_schema_json: refers to itself
        unknown agent => NotFound REASON_AGENT_NOT_FOUND: agent nobody not found
        malformed workspace => InvalidArgument REASON_INVALID_FIELD: invalid workspace_id: expected ws_ and 26 characters
        ListJobs token => InvalidArgument REASON_INVALID_CURSOR: the cursor in page_token is not one of ours
        ListJobItems status => InvalidArgument REASON_INVALID_FIELD: invalid status: no item has it
    "#]].assert_eq(&answers);
}

#[tokio::test]
async fn another_tenants_work_does_not_exist() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let task = client.create_task("say Done.").await;
    client.task_when(&task, "task.completed", 1).await;
    let job = client.create_job_that(vec![item("say Done.")], |_| ()).await;
    let job = client.job_when(&job, "job.completed", 1).await;
    let before = (client.task(&task).await, client.job(&job).await);
    let item = client.job_items(&job, "").await.remove(0);

    let stranger = world.client("rival").await;
    let (mut tasks, mut jobs) = (stranger.tasks(), stranger.jobs());
    let (task_id, job_id) = (task.task_id.clone(), job.job_id.clone());
    let own = stranger.create_task("say Mine.").await.task_id;
    let mut answers = vec![
        tasks.get_task(GetTaskRequest { task_id: task_id.clone() }).await.unwrap_err(),
        tasks
            .update_task(UpdateTaskRequest { task_id: task_id.clone(), ..Default::default() })
            .await
            .unwrap_err(),
        tasks
            .control_task(ControlTaskRequest {
                task_id: task_id.clone(),
                command: 4,
                ..Default::default()
            })
            .await
            .unwrap_err(),
        tasks
            .retry_task(RetryTaskRequest { task_id: task_id.clone(), request_id: request_id() })
            .await
            .unwrap_err(),
    ];
    for (from, to) in [(&task_id, &own), (&own, &task_id)] {
        let request = LinkTasksRequest {
            task_id: from.clone(),
            target_task_id: to.clone(),
            kind: "blocks".into(),
            ..Default::default()
        };
        answers.push(tasks.link_tasks(request).await.unwrap_err());
    }
    for request in [
        CreateTaskRequest { parent_task_id: task_id.clone(), ..Default::default() },
        CreateTaskRequest { blocked_by: vec![task_id.clone()], ..Default::default() },
    ] {
        let request =
            CreateTaskRequest { request_id: request_id(), objective: "Spy.".into(), ..request };
        answers.push(tasks.create_task(request).await.unwrap_err());
    }
    for answer in answers {
        assert_eq!(
            explain(&answer),
            format!("NotFound REASON_TASK_NOT_FOUND: task {task_id} not found")
        );
    }
    let answers = [
        jobs.get_job(GetJobRequest { job_id: job_id.clone() }).await.unwrap_err(),
        jobs.list_job_items(ListJobItemsRequest { job_id: job_id.clone(), ..Default::default() })
            .await
            .unwrap_err(),
        jobs.cancel_job(CancelJobRequest { job_id: job_id.clone(), ..Default::default() })
            .await
            .unwrap_err(),
        jobs.export_job(ExportJobRequest { job_id: job_id.clone() }).await.unwrap_err(),
        jobs.retry_job_item(RetryJobItemRequest {
            job_id: job_id.clone(),
            item_id: item.item_id,
            request_id: request_id(),
        })
        .await
        .unwrap_err(),
    ];
    for answer in answers {
        assert_eq!(
            explain(&answer),
            format!("NotFound REASON_JOB_NOT_FOUND: job {job_id} not found")
        );
    }
    let listed = tasks.list_tasks(ListTasksRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.tasks.iter().map(|task| &task.task_id).collect::<Vec<_>>(), [&own]);
    let listed = jobs.list_jobs(ListJobsRequest::default()).await.unwrap().into_inner();
    assert!(listed.jobs.is_empty());
    assert_eq!((client.task(&task).await, client.job(&job).await), before);
}
