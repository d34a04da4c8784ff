use std::time::{Duration, Instant};

use chassis::Caller;
use expect_test::expect;
use proto::models::v1::{CountTokensRequest, GenerateRequest};
use sqlx::PgPool;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::rig::{Rig, acme, args, bearer, explain};

#[sqlx::test]
async fn a_call_in_flight_finishes(db: PgPool) {
    let mut rig = Rig::start(db).await;
    let (_, key) = rig.key(&["read"]).await;
    let message = CountTokensRequest { model: "held".to_owned(), ..Default::default() };
    let mut models = rig.models();
    let request = bearer(&key, message);
    let call = tokio::spawn(async move { models.count_tokens(request).await });
    rig.held.arrived.notified().await;

    rig.stop.cancel();
    rig.held.go_on.notify_one();
    call.await.unwrap().unwrap();
    (&mut rig.server).await.unwrap().unwrap();
    assert!(rig.list(&key).await.is_err(), "nobody listens any more");
}

#[sqlx::test]
async fn whoever_watches_health_is_told_and_let_go(db: PgPool) {
    let mut rig = Rig::start(db).await;
    let request = HealthCheckRequest::default();
    let mut watch = HealthClient::new(rig.channel()).watch(request).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);

    let stopped = Instant::now();
    rig.stop.cancel();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    expect!["Unavailable REASON_STOPPING {}: this server is stopping, call again"]
        .assert_eq(&explain(&watch.message().await.unwrap_err()));
    (&mut rig.server).await.unwrap().unwrap();
    assert!(stopped.elapsed() < Duration::from_secs(5));
}

#[sqlx::test]
async fn a_stream_that_does_not_end_is_cut_off(db: PgPool) {
    let mut rig = Rig::with(db, args(&["--drain=0.5"])).await;
    let token = rig.auth.vouch("models", &Caller::service(acme(), "test"));
    let request = GenerateRequest { session_id: "deaf".to_owned(), ..Default::default() };
    let mut stream = rig.models().generate(bearer(&token, request)).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();

    rig.stop.cancel();
    expect!["Unavailable REASON_STOPPING {}: this server is stopping, call again"]
        .assert_eq(&explain(&stream.message().await.unwrap_err()));
    (&mut rig.server).await.unwrap().unwrap();
}
