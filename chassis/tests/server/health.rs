use std::{process::Stdio, sync::Arc};

use chassis::Redis;
use expect_test::expect;
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    process::{Child, Command},
};
use tokio_util::sync::CancellationToken;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::rig::{Rig, args, eventually, free_port};

async fn status(rig: &Rig, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.to_owned() };
    HealthClient::new(rig.channel()).check(request).await.unwrap().into_inner().status()
}

async fn get(port: u16, path: &str) -> (u16, String) {
    chassis::tls::install_default();
    let response = reqwest::get(format!("http://127.0.0.1:{port}{path}")).await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[sqlx::test]
async fn health_and_reflection_need_no_credential(db: PgPool) {
    let rig = Rig::start(db).await;
    for name in ["", "models", "windlass.models.v1.UsageService"] {
        assert_eq!(status(&rig, name).await, ServingStatus::Serving, "{name}");
    }
    assert_eq!(
        listed_services(&rig).await,
        [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "windlass.models.v1.LimitService",
            "windlass.models.v1.ModelService",
            "windlass.models.v1.UsageService",
        ]
    );
}

async fn listed_services(rig: &Rig) -> Vec<String> {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(rig.channel());
    let answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("not a list: {answer:?}")
    };
    let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    names
}

#[sqlx::test]
async fn a_service_without_postgres_does_not_serve_and_comes_back(db: PgPool) {
    let mut line = Line::to(&db).await;
    let options = db.connect_options();
    let options = Arc::unwrap_or_clone(options).host("127.0.0.1").port(line.port);
    let db = PgPoolOptions::new().connect_with(options).await.unwrap();
    let rig = Rig::start(db).await;
    assert_eq!(status(&rig, "").await, ServingStatus::Serving);

    line.cut();
    eventually("not serving", async || status(&rig, "").await == ServingStatus::NotServing).await;
    line.mend().await;
    eventually("serving", async || status(&rig, "").await == ServingStatus::Serving).await;
}

#[sqlx::test]
async fn a_service_without_redis_is_degraded_and_serves(db: PgPool) {
    let (redis_port, metrics_port) = (free_port().await, free_port().await);
    let mut server = start_redis(redis_port);
    let url = format!("--redis-url=redis://127.0.0.1:{redis_port}");
    let metrics = format!("--metrics-listen=127.0.0.1:{metrics_port}");
    let args = args(&[&url, &metrics]);
    let redis = Redis::new(&args.redis).unwrap();
    let rig = Rig::with_redis(db, args, Some(redis)).await;
    let redis_is = async |expected| status(&rig, "redis").await == expected;
    eventually("redis answers", async || redis_is(ServingStatus::Serving).await).await;

    server.kill().await.unwrap();
    eventually("redis is away", async || redis_is(ServingStatus::NotServing).await).await;
    assert_eq!(status(&rig, "").await, ServingStatus::Serving);
    let (code, health) = get(metrics_port, "/health").await;
    assert_eq!(code, 200);
    expect![[r#"{"degraded":true,"dependencies":{"postgres":"ok","redis":"away"},"details":{"colour":"blue"},"draining":false,"service":"models","serving":true}"#]]
        .assert_eq(&health);

    let mut server = start_redis(redis_port);
    eventually("redis is back", async || redis_is(ServingStatus::Serving).await).await;
    server.kill().await.unwrap();
}

fn start_redis(port: u16) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"])
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// A wire to Postgres that can be cut.
struct Line {
    port: u16,
    target: (String, u16),
    cut: CancellationToken,
}

impl Line {
    async fn to(db: &PgPool) -> Line {
        let options = db.connect_options();
        let target = (options.get_host().to_owned(), options.get_port());
        let mut line = Line { port: 0, target, cut: CancellationToken::new() };
        line.mend().await;
        line
    }

    fn cut(&self) {
        self.cut.cancel();
    }

    async fn mend(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        self.port = listener.local_addr().unwrap().port();
        self.cut = CancellationToken::new();
        let (cut, target) = (self.cut.clone(), self.target.clone());
        tokio::spawn(self.cut.clone().run_until_cancelled_owned(async move {
            loop {
                let (mut here, _) = listener.accept().await.unwrap();
                let mut there = TcpStream::connect(&target).await.unwrap();
                tokio::spawn(cut.clone().run_until_cancelled_owned(async move {
                    let _ = copy_bidirectional(&mut here, &mut there).await;
                }));
            }
        }));
    }
}
