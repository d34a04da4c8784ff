//! Answers that break off after people saw their beginning.

use expect_test::expect;
use proto::models::v1 as pb;
use sqlx::PgPool;
use tests::{Act, Upstream};

use crate::world::{World, script};

const HELLO: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello, \"},\"finish_reason\":null}]}\n\n";
const WORLD: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"world.\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";

/// Two servers with a model each; the first is asked first, because it is cheaper.
async fn world(db: PgPool, policy: &str) -> (World, Upstream, Upstream) {
    let (first, second) = (Upstream::start().await, Upstream::start().await);
    let catalogue = |tenant: &str| {
        format!(
            r#"{{"providers": [
            {{"name": "first", "kind": "openai_chat", "base_url": "{}"}},
            {{"name": "second", "kind": "openai_chat", "base_url": "{}"}}],
        "models": [{}, {}], "tenants": {{"{tenant}": {policy}}}}}"#,
            first.url,
            second.url,
            model("first", 1),
            model("second", 2),
        )
    };
    let world = World::with_catalogue(db, |_, tenant| catalogue(tenant)).await;
    (world, first, second)
}

fn model(provider: &str, micros: i64) -> String {
    format!(
        r#"{{"provider": "{provider}", "model": "m", "tier": "balanced", "context_tokens": 8000,
        "output_tokens": 1000, "capabilities": ["tools"], "price": {{"currency": "USD",
        "input_micros": {micros}000000, "output_micros": {micros}000000, "cache_read_micros": 0,
        "cache_write_micros": 0}}}}"#
    )
}

async fn answer(world: &World) -> String {
    let target = pb::Target { profile: "chat".to_owned(), ..pb::Target::default() };
    let request = pb::GenerateRequest { target: Some(target), ..script("say ignored") };
    let answer = world.generate(request).await;
    answer[answer.find("cost.estimated").unwrap()..].to_owned()
}

#[sqlx::test(migrations = false)]
async fn an_answer_that_breaks_off_ends_there_unless_somebody_wants_more(db: PgPool) {
    let (world, first, second) = world(db, "{}").await;
    first.answer(vec![Act::stream(), Act::Piece(HELLO.to_owned())]);
    expect![[r#"
        cost.estimated {"worstCaseMicros":"1012","currency":"USD"}
        text "Hello, "
        cost.recorded {"usage":{"input":12,"output":2},"costMicros":"14","currency":"USD","basis":"estimated"}
        error Aborted REASON_PROVIDER_STREAM_CUT: first/m stopped in the middle of its answer: the stream broke off [model: m] [provider: first]
    "#]].assert_eq(&answer(&world).await);
    assert_eq!(second.heard().len(), 0);
}

#[sqlx::test(migrations = false)]
async fn an_answer_that_breaks_off_is_ended_by_another_model_and_the_log_says_so(db: PgPool) {
    let (world, first, second) = world(db, r#"{"after_first_token": "continue"}"#).await;
    first.answer(vec![Act::stream(), Act::Piece(HELLO.to_owned())]);
    second.answer(Act::events(WORLD));
    expect![[r#"
        cost.estimated {"worstCaseMicros":"1012","currency":"USD"}
        text "Hello, "
        cost.recorded {"usage":{"input":12,"output":2},"costMicros":"14","currency":"USD","basis":"estimated"}
        routing.fallback.applied {"fromProvider":"first","fromModel":"m","toProvider":"second","toModel":"m","reason":"cut: the stream broke off","afterFirstToken":true}
        cost.estimated {"worstCaseMicros":"2150","currency":"USD"}
        text "world."
        cost.recorded {"usage":{"input":20,"output":2},"costMicros":"44","currency":"USD","basis":"exact"}
        finished stop second/m 58 {"input":32,"output":4}
    "#]].assert_eq(&answer(&world).await);

    // It was told what there is already, and that it is not its own to repeat.
    let body: serde_json::Value = serde_json::from_str(&second.heard()[0].body).unwrap();
    let said = body["messages"].as_array().unwrap().iter();
    let said: Vec<_> = said.map(|message| (&message["role"], &message["content"])).collect();
    assert_eq!((said[1].0, said[1].1), (&"assistant".into(), &"Hello,".into()));
    assert_eq!(said[2].0, "user");
}

#[sqlx::test(migrations = false)]
async fn a_call_that_was_begun_is_not_ended_by_somebody_else(db: PgPool) {
    let (world, first, second) = world(db, r#"{"after_first_token": "continue"}"#).await;
    let call = "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"read\",\"arguments\":\"{\"}}]},\"finish_reason\":null}]}\n\n";
    first.answer(vec![Act::stream(), Act::Piece(HELLO.to_owned()), Act::Piece(call.to_owned())]);
    let answer = answer(&world).await;
    assert!(answer.contains("REASON_PROVIDER_STREAM_CUT"), "{answer}");
    assert_eq!(second.heard().len(), 0);
}

#[sqlx::test(migrations = false)]
async fn every_model_that_was_asked_has_its_row_and_they_sum_to_the_bill(db: PgPool) {
    let (world, first, second) = world(db, r#"{"after_first_token": "continue"}"#).await;
    first.answer(vec![Act::stream(), Act::Piece(HELLO.to_owned())]);
    second.answer(Act::events(WORLD));
    let answer = answer(&world).await;
    let rows = world.log(2).await;
    let told = rows.iter().rev().map(|row| {
        format!("{} {} {} {}", row.provider, row.status, row.error_kind, row.cost_micros)
    });
    assert_eq!(told.collect::<Vec<_>>(), ["first failed cut 14", "second completed  44"]);
    assert!(answer.contains("finished stop second/m 58 "), "{answer}");
    assert_ne!(rows[0].model_request_id, rows[1].model_request_id);
}

#[sqlx::test(migrations = false)]
async fn an_answer_that_nobody_may_continue_was_cut(db: PgPool) {
    let (world, first, second) = world(db, r#"{"after_first_token": "continue"}"#).await;
    let none = pb::Limit {
        limit: "tokens_per_day".into(),
        scope: "provider".into(),
        key: "second".into(),
        value: 1,
        ..pb::Limit::default()
    };
    world.put_limit(none).await.unwrap();
    first.answer(vec![Act::stream(), Act::Piece(HELLO.to_owned())]);
    let answer = answer(&world).await;
    assert!(answer.contains("quota.blocked"), "{answer}");
    assert!(
        answer.contains("error Aborted REASON_PROVIDER_STREAM_CUT: first/m stopped"),
        "{answer}"
    );
    assert_eq!(second.heard().len(), 0);
}
