use std::fs;

use chassis::auth::{Caller, Kind, Scopes};
use expect_test::expect;
use jsonwebtoken::{
    Algorithm, EncodingKey, Header, encode, get_current_timestamp,
    jwk::{Jwk, JwkSet},
};
use proto::models::v1::GenerateRequest;
use serde_json::{Value, json};
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::rig::{Rig, SECRET, acme, args, bearer, eventually, explain, free_port};

/// An identity provider: a private key, and a file with the public one.
struct Provider {
    key: EncodingKey,
    folder: TempDir,
}

impl Provider {
    fn new() -> Provider {
        let pair = rcgen::KeyPair::generate().unwrap();
        let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
        let mut jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
        jwk.common.key_id = Some("one".to_owned());
        let folder = tempfile::tempdir().unwrap();
        let set = serde_json::to_string(&JwkSet { keys: vec![jwk] }).unwrap();
        fs::write(folder.path().join("jwks.json"), set).unwrap();
        Provider { key, folder }
    }

    async fn rig(&self, db: PgPool) -> Rig {
        let jwks = format!("--auth-jwks={}", self.folder.path().join("jwks.json").display());
        let flags = [&jwks, "--auth-issuer=https://id.example", "--auth-audience=windlass"];
        Rig::with(db, args(&flags)).await
    }

    fn sign(&self, claims: Value) -> String {
        self.sign_as("one", claims)
    }

    fn sign_as(&self, kid: &str, claims: Value) -> String {
        let header = Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::ES256) };
        encode(&header, &claims, &self.key).unwrap()
    }
}

fn claims() -> Value {
    json!({
        "iss": "https://id.example", "aud": "windlass", "exp": get_current_timestamp() + 300,
        "tenant": "acme", "sub": "ada", "scope": "openid read",
    })
}

fn claims_with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

#[sqlx::test]
async fn a_good_token_says_who_calls(db: PgPool) {
    let provider = Provider::new();
    let rig = provider.rig(db).await;
    let seen = rig.list(&provider.sign(claims())).await.unwrap().into_inner().next_page_token;
    expect![[r#"acme ada Token {"read"}"#]].assert_eq(&seen);
}

#[sqlx::test]
async fn a_token_that_claims_internal_does_not_get_it(db: PgPool) {
    let provider = Provider::new();
    let rig = provider.rig(db).await;
    let token = provider.sign(claims_with("scope", json!("read internal")));
    let refused = rig.models().generate(bearer(&token, GenerateRequest::default())).await;
    expect![[
        r#"PermissionDenied REASON_SCOPE_MISSING {"scope": "internal"}: the credential does not hold the scope internal"#
    ]]
    .assert_eq(&explain(&refused.unwrap_err()));
}

#[sqlx::test]
async fn a_token_must_be_in_time_for_us_and_well_formed(db: PgPool) {
    let provider = Provider::new();
    let rig = provider.rig(db).await;
    let now = get_current_timestamp();
    for (name, value) in [
        ("iss", json!("https://evil.example")),
        ("aud", json!("another")),
        ("exp", json!(now - 60)),
        ("exp", Value::Null),
        ("nbf", json!(now + 600)),
        ("tenant", json!("Not A Tenant")),
        ("tenant", Value::Null),
        ("sub", json!("")),
        ("sub", json!("a\nb")),
    ] {
        let refused = rig.list(&provider.sign(claims_with(name, value.clone()))).await;
        assert_eq!(refused.unwrap_err().code(), tonic::Code::Unauthenticated, "{name} {value}");
    }
}

#[sqlx::test]
async fn only_the_providers_keys_and_algorithms_count(db: PgPool) {
    let provider = Provider::new();
    let rig = provider.rig(db).await;
    let stranger = Provider::new();
    let public = fs::read(provider.folder.path().join("jwks.json")).unwrap();
    let header = |alg| Header { kid: Some("one".to_owned()), ..Header::new(alg) };
    let mut tampered = provider.sign(claims());
    tampered.pop();
    for forged in [
        stranger.sign(claims()),
        provider.sign_as("two", claims()),
        tampered,
        // The public key used as a shared secret, and a guess at ours.
        encode(&header(Algorithm::HS256), &claims(), &EncodingKey::from_secret(&public)).unwrap(),
        encode(&header(Algorithm::HS512), &claims(), &EncodingKey::from_secret(SECRET.as_bytes()))
            .unwrap(),
        // {"alg":"none"} and no signature.
        format!("eyJhbGciOiJub25lIn0.{}.", provider.sign(claims()).split('.').nth(1).unwrap()),
    ] {
        let refused = rig.list(&forged).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{forged}");
    }
}

#[sqlx::test]
async fn keys_that_the_provider_adds_are_found(db: PgPool) {
    let provider = Provider::new();
    let rig = provider.rig(db).await;
    let added = Provider::new();
    fs::copy(added.folder.path().join("jwks.json"), provider.folder.path().join("jwks.json"))
        .unwrap();
    let file = fs::read_to_string(provider.folder.path().join("jwks.json")).unwrap();
    fs::write(provider.folder.path().join("jwks.json"), file.replace("one", "two")).unwrap();
    rig.list(&added.sign_as("two", claims())).await.unwrap();
}

#[sqlx::test]
async fn keys_are_fetched_over_http_and_the_provider_may_be_late(db: PgPool) {
    let provider = Provider::new();
    let port = free_port().await;
    let jwks = format!("--auth-jwks=http://127.0.0.1:{port}/keys");
    let flags = [&jwks, "--auth-issuer=https://id.example", "--auth-audience=windlass"];
    let rig = Rig::with(db, args(&flags)).await;
    expect![[
        r#"Unavailable REASON_DEPENDENCY_UNAVAILABLE {"dependency": "identity provider"}: identity provider does not answer"#
    ]]
    .assert_eq(&explain(&rig.list(&provider.sign(claims())).await.unwrap_err()));

    let json = fs::read_to_string(provider.folder.path().join("jwks.json")).unwrap();
    let router = axum::Router::new().route("/keys", axum::routing::get(async || json));
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async { axum::serve(listener, router).await });
    eventually("the keys are there", async || rig.list(&provider.sign(claims())).await.is_ok())
        .await;
}

#[sqlx::test]
async fn an_internal_token_is_for_one_service_and_one_minute(db: PgPool) {
    let rig = Rig::start(db).await;
    let now = get_current_timestamp();
    let sign = |name: &str, value: Value| {
        let mut claims = json!({
            "iss": "windlass", "aud": "models", "iat": now, "exp": now + 60,
            "tenant": "acme", "sub": "ada", "scopes": ["read", "internal"],
        });
        claims[name] = value;
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap()
    };
    rig.list(&sign("sub", json!("ada"))).await.unwrap();
    for (name, value) in [
        ("iss", json!("https://id.example")),
        ("aud", json!("tools")),
        ("exp", json!(now + 3600)),
        ("exp", json!(now - 10)),
        ("tenant", json!("A")),
        ("sub", json!("")),
    ] {
        let refused = rig.list(&sign(name, value.clone())).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{name} {value}");
    }
}

#[sqlx::test]
async fn the_internal_secret_changes_while_services_go_on_calling_each_other(db: PgPool) {
    const NEXT: &str = "fedcba9876543210fedcba9876543210";
    let stage = async |own: &str, also: Option<&str>| {
        let mut flags = vec![format!("--auth-internal-secret={own}")];
        flags.extend(also.map(|also| format!("--auth-internal-secret-also={also}")));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Rig::with(db.clone(), args(&flags)).await
    };
    let stages = [
        stage(SECRET, None).await,
        stage(SECRET, Some(NEXT)).await,
        stage(NEXT, Some(SECRET)).await,
        stage(NEXT, None).await,
    ];
    let caller = Caller {
        tenant: acme(),
        subject: "ada".to_owned(),
        scopes: Scopes::from_names(["read"]),
        kind: Kind::ApiKey,
    };
    // While a deployment rolls, services of two stages next to each other run at once.
    for pair in stages.windows(2) {
        for (caller_side, callee) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            callee.list(&caller_side.auth.vouch("models", &caller)).await.unwrap();
        }
    }
    let old = stages[0].auth.vouch("models", &caller);
    let refused = stages[3].list(&old).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
}
