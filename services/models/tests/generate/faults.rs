//! What fails, and how that looks from outside.

use std::time::Duration;

use expect_test::expect;
use proto::models::v1 as pb;
use sqlx::PgPool;
use tests::Act;
use tokio::time::{Instant, timeout};

use crate::{
    providers::{self, FORMATS, plain},
    world::{World, explain, script},
};

#[sqlx::test(migrations = false)]
async fn every_fault_has_its_reason(db: PgPool) {
    let world = World::start(db).await;
    let mut answers = String::new();
    for fault in [
        "fail transient",
        "fail rate_limit 1.5s",
        "fail auth",
        "fail overflow",
        "fail refused",
        "fail invalid",
        "cut",
        "nonsense",
    ] {
        let answer = world.play(fault).await;
        let (_, after_routing) = answer.split_once("cost.estimated").unwrap();
        let (_, failure) = after_routing.split_once('\n').unwrap();
        answers += &format!("{fault}\n{failure}");
    }
    expect![[r#"
        fail transient
        error Unavailable REASON_PROVIDER_TRANSIENT: scripted/demo failed: the script says that this attempt fails [model: demo] [provider: scripted] (again in 500ms)
        fail rate_limit 1.5s
        rate_limit.hit {"origin":"provider","limit":"requests_per_minute","scope":"provider","retryAfterMs":1500}
        error ResourceExhausted REASON_RATE_LIMITED: scripted/demo is at its rate limit [limit: requests_per_minute] [scope: provider] (again in 1.5s)
        fail auth
        error FailedPrecondition REASON_PROVIDER_AUTH: scripted refused our credential [provider: scripted]
        fail overflow
        error FailedPrecondition REASON_CONTEXT_OVERFLOW: the prompt has about 6 tokens and scripted/demo reads at most 128000 [context: 128000] [model: scripted/demo] [tokens: 6]
        fail refused
        error FailedPrecondition REASON_CONTENT_REFUSED: scripted/demo refused the content [model: demo] [provider: scripted]
        fail invalid
        error InvalidArgument REASON_PROVIDER_INVALID_REQUEST: scripted/demo calls the request invalid: the script says that this request is invalid [model: demo] [provider: scripted]
        cut
        error Unavailable REASON_PROVIDER_TRANSIENT: scripted/demo failed: it broke off before its first word [model: demo] [provider: scripted] (again in 500ms)
        nonsense
        error InvalidArgument REASON_SCRIPT_INVALID: script line 1: unknown verb "nonsense": there are say, think, repeat, call, delay, chunk, pace, usage, finish, fail, hang and cut [line: 1] [problem: unknown verb "nonsense": there are say, think, repeat, call, delay, chunk, pace, usage, finish, fail, hang and cut]
    "#]].assert_eq(&answers);
}

#[sqlx::test(migrations = false)]
async fn after_the_first_word_every_fault_cuts_the_stream(db: PgPool) {
    let world = World::start(db).await;
    let mut answers = String::new();
    for fault in ["cut", "fail transient"] {
        let answer = world.play(&format!("say Hello\n{fault}")).await;
        answers += &answer[answer.find("text").unwrap()..];
    }
    expect![[r#"
        text "Hello"
        cost.recorded {"usage":{"input":6,"output":2},"costMicros":"14","currency":"USD","basis":"estimated"}
        error Aborted REASON_PROVIDER_STREAM_CUT: scripted/demo stopped in the middle of its answer: the stream broke off [model: demo] [provider: scripted]
        text "Hello"
        cost.recorded {"usage":{"input":9,"output":2},"costMicros":"17","currency":"USD","basis":"estimated"}
        error Aborted REASON_PROVIDER_STREAM_CUT: scripted/demo stopped in the middle of its answer: the script says that this attempt fails [model: demo] [provider: scripted]
    "#]].assert_eq(&answers);
}

#[sqlx::test(migrations = false)]
async fn a_fault_that_passes_does(db: PgPool) {
    let world = World::start(db).await;
    for (attempt, passes) in [(0, false), (1, false), (2, false), (3, true)] {
        let request = pb::GenerateRequest { attempt, ..script("fail transient 2\nsay Hello") };
        let answer = world.generate(request).await;
        assert_eq!(answer.contains("finished stop"), passes, "{attempt}: {answer}");
    }
}

/// A call that nobody listens to any more would hold up the drain, which is
/// 20 seconds long.
#[sqlx::test(migrations = false)]
async fn dropping_the_stream_stops_the_work(db: PgPool) {
    let mut world = World::start(db).await;
    let mut answer = world.begin(script("say Hello\nhang")).await;
    world.until_text(&mut answer).await;
    drop(answer);

    let started = Instant::now();
    world.stop().await;
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[sqlx::test(migrations = false)]
async fn an_answer_that_has_begun_is_finished_when_the_server_stops(db: PgPool) {
    let mut world = World::start(db).await;
    let mut answer = world.begin(script("say Hello\ndelay 300ms\nsay again")).await;
    world.until_text(&mut answer).await;
    world.stop.cancel();
    let rest = timeout(Duration::from_secs(5), World::rest(answer)).await.unwrap();
    assert!(rest.contains("finished stop"), "{rest}");
}

#[sqlx::test(migrations = false)]
async fn an_answer_that_has_not_begun_is_sent_elsewhere_when_the_server_stops(db: PgPool) {
    let mut world = World::start(db).await;
    let mut answer = world.begin(script("hang")).await;
    assert!(answer.message().await.unwrap().is_some());
    world.stop.cancel();
    let error = loop {
        match timeout(Duration::from_secs(5), answer.message()).await.unwrap() {
            Ok(_) => continue,
            Err(error) => break error,
        }
    };
    expect!["Unavailable REASON_STOPPING: this server is stopping, call again"]
        .assert_eq(&explain(&error));
}

/// What was counted is paid for, also where nothing was said: a refusal, a thought that came to nothing.
#[sqlx::test(migrations = false)]
async fn what_a_provider_counted_of_a_failure_is_paid_for(db: PgPool) {
    let (world, upstream) = providers::world(db).await;
    let thought = r#""usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":20,"thoughtsTokenCount":50}"#;
    let gemini = |piece: &str| format!("data: {{{piece},{thought}}}\n\n");
    let failed = r#"{"type":"response.failed","response":{"error":{"code":"server_error","message":"oops"},"usage":{"input_tokens":100,"output_tokens":50}}}"#;
    let began = r#"data: {"type":"message_start","message":{"usage":{"input_tokens":100,"output_tokens":1}}}"#;
    let [chat, responses, anthropic, _] = FORMATS;
    let failures = [
        (
            "openai_chat",
            format!(
                "{}data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":100,\"completion_tokens\":50}}}}\n\n",
                chat.refused.replace("data: [DONE]\n\n", "")
            ),
        ),
        (
            "openai_responses",
            responses.refused.replace(
                r#""status":"incomplete""#,
                r#""usage":{"input_tokens":100,"output_tokens":50},"status":"incomplete""#,
            ),
        ),
        ("openai_responses", format!("data: {failed}\n\n")),
        ("anthropic", format!("{began}\n\n{}", anthropic.refused)),
        ("anthropic", format!("{began}\n\n")),
        // What follows the first count was not counted.
        ("anthropic", format!("{began}\n\n{}", anthropic.hello)),
        ("gemini", gemini(r#""promptFeedback":{"blockReason":"SAFETY"}"#)),
        ("gemini", gemini(r#""candidates":[{"finishReason":"SAFETY"}]"#)),
        ("gemini", gemini(r#""candidates":[{"finishReason":"MALFORMED_FUNCTION_CALL"}]"#)),
        ("gemini", gemini(r#""candidates":[]"#)),
    ];
    let mut told = String::new();
    for (kind, stream) in &failures {
        upstream.answer(Act::events(stream));
        let answer = world.generate(plain(kind)).await;
        let recorded = answer.lines().find(|line| line.starts_with("cost.recorded"));
        told += &format!("{kind} {}\n", recorded.unwrap_or_default());
    }
    for row in world.log(failures.len()).await.iter().rev() {
        let pb::ModelRequest { provider, error_kind, basis, cost_micros, .. } = row;
        told += &format!("{provider} {error_kind} {basis} {cost_micros}\n");
    }
    expect![[r#"
        openai_chat cost.recorded {"usage":{"input":100,"output":50},"costMicros":"300","currency":"USD","basis":"exact"}
        openai_responses cost.recorded {"usage":{"input":100,"output":50},"costMicros":"300","currency":"USD","basis":"exact"}
        openai_responses cost.recorded {"usage":{"input":100,"output":50},"costMicros":"300","currency":"USD","basis":"exact"}
        anthropic cost.recorded {"usage":{"input":100,"output":1},"costMicros":"104","currency":"USD","basis":"exact"}
        anthropic cost.recorded {"usage":{"input":100,"output":1},"costMicros":"104","currency":"USD","basis":"exact"}
        anthropic cost.recorded {"usage":{"input":13,"output":2},"costMicros":"21","currency":"USD","basis":"estimated"}
        gemini cost.recorded {"usage":{"input":80,"output":50,"reasoning":50,"cacheRead":20},"costMicros":"282","currency":"USD","basis":"exact"}
        gemini cost.recorded {"usage":{"input":80,"output":50,"reasoning":50,"cacheRead":20},"costMicros":"282","currency":"USD","basis":"exact"}
        gemini cost.recorded {"usage":{"input":80,"output":50,"reasoning":50,"cacheRead":20},"costMicros":"282","currency":"USD","basis":"exact"}
        gemini cost.recorded {"usage":{"input":80,"output":50,"reasoning":50,"cacheRead":20},"costMicros":"282","currency":"USD","basis":"exact"}
        openai_chat refused exact 300
        openai_responses refused exact 300
        openai_responses transient exact 300
        anthropic refused exact 104
        anthropic cut exact 104
        anthropic cut estimated 21
        gemini refused exact 282
        gemini refused exact 282
        gemini transient exact 282
        gemini cut exact 282
    "#]].assert_eq(&told);
}
