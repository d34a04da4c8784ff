use chassis::auth::{Scopes, keys};
use expect_test::expect;
use jiff::{Timestamp, ToSpan as _};
use sqlx::PgPool;

use crate::rig::{Rig, acme, eventually, explain};

const REFUSED: &str = "Unauthenticated REASON_UNAUTHENTICATED {}: \
                       the credential is missing, malformed, unknown, expired or revoked";

#[sqlx::test]
async fn a_good_key_says_who_calls(db: PgPool) {
    let rig = Rig::start(db).await;
    let (_, key) = rig.key(&["read", "run"]).await;
    let seen = rig.list(&key).await.unwrap().into_inner().next_page_token;
    expect![[r#"acme ada ApiKey {"read", "run"}"#]].assert_eq(&seen);
}

#[sqlx::test]
async fn nobody_calls_without_a_credential(db: PgPool) {
    let rig = Rig::start(db).await;
    let refused = rig.models().list_models(proto::models::v1::ListModelsRequest::default()).await;
    assert_eq!(explain(&refused.unwrap_err()), REFUSED);
}

#[sqlx::test]
async fn a_wrong_secret_an_unknown_id_and_nonsense_look_the_same(db: PgPool) {
    let rig = Rig::start(db).await;
    let (_, key) = rig.key(&["read"]).await;
    let (_, other) = rig.key(&["read"]).await;
    let wrong_secret = format!("{}{}", &key[..29], &other[29..]);
    let unknown_id = format!("wl_{}{}", "0".repeat(26), &key[29..]);
    for bad in [&wrong_secret, &unknown_id, &key[..81], "wl_", "wl_x_y", "nonsense", ""] {
        assert_eq!(explain(&rig.list(bad).await.unwrap_err()), REFUSED, "{bad}");
    }
}

#[sqlx::test]
async fn a_malformed_key_does_not_reach_the_database(db: PgPool) {
    let rig = Rig::start(db).await;
    let (_, key) = rig.key(&["read"]).await;
    rig.db.close().await;
    assert_eq!(explain(&rig.list(&key[..81]).await.unwrap_err()), REFUSED);
    expect![[
        r#"Unavailable REASON_DEPENDENCY_UNAVAILABLE {"dependency": "postgres"}: postgres does not answer"#
    ]]
    .assert_eq(&explain(&rig.list(&key).await.unwrap_err()));
}

#[sqlx::test]
async fn a_revoked_key_is_refused_within_seconds(db: PgPool) {
    let rig = Rig::start(db).await;
    let (id, key) = rig.key(&["read"]).await;
    rig.list(&key).await.unwrap();

    let first = keys::revoke(&rig.db, &acme(), id).await.unwrap();
    assert_eq!(keys::revoke(&rig.db, &acme(), id).await.unwrap(), first);
    eventually("the key is refused", || async { rig.list(&key).await.is_err() }).await;
    assert_eq!(explain(&rig.list(&key).await.unwrap_err()), REFUSED);
}

#[sqlx::test]
async fn an_expired_key_is_refused(db: PgPool) {
    let rig = Rig::start(db).await;
    let (id, key) = rig.key(&["read"]).await;
    sqlx::query("update auth.api_key set expires_at = now() where id = $1")
        .bind(id)
        .execute(&rig.db)
        .await
        .unwrap();
    assert_eq!(explain(&rig.list(&key).await.unwrap_err()), REFUSED);
}

#[sqlx::test]
async fn a_key_needs_the_scope_of_the_call(db: PgPool) {
    let rig = Rig::start(db).await;
    let (_, key) = rig.key(&["run", "admin"]).await;
    expect![[
        r#"PermissionDenied REASON_SCOPE_MISSING {"scope": "read"}: the credential does not hold the scope read"#
    ]]
    .assert_eq(&explain(&rig.list(&key).await.unwrap_err()));
}

#[sqlx::test]
async fn no_key_can_hold_internal(db: PgPool) {
    let rig = Rig::start(db).await;
    let new = |scopes: &[&str]| keys::NewKey {
        tenant: acme(),
        subject: "ada".to_owned(),
        name: "laptop".to_owned(),
        scopes: Scopes::from_names(scopes.iter().copied()),
        expires_at: None,
    };
    for scopes in [&["internal", "read"][..], &[]] {
        let refused = keys::create(&rig.db, new(scopes)).await.unwrap_err();
        expect!["invalid scopes: expected at least one of read, run, configure, admin"]
            .assert_eq(&refused.to_string());
    }
    let (id, _) = rig.key(&["read"]).await;
    let forced = sqlx::query("update auth.api_key set scopes = '{internal}' where id = $1");
    assert!(forced.bind(id).execute(&rig.db).await.is_err());
}

#[sqlx::test]
async fn keys_are_listed_in_pages_and_only_to_their_tenant(db: PgPool) {
    let rig = Rig::start(db).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(rig.key(&["read"]).await.0);
    }
    let page = async |after, limit| -> Vec<keys::KeyId> {
        let keys = keys::list(&rig.db, &acme(), after, limit).await.unwrap();
        keys.into_iter().map(|key| key.id).collect()
    };
    assert_eq!(page(None, 2).await, ids[..2]);
    assert_eq!(page(Some(ids[1]), 2).await, ids[2..]);

    let stranger = "other".parse().unwrap();
    assert_eq!(keys::list(&rig.db, &stranger, None, 10).await.unwrap(), []);
    let refused = keys::revoke(&rig.db, &stranger, ids[0]).await.unwrap_err();
    assert!(matches!(refused, keys::KeyError::NotFound(_)));
}

#[sqlx::test]
async fn a_key_remembers_when_it_expires(db: PgPool) {
    let rig = Rig::start(db).await;
    let expires_at = Timestamp::from_second(Timestamp::now().as_second()).unwrap() + 1.hour();
    let new = |expires_at| keys::NewKey {
        tenant: acme(),
        subject: "ada".to_owned(),
        name: "laptop".to_owned(),
        scopes: Scopes::public(),
        expires_at: Some(expires_at),
    };
    let (key, _) = keys::create(&rig.db, new(expires_at)).await.unwrap();
    assert_eq!(keys::list(&rig.db, &acme(), None, 10).await.unwrap(), [key]);
    let refused = keys::create(&rig.db, new(Timestamp::UNIX_EPOCH)).await.unwrap_err();
    expect!["invalid expires_at: expected a time to come"].assert_eq(&refused.to_string());
}
