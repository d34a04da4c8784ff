//! Tasks and jobs of a client's.

use std::time::Duration;

use local::Service;
use proto::{
    event::v1::Event,
    session::v1::{
        CreateJobRequest, CreateTaskRequest, GetJobRequest, GetTaskRequest, Job, JobItem,
        ListJobItemsRequest, RetryJobItemRequest, Task,
        benchmark_service_client::BenchmarkServiceClient, job_service_client::JobServiceClient,
        subscribe_request::From, task_service_client::TaskServiceClient,
    },
    tools::v1::{
        CreateWorkspaceRequest, WriteFileRequest, file_service_client::FileServiceClient,
        workspace_service_client::WorkspaceServiceClient,
    },
};

use tokio::time::sleep;

use crate::{Calls, Client, Session, explain, is_passing, request_id};

impl Client {
    pub fn tasks(&self) -> TaskServiceClient<Calls> {
        TaskServiceClient::new(self.to(Service::Session))
    }

    pub fn jobs(&self) -> JobServiceClient<Calls> {
        JobServiceClient::new(self.to(Service::Session))
            .max_encoding_message_size(64 << 20)
            .max_decoding_message_size(64 << 20)
    }

    pub fn benchmarks(&self) -> BenchmarkServiceClient<Calls> {
        BenchmarkServiceClient::new(self.to(Service::Session))
    }

    /// An empty workspace, for all items of a job.
    pub async fn create_workspace(&self) -> String {
        let request = CreateWorkspaceRequest {
            request_id: request_id(),
            ..CreateWorkspaceRequest::default()
        };
        let mut workspaces = WorkspaceServiceClient::new(self.to(Service::Tools));
        let created = workspaces.create_workspace(request).await.unwrap().into_inner();
        created.workspace.unwrap().workspace_id
    }

    pub async fn write_file(&self, workspace_id: &str, path: &str, text: &str) {
        let (workspace_id, path, data) = (workspace_id.into(), path.into(), text.into());
        let request = WriteFileRequest { workspace_id, path, data };
        FileServiceClient::new(self.to(Service::Tools)).write_file(request).await.unwrap();
    }

    /// Creates a task whose agent does what the script says.
    pub async fn create_task(&self, script: &str) -> Task {
        self.create_task_that(script, |_| ()).await
    }

    pub async fn create_task_that(
        &self,
        script: &str,
        change: impl FnOnce(&mut CreateTaskRequest),
    ) -> Task {
        let mut request = CreateTaskRequest {
            request_id: request_id(),
            title: "A task".into(),
            objective: format!("Please.\n#!script\n{script}"),
            agent: "scripted".into(),
            ..CreateTaskRequest::default()
        };
        change(&mut request);
        self.tasks().create_task(request).await.unwrap().into_inner().task.unwrap()
    }

    pub async fn task(&self, task: &Task) -> Task {
        let request = GetTaskRequest { task_id: task.task_id.clone() };
        self.tasks().get_task(request).await.unwrap().into_inner().task.unwrap()
    }

    /// Where a task's attempts run.
    pub fn session_of(&self, task: &Task) -> Session {
        Session { client: self.clone(), id: task.session_id.clone() }
    }

    /// Waits until the log of a task says this for the `times`-th time; how it is then.
    pub async fn task_when(&self, task: &Task, fact: &str, times: usize) -> Task {
        let mut events = self.session_of(task).subscribe(From::FromStart(true)).await;
        for _ in 0..times {
            events.until(|event: &Event| event.r#type == fact).await;
        }
        self.task(task).await
    }

    /// Creates a job of these items.
    pub async fn create_job_that(
        &self,
        items: Vec<String>,
        change: impl FnOnce(&mut CreateJobRequest),
    ) -> Job {
        let mut request = CreateJobRequest {
            request_id: request_id(),
            instruction: "Work.".into(),
            agent: "scripted".into(),
            items,
            ..CreateJobRequest::default()
        };
        change(&mut request);
        self.jobs().create_job(request).await.unwrap().into_inner().job.unwrap()
    }

    pub async fn job(&self, job: &Job) -> Job {
        let request = GetJobRequest { job_id: job.job_id.clone() };
        self.jobs().get_job(request).await.unwrap().into_inner().job.unwrap()
    }

    /// Waits until the log of a job says this for the `times`-th time; how it is then.
    pub async fn job_when(&self, job: &Job, fact: &str, times: usize) -> Job {
        let session = Session { client: self.clone(), id: job.session_id.clone() };
        let mut events = session.subscribe(From::FromStart(true)).await;
        for _ in 0..times {
            events.until(|event: &Event| event.r#type == fact).await;
        }
        self.job(job).await
    }

    /// All items of a job that have this status; all, if it is empty.
    pub async fn job_items(&self, job: &Job, status: &str) -> Vec<JobItem> {
        let (mut items, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = ListJobItemsRequest {
                job_id: job.job_id.clone(),
                status: status.into(),
                page_size: 1000,
                page_token,
            };
            let page = self.jobs().list_job_items(request).await.unwrap().into_inner();
            items.extend(page.items);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return items;
            }
        }
    }

    /// Has an item tried again, by whoever answers.
    pub async fn retry_item(&self, job: &Job, item: &JobItem) -> JobItem {
        let request = RetryJobItemRequest {
            job_id: job.job_id.clone(),
            item_id: item.item_id.clone(),
            request_id: request_id(),
        };
        loop {
            match self.jobs().retry_job_item(request.clone()).await {
                Ok(answer) => return answer.into_inner().item.unwrap(),
                Err(status) => assert!(is_passing(&status), "{}", explain(&status)),
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// An item that makes the scripted model do what `script` says.
pub fn item(script: &str) -> String {
    serde_json::Value::String(format!("#!script\n{script}")).to_string()
}
