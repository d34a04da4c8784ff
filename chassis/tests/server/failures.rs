use std::time::Duration;

use chassis::Caller;
use expect_test::expect;
use hyper_util::rt::TokioExecutor;
use proto::models::v1::{
    CountTokensRequest, ExplainRouteRequest, GenerateRequest, ListModelsRequest, Prompt,
    model_service_client::ModelServiceClient,
};
use sqlx::PgPool;
use tonic::{Code, Request, Status, codec::CompressionEncoding::Gzip};
use tonic_types::StatusExt as _;

use crate::rig::{Rig, acme, args, bearer, explain};

async fn count(rig: &Rig, model: &str) -> Status {
    let (_, key) = rig.key(&["read"]).await;
    let message = CountTokensRequest { model: model.to_owned(), ..Default::default() };
    rig.models().count_tokens(bearer(&key, message)).await.unwrap_err()
}

#[sqlx::test]
async fn a_call_keeps_the_name_its_caller_gave_it(db: PgPool) {
    let rig = Rig::start(db).await;
    let (_, key) = rig.key(&["read"]).await;
    let named = |name: &'static str| {
        let mut request = bearer(&key, ListModelsRequest::default());
        request.metadata_mut().insert("x-request-id", name.parse().unwrap());
        request
    };
    let response = rig.models().list_models(named("order-66")).await.unwrap();
    assert_eq!(response.metadata().get("x-request-id").unwrap(), "order-66");
    assert!(rig.list(&key).await.unwrap().metadata().contains_key("x-request-id"));

    let refused = rig.models().list_models(named("a b; drop table")).await.unwrap_err();
    expect![[
        r#"InvalidArgument REASON_INVALID_METADATA {"header": "x-request-id"}: x-request-id is malformed"#
    ]]
    .assert_eq(&explain(&refused));
}

#[sqlx::test]
async fn malformed_headers_are_named(db: PgPool) {
    let rig = Rig::start(db).await;
    for (header, value) in [("traceparent", "00-1-2-3"), ("grpc-timeout", "soon")] {
        let mut request = Request::new(ListModelsRequest::default());
        request.metadata_mut().insert(header, value.parse().unwrap());
        let refused = rig.models().list_models(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert_eq!(refused.get_details_error_info().unwrap().metadata["header"], header);
    }
}

#[sqlx::test]
async fn what_does_not_exist_is_said_to_not_exist(db: PgPool) {
    let rig = Rig::start(db).await;
    let (_, key) = rig.key(&["read"]).await;
    let stub = rig.models().explain_route(bearer(&key, ExplainRouteRequest::default())).await;
    expect![[
        r#"Unimplemented REASON_NOT_IMPLEMENTED {"method": "windlass.models.v1.ModelService/ExplainRoute"}: windlass.models.v1.ModelService/ExplainRoute is not implemented here"#
    ]]
    .assert_eq(&explain(&stub.unwrap_err()));

    let unknown = async |request| {
        let mut grpc = tonic::client::Grpc::new(rig.channel());
        grpc.ready().await.unwrap();
        let path = "/windlass.models.v1.ModelService/Nothing".parse().unwrap();
        let codec = tonic_prost::ProstCodec::<ListModelsRequest, ListModelsRequest>::default();
        explain(&grpc.unary(request, path, codec).await.unwrap_err())
    };
    expect![[
        r#"Unimplemented REASON_NOT_IMPLEMENTED {"method": "windlass.models.v1.ModelService/Nothing"}: windlass.models.v1.ModelService/Nothing is not implemented here"#
    ]]
    .assert_eq(&unknown(bearer(&key, ListModelsRequest::default())).await);
    expect!["Unauthenticated REASON_UNAUTHENTICATED {}: the credential is missing, malformed, unknown, expired or revoked"]
        .assert_eq(&unknown(Request::new(ListModelsRequest::default())).await);
}

#[sqlx::test]
async fn a_message_that_cannot_be_read_is_the_callers_fault(db: PgPool) {
    let rig = Rig::with(db, args(&["--max-message-bytes=1000"])).await;
    expect![[
        r#"InvalidArgument REASON_INVALID_FIELD {"field": "message"}: invalid message: decoded message length too large: found 2003 bytes, the limit is: 1000 bytes"#
    ]]
    .assert_eq(&explain(&count(&rig, &"x".repeat(2000)).await));

    let (_, key) = rig.key(&["read"]).await;
    let mut grpc = tonic::client::Grpc::new(rig.channel());
    grpc.ready().await.unwrap();
    let path = "/windlass.models.v1.ModelService/CountTokens".parse().unwrap();
    // A string where the contract has a message.
    let codec =
        tonic_prost::ProstCodec::<proto::models::v1::TextDelta, ListModelsRequest>::default();
    let wrong = proto::models::v1::TextDelta { text: "\u{7f}".to_owned() };
    let refused = grpc.unary(bearer(&key, wrong), path, codec).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    assert_eq!(refused.get_details_bad_request().unwrap().field_violations[0].field, "message");
}

#[sqlx::test]
async fn a_wrong_field_is_named(db: PgPool) {
    let rig = Rig::start(db).await;
    let status = count(&rig, "invalid").await;
    expect![[
        r#"InvalidArgument REASON_INVALID_FIELD {"field": "model"}: invalid model: expected provider/model"#
    ]]
    .assert_eq(&explain(&status));
    let violations = status.get_details_bad_request().unwrap().field_violations;
    assert_eq!(violations[0].description, "expected provider/model");
}

#[sqlx::test]
async fn our_faults_stay_with_us(db: PgPool) {
    let rig = Rig::start(db).await;
    for fault in ["panic", "bug", "row"] {
        let status = count(&rig, fault).await;
        assert_eq!(explain(&status), "Internal REASON_INTERNAL {}: internal error", "{fault}");
    }
}

#[sqlx::test]
async fn a_panic_in_a_stream_ends_only_that_stream(db: PgPool) {
    let rig = Rig::start(db).await;
    let (_, key) = rig.key(&["read"]).await;
    let token = rig.auth.vouch("models", &Caller::service(acme(), "test"));
    let mut models = rig.models();
    let request = GenerateRequest { session_id: "panic".to_owned(), ..Default::default() };
    let mut stream = models.generate(bearer(&token, request)).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    let ended = stream.message().await.unwrap_err();
    assert_eq!(explain(&ended), "Internal REASON_INTERNAL {}: internal error");
    models.list_models(bearer(&key, ListModelsRequest::default())).await.unwrap();
}

#[sqlx::test]
async fn an_absent_postgres_is_worth_a_retry(db: PgPool) {
    let rig = Rig::start(db).await;
    let status = count(&rig, "pool").await;
    expect![[
        r#"Unavailable REASON_DEPENDENCY_UNAVAILABLE {"dependency": "postgres"}: postgres does not answer"#
    ]]
    .assert_eq(&explain(&status));
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(Duration::from_secs(1)));
}

#[sqlx::test]
async fn deadlines_end_calls_and_streams(db: PgPool) {
    let rig = Rig::start(db).await;
    // Without a transport of tonic's, which would end the call on our side as well.
    let transport = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let mut models = ModelServiceClient::with_origin(transport, rig.url.parse().unwrap());
    let token = rig.auth.vouch("models", &Caller::service(acme(), "test"));
    let expected = expect!["DeadlineExceeded REASON_DEADLINE_EXCEEDED {}: the deadline has passed"];

    let message = CountTokensRequest { model: "never".to_owned(), ..Default::default() };
    let late = models.count_tokens(soon(bearer(&token, message))).await.unwrap_err();
    expected.assert_eq(&explain(&late));

    let request = soon(bearer(&token, GenerateRequest::default()));
    let mut stream = models.generate(request).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    expected.assert_eq(&explain(&stream.message().await.unwrap_err()));
}

fn soon<T>(mut request: Request<T>) -> Request<T> {
    // Enough for the first message of a stream on a busy machine.
    request.set_timeout(Duration::from_secs(2));
    request
}

#[sqlx::test]
async fn a_full_server_says_so_at_once(db: PgPool) {
    let rig = Rig::with(db, args(&["--max-requests=1"])).await;
    let (_, key) = rig.key(&["read"]).await;
    let message = CountTokensRequest { model: "held".to_owned(), ..Default::default() };
    let mut models = rig.models();
    let request = bearer(&key, message);
    let busy = tokio::spawn(async move { models.count_tokens(request).await });
    rig.held.arrived.notified().await;

    let status = rig.list(&key).await.unwrap_err();
    expect!["ResourceExhausted REASON_OVERLOADED {}: this server is doing as much as it may"]
        .assert_eq(&explain(&status));
    assert!(status.get_details_retry_info().unwrap().retry_delay.is_some());
    rig.held.go_on.notify_one();
    busy.await.unwrap().unwrap();
    rig.list(&key).await.unwrap();
}

#[sqlx::test]
async fn no_tenant_has_all_the_room(db: PgPool) {
    let rig = Rig::with(db, args(&["--max-requests=4"])).await;
    let (_, key) = rig.key(&["read"]).await;
    let (_, others) = rig.key_of("other".parse().unwrap(), &["read"]).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let message = CountTokensRequest { model: "held".to_owned(), ..Default::default() };
        let (mut models, request) = (rig.models(), bearer(&key, message));
        held.push(tokio::spawn(async move { models.count_tokens(request).await }));
        rig.held.arrived.notified().await;
    }

    let status = rig.list(&key).await.unwrap_err();
    expect!["ResourceExhausted REASON_OVERLOADED {}: this server is doing as much as it may"]
        .assert_eq(&explain(&status));
    rig.list(&others).await.unwrap();
    let vouched = rig.auth.vouch("models", &Caller::service(acme(), "test"));
    rig.list(&vouched).await.unwrap();

    for call in held {
        rig.held.go_on.notify_one();
        call.await.unwrap().unwrap();
    }
    rig.list(&key).await.unwrap();
}

#[sqlx::test]
async fn large_requests_have_so_much_room_and_one_tenant_a_part_of_it(db: PgPool) {
    let rig = Rig::with(db, args(&["--max-request-bytes=262144"])).await;
    let (_, key) = rig.key(&["read"]).await;
    let (_, others) = rig.key_of("other".parse().unwrap(), &["read"]).await;
    let call = |key: &str, model: &str, length: usize| {
        let prompt = Prompt { system: "x".repeat(length), ..Prompt::default() };
        let message = CountTokensRequest { model: model.to_owned(), prompt: Some(prompt) };
        (rig.models(), bearer(key, message))
    };
    // What is held of it is what is beyond 64 KiB.
    let (mut models, request) = call(&key, "held", 200_000);
    let held = tokio::spawn(async move { models.count_tokens(request).await });
    rig.held.arrived.notified().await;

    let (mut models, request) = call(&key, "", 200_000);
    let refused = models.count_tokens(request).await.unwrap_err();
    expect!["ResourceExhausted REASON_OVERLOADED {}: this server holds as much of large requests as it may"]
        .assert_eq(&explain(&refused));
    assert!(refused.get_details_retry_info().unwrap().retry_delay.is_some());
    let (mut models, request) = call(&key, "", 60_000);
    models.count_tokens(request).await.unwrap();
    let (mut models, request) = call(&others, "", 120_000);
    models.count_tokens(request).await.unwrap();

    rig.held.go_on.notify_one();
    held.await.unwrap().unwrap();
    for _ in 0..4 {
        let (mut models, request) = call(&key, "", 200_000);
        models.count_tokens(request).await.unwrap();
    }
    // A little that may become a lot.
    let (models, request) = call(&key, "", 1_000_000);
    let refused = models.send_compressed(Gzip).count_tokens(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let (models, request) = call(&key, "", 20);
    models.send_compressed(Gzip).count_tokens(request).await.unwrap();
}
