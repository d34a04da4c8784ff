use proto::triggers::v1::{
    Api, CreateTriggerRequest, DeleteTriggerRequest, GetTriggerRequest, ListFiringsRequest,
    PauseTriggerRequest, RotateTriggerSecretRequest, Target, Trigger,
    target::Session as TargetSession, trigger::Kind,
};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use tests::{Answer, Client, Sender, Session, World, request_id};

use crate::webhooks::until;

/// A trigger that is fired over HTTP, and the credential that was shown once.
struct Fired {
    id: String,
    url: String,
    credential: String,
}

async fn create(client: &Client, session: &Session) -> (CreateTriggerRequest, Fired) {
    let target =
        Target { session: Some(TargetSession::SessionId(session.id.clone())), ..Target::default() };
    let trigger = Trigger {
        name: "deployments".into(),
        kind: Some(Kind::Api(Api::default())),
        target: Some(target),
        template: "deploy {{ payload.what | default('everything') }}\n#!script\nsay ok".into(),
        ..Trigger::default()
    };
    let request = CreateTriggerRequest {
        request_id: request_id(),
        trigger: Some(trigger),
        secret: String::new(),
    };
    let answer = client.triggers().create_trigger(request.clone()).await.unwrap().into_inner();
    let trigger = answer.trigger.unwrap();
    let Some(Kind::Api(api)) = trigger.kind else { panic!("it is no API trigger") };
    (request, Fired { id: trigger.trigger_id, url: api.url, credential: answer.secret })
}

impl Fired {
    async fn post(&self, credential: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let bearer = format!("Bearer {credential}");
        let mut all = vec![("content-type", "application/json")];
        if !credential.is_empty() {
            all.push(("authorization", &bearer));
        }
        all.extend(headers);
        Sender::post_once(&self.url, &all, body).await
    }
}

#[tokio::test]
async fn api_triggers() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let (request, fired) = create(&client, &session).await;
    let (_, other) = create(&client, &session).await;

    // The credential is in one answer and nowhere else, not even in the database.
    assert!(fired.credential.starts_with("wlt_"));
    let again = client.triggers().create_trigger(request).await.unwrap().into_inner();
    assert_eq!(
        (again.trigger.unwrap().trigger_id, again.secret),
        (fired.id.clone(), String::new())
    );
    let get = GetTriggerRequest { trigger_id: fired.id.clone() };
    let shown = client.triggers().get_trigger(get).await.unwrap().into_inner().trigger.unwrap();
    assert!(!format!("{shown:?}").contains(&fired.credential));
    let mut database = PgConnection::connect(world.fleet.database_url()).await.unwrap();
    let (plain, hash): (Option<Vec<u8>>, Option<Vec<u8>>) =
        sqlx::query_as("select sealed, sha256 from triggers.secret where trigger_id = $1")
            .bind(&fired.id)
            .fetch_one(&mut database)
            .await
            .unwrap();
    assert_eq!((plain, hash.map(|hash| hash.len())), (None, Some(32)));

    // Whoever has it fires, once for each key.
    let key = [("idempotency-key", "release-1")];
    let body = json!({ "what": "the pump" }).to_string();
    let answer = fired.post(&fired.credential, &key, &body).await;
    assert_eq!((answer.status, &answer.body["status"]), (202, &json!("accepted")));
    let answer = fired.post(&fired.credential, &key, &body).await;
    assert_eq!((answer.status, &answer.body["reason"]), (200, &json!("duplicate")));
    assert_eq!(
        fired.post(&fired.credential, &[], "").await.status,
        202,
        "nothing is a payload too"
    );
    let said = async |text: &str| {
        let parts = session.messages().await.into_iter().flat_map(|message| message.parts);
        parts.filter(|part| format!("{part:?}").contains(text)).count()
    };
    until(async || said("deploy everything").await == 1).await;
    assert_eq!(said("deploy the pump").await, 1);

    // Nobody else does, and nothing of what they try is kept.
    let wrong = fired.credential.replace("wlt_", "wlt_a");
    for (credential, headers, body, status) in [
        ("", &[][..], "{}", 401),
        ("wlt_", &[], "{}", 401),
        (wrong.as_str(), &[], "{}", 401),
        (other.credential.as_str(), &[], "{}", 401),
        (fired.credential.as_str(), &[], "{", 400),
        (fired.credential.as_str(), &[("idempotency-key", "a b")], "{}", 400),
    ] {
        let answer = fired.post(credential, headers, body).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    let nowhere = Fired { url: fired.url.replace("trg_", "trg_0"), ..other };
    assert_eq!(nowhere.post(&fired.credential, &[], "{}").await.status, 404);
    let list = ListFiringsRequest { trigger_id: fired.id.clone(), ..Default::default() };
    let firings = client.triggers().list_firings(list).await.unwrap().into_inner().firings;
    assert_eq!(firings.len(), 3);

    // A paused one says so; a revoked credential is worth nothing; a deleted trigger was never there.
    let pause = PauseTriggerRequest { trigger_id: fired.id.clone() };
    client.triggers().pause_trigger(pause).await.unwrap();
    until(async || fired.post(&fired.credential, &[], "{}").await.body["reason"] == "paused").await;
    let rotate = RotateTriggerSecretRequest {
        trigger_id: fired.id.clone(),
        grace_seconds: 0,
        secret: String::new(),
    };
    let answer = client.triggers().rotate_trigger_secret(rotate).await.unwrap().into_inner();
    until(async || fired.post(&fired.credential, &[], "{}").await.status == 401).await;
    assert_eq!(fired.post(&answer.secret, &[], "{}").await.status, 200);
    let delete = DeleteTriggerRequest { trigger_id: fired.id.clone() };
    client.triggers().delete_trigger(delete).await.unwrap();
    until(async || fired.post(&answer.secret, &[], "{}").await.status == 404).await;
}
