use std::time::Duration;

use chassis::{
    Caller, Peer,
    auth::{Kind, Scopes},
};
use expect_test::expect;
use proto::models::v1::{
    CountTokensRequest, GenerateRequest, ListModelsRequest,
    model_service_client::ModelServiceClient,
};
use sqlx::PgPool;
use tonic_types::StatusExt as _;

use crate::rig::{Rig, acme};

#[sqlx::test]
async fn a_peer_is_called_in_the_callers_name(db: PgPool) {
    let rig = Rig::start(db).await;
    let peer = Peer::new("models", &rig.url, &rig.args.tls, &rig.auth).unwrap();
    let caller = Caller {
        tenant: acme(),
        subject: "ada".to_owned(),
        scopes: Scopes::from_names(["read"]),
        kind: Kind::ApiKey,
    };
    let mut models = chassis::client!(ModelServiceClient::new(peer.channel()), rig.args);
    let request =
        peer.request_within(Duration::from_secs(5), &caller, ListModelsRequest::default());
    let seen = models.list_models(request).await.unwrap().into_inner().next_page_token;
    expect![[r#"acme ada Service {"read", "internal"}"#]].assert_eq(&seen);

    let request = peer.request(&caller, GenerateRequest::default());
    models.generate(request).await.unwrap();
}

#[sqlx::test]
async fn a_token_for_one_peer_is_no_good_at_another(db: PgPool) {
    let rig = Rig::start(db).await;
    let peer = Peer::new("tools", &rig.url, &rig.args.tls, &rig.auth).unwrap();
    let request = peer.request(&Caller::service(acme(), "sweep"), ListModelsRequest::default());
    let refused = ModelServiceClient::new(peer.channel()).list_models(request).await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::Unauthenticated);
}

#[sqlx::test]
async fn a_peers_failure_is_passed_on_or_explained(db: PgPool) {
    let rig = Rig::start(db).await;
    let caller = Caller::service(acme(), "sweep");
    let fail = async |url: &str, model: &str, within: Duration| {
        let peer = Peer::new("models", url, &rig.args.tls, &rig.auth).unwrap();
        let message = CountTokensRequest { model: model.to_owned(), ..Default::default() };
        let request = peer.request_within(within, &caller, message);
        let status = ModelServiceClient::new(peer.channel()).count_tokens(request).await;
        let status = peer.failed(&status.unwrap_err());
        let info = status.get_details_error_info().unwrap();
        format!("{:?} {} {:?}", status.code(), info.reason, info.metadata)
    };
    let (soon, late) = (Duration::from_millis(300), Duration::from_secs(30));
    expect![[r#"InvalidArgument REASON_INVALID_FIELD {"field": "model"}"#]]
        .assert_eq(&fail(&rig.url, "invalid", late).await);
    expect!["DeadlineExceeded REASON_DEADLINE_EXCEEDED {}"]
        .assert_eq(&fail(&rig.url, "never", soon).await);
    expect![[r#"Unavailable REASON_DEPENDENCY_UNAVAILABLE {"dependency": "models"}"#]]
        .assert_eq(&fail("http://127.0.0.1:1", "", late).await);
}
