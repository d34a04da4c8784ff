//! Every wire format against a server that speaks it byte for byte, in peace and in trouble.

use std::time::Duration;

use expect_test::{expect, expect_file};
use proto::models::v1::{self as pb, content::Kind, message::Role};
use sqlx::PgPool;
use tests::{Act, Upstream};

use crate::world::{World, script};

/// One wire format: its recorded stream, and how it says what goes wrong.
pub struct Format {
    pub kind: &'static str,
    stream: &'static str,
    /// The beginning of a stream, up to the word `Hello`.
    pub hello: &'static str,
    unauthorized: (&'static str, &'static str),
    overflow: &'static str,
    limited: (&'static str, &'static str),
    overloaded: (&'static str, &'static str),
    /// A stream that says that nobody will answer this.
    pub refused: &'static str,
}

pub const FORMATS: [Format; 4] = [
    Format {
        kind: "openai_chat",
        stream: include_str!("streams/openai_chat.sse"),
        hello: "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"finish_reason\":null}]}\n\n",
        unauthorized: (
            "401 Unauthorized",
            r#"{"error":{"message":"Incorrect API key provided: sk-test-key.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#,
        ),
        overflow: r#"{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 140000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        limited: (
            "retry-after: 7\r\nx-ratelimit-remaining-requests: 0\r\n",
            r#"{"error":{"message":"Rate limit reached","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#,
        ),
        overloaded: (
            "503 Service Unavailable",
            r#"{"error":{"message":"The engine is currently overloaded, please try again later","type":"server_error"}}"#,
        ),
        refused: "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"content_filter\"}]}\n\ndata: [DONE]\n\n",
    },
    Format {
        kind: "openai_responses",
        stream: include_str!("streams/openai_responses.sse"),
        hello: "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"Hello\"}\n\n",
        unauthorized: (
            "401 Unauthorized",
            r#"{"error":{"message":"Incorrect API key provided: sk-test-key.","type":"invalid_request_error","code":"invalid_api_key"}}"#,
        ),
        overflow: r#"{"error":{"message":"Your input exceeds the context window of this model.","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
        limited: (
            "retry-after-ms: 7000\r\n",
            r#"{"error":{"message":"Rate limit reached","type":"tokens","code":"rate_limit_exceeded"}}"#,
        ),
        overloaded: (
            "503 Service Unavailable",
            r#"{"error":{"message":"Slow down","type":"server_error"}}"#,
        ),
        refused: "event: response.incomplete\ndata: {\"type\":\"response.incomplete\",\"response\":{\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"content_filter\"}}}\n\n",
    },
    Format {
        kind: "anthropic",
        stream: include_str!("streams/anthropic.sse"),
        hello: "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n",
        unauthorized: (
            "401 Unauthorized",
            r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#,
        ),
        overflow: r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
        limited: (
            "retry-after: 7\r\nanthropic-ratelimit-requests-remaining: 0\r\n",
            r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your rate limit"}}"#,
        ),
        overloaded: (
            "529 ",
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
        ),
        refused: "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"refusal\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":1}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    },
    Format {
        kind: "gemini",
        stream: include_str!("streams/gemini.sse"),
        hello: "data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"Hello\"}],\"role\": \"model\"}}]}\r\n\r\n",
        unauthorized: (
            "400 Bad Request",
            r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID"}]}}"#,
        ),
        overflow: r#"{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#,
        limited: (
            "",
            r#"{"error":{"code":429,"message":"Quota exceeded","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"7s"}]}}"#,
        ),
        overloaded: (
            "503 Service Unavailable",
            r#"{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}"#,
        ),
        refused: "data: {\"promptFeedback\": {\"blockReason\": \"PROHIBITED_CONTENT\"}}\r\n\r\n",
    },
];

/// A catalogue with one model of each format, all at the same server.
pub fn catalogue(url: &str, credential: &std::path::Path) -> String {
    let entry = |format: &Format| {
        format!(
            r#"{{"name": "{kind}", "kind": "{kind}", "base_url": "{url}/v1", "idle_timeout_ms": 400,
            "credential": {{"file": {credential:?}}}, "headers": {{"x-team": "windlass"}}}}"#,
            kind = format.kind,
        )
    };
    let model = |format: &Format| {
        format!(
            r#"{{"provider": "{}", "model": "m-1", "tier": "balanced", "context_tokens": 128000,
            "output_tokens": 32000, "capabilities": ["tools", "images", "reasoning", "structured_output"],
            "price": {{"currency": "USD", "input_micros": 1000000, "output_micros": 4000000,
            "cache_read_micros": 100000, "cache_write_micros": 1250000}}}}"#,
            format.kind,
        )
    };
    let (providers, models) = (FORMATS.each_ref().map(entry), FORMATS.each_ref().map(model));
    format!(r#"{{"providers": [{}], "models": [{}]}}"#, providers.join(","), models.join(","))
}

pub async fn world(db: PgPool) -> (World, Upstream) {
    let upstream = Upstream::start().await;
    let world = World::with_catalogue(db, |directory, _| {
        let key = directory.join("key");
        std::fs::write(&key, "sk-test-key\n").unwrap();
        catalogue(&upstream.url, &key)
    });
    (world.await, upstream)
}

fn text(text: &str) -> pb::Content {
    pb::Content { kind: Some(Kind::Text(text.to_owned())) }
}

fn message(role: Role, content: Vec<pb::Content>) -> pb::Message {
    pb::Message { role: role.into(), content }
}

/// A request with everything that a request can have.
fn everything(kind: &str) -> pb::GenerateRequest {
    let image = pb::Image { media_type: "image/png".to_owned(), data: vec![1, 2, 3] };
    let reasoning = |text: &str, signature: &str| pb::Content {
        kind: Some(Kind::Reasoning(pb::Reasoning {
            text: text.to_owned(),
            signature: signature.to_owned(),
        })),
    };
    let call = |id: &str, tool: &str, input_json: &str| pb::Content {
        kind: Some(Kind::ToolCall(pb::ToolCall {
            tool_call_id: id.to_owned(),
            tool: tool.to_owned(),
            input_json: input_json.to_owned(),
        })),
    };
    let result = |id: &str, text: &str, error: bool| pb::Content {
        kind: Some(Kind::ToolResult(pb::ToolResult {
            tool_call_id: id.to_owned(),
            text: text.to_owned(),
            error,
        })),
    };
    let schema = r#"{"type": "object", "properties": {"path": {"type": "string"}}}"#;
    let tool = pb::Tool {
        name: "read".to_owned(),
        description: "Reads a file".to_owned(),
        input_schema_json: schema.to_owned(),
    };
    let prompt = pb::Prompt {
        system: "Be brief.".to_owned(),
        messages: vec![
            message(
                Role::User,
                vec![text("What is this?"), pb::Content { kind: Some(Kind::Image(image)) }],
            ),
            message(
                Role::Assistant,
                vec![
                    reasoning("Two places.", "anthropic:EqQB"),
                    reasoning("", "anthropic-redacted:Emw"),
                    reasoning("Two places.", "openai:rs_1:gAAAAA"),
                    reasoning("", "gemini:CikB"),
                    text("Let me look."),
                    call("call_1", "read", r#"{"path": "a"}"#),
                    call("call_2", "read", "not json"),
                ],
            ),
            message(
                Role::Tool,
                vec![result("call_1", "contents", false), result("call_2", "no such file", true)],
            ),
        ],
        tools: vec![tool],
    };
    let options = pb::Options {
        max_output_tokens: 9000,
        temperature: Some(0.5),
        reasoning_effort: "medium".to_owned(),
        output_schema_json: r#"{"type":"object"}"#.to_owned(),
    };
    pb::GenerateRequest {
        prompt: Some(prompt),
        target: Some(target(kind)),
        options: Some(options),
        ..script("")
    }
}

fn target(kind: &str) -> pb::Target {
    pb::Target { model: format!("{kind}/m-1"), ..pb::Target::default() }
}

pub fn plain(kind: &str) -> pb::GenerateRequest {
    pb::GenerateRequest { target: Some(target(kind)), ..script("say ignored") }
}

/// What follows the facts about routing.
fn said(answer: &str) -> &str {
    let (_, after) = answer.split_once("cost.estimated").unwrap_or(("", answer));
    after.split_once('\n').unwrap_or(("", after)).1
}

#[sqlx::test(migrations = false)]
async fn a_stream_becomes_the_same_answer_whoever_sent_it(db: PgPool) {
    let (world, upstream) = world(db).await;
    for format in FORMATS {
        upstream.answer(Act::events(format.stream));
        let answer = world.generate(everything(format.kind)).await;
        expect_file![format!("answers/{}.txt", format.kind)].assert_eq(said(&answer));
    }
}

#[sqlx::test(migrations = false)]
async fn a_request_is_written_as_its_format_wants_it(db: PgPool) {
    let (world, upstream) = world(db).await;
    for format in FORMATS {
        upstream.answer(Act::events(format.stream));
        world.generate(everything(format.kind)).await;
        let heard = upstream.heard().pop().unwrap();
        let mut lines: Vec<_> = heard.head.lines().map(str::to_owned).collect();
        let line = lines.remove(0);
        lines.retain(|line| !line.starts_with("host:") && !line.starts_with("content-length:"));
        lines.sort();
        let body: serde_json::Value = serde_json::from_str(&heard.body).unwrap();
        let body = serde_json::to_string_pretty(&body).unwrap();
        let request = format!("{line}\n{}\n\n{body}\n", lines.join("\n"));
        expect_file![format!("requests/{}.txt", format.kind)].assert_eq(&request);
    }
}

/// One line per provider and fault: what a caller is told.
#[sqlx::test(migrations = false)]
async fn every_fault_of_every_provider_is_classified(db: PgPool) {
    let (world, upstream) = world(db).await;
    let mut table = String::new();
    for format in FORMATS {
        let Format { kind, hello, .. } = format;
        let half = &hello[..hello.len() - 8];
        let giant = format!("data: {}", "x".repeat(64 * 1024));
        let giant = std::iter::repeat_n(Act::Piece(giant[6..].to_owned()), 80);
        // What fails by chance stands between what does not, so that nobody is left alone
        // because of it; who asks for a wait comes last.
        let faults: Vec<(&str, Vec<Act>)> = vec![
            ("slow drip", drips(format.stream)),
            ("cut before a word", vec![Act::stream(), Act::Piece(half.to_owned())]),
            (
                "cut in an event",
                vec![Act::stream(), Act::Piece(hello.to_owned()), Act::Piece(half.to_owned())],
            ),
            ("ended without an end", Act::events(hello)),
            ("401", Act::refusal(format.unauthorized.0, "", format.unauthorized.1)),
            ("malformed JSON", Act::events("data: {\"choices\": [{]}\n\n")),
            ("another shape", Act::events("data: [1, 2]\n\n")),
            ("overloaded", Act::refusal(format.overloaded.0, "", format.overloaded.1)),
            ("overflow", Act::refusal("400 Bad Request", "", format.overflow)),
            ("idle before a word", vec![Act::stream(), Act::Hang]),
            ("idle after a word", vec![Act::stream(), Act::Piece(hello.to_owned()), Act::Hang]),
            ("wrong content type", Act::refusal("200 OK", "", "{}")),
            ("refused content", Act::events(format.refused)),
            (
                "giant event",
                [Act::stream(), Act::Piece("data: ".to_owned())].into_iter().chain(giant).collect(),
            ),
            ("redirect", Act::refusal("302 Found", "location: http://127.0.0.1:1/\r\n", "")),
            ("429", Act::refusal("429 Too Many Requests", format.limited.0, format.limited.1)),
            ("asked again", vec![]),
        ];
        for (fault, acts) in faults {
            if !acts.is_empty() {
                upstream.answer(acts);
            }
            let asked = upstream.heard().len();
            let answer = world.generate(plain(kind)).await;
            let mut end = answer.lines().last().unwrap_or_default();
            if fault == "asked again" {
                assert_eq!(upstream.heard().len(), asked, "it was not left alone");
                end = end.split(" (again in 6.").next().unwrap();
            }
            table += &format!("{kind}, {fault}: {end}\n");
        }
    }
    assert!(!table.contains("sk-test-key"), "{table}");
    expect_file!["answers/faults.txt"].assert_eq(&table);
}

/// The same bytes, a few at a time, slower in all than the wait for the next ones.
fn drips(stream: &str) -> Vec<Act> {
    let mut acts = vec![Act::stream()];
    let size = stream.len().div_ceil(20);
    for piece in stream.as_bytes().chunks(size) {
        // Cut wherever it falls, also inside of a letter.
        let mut bytes = format!("{:x}\r\n", piece.len()).into_bytes();
        bytes.extend_from_slice(piece);
        bytes.extend_from_slice(b"\r\n");
        acts.push(Act::Raw(bytes));
        acts.push(Act::Wait(Duration::from_millis(30)));
    }
    acts.push(Act::End);
    acts
}

/// The input of a call is passed on once, however many pieces it comes in.
#[sqlx::test(migrations = false)]
async fn a_large_input_is_not_repeated(db: PgPool) {
    let (world, upstream) = world(db).await;
    let piece = |delta: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}]}}\n\n"
        )
    };
    let mut stream = piece(
        r#"{"tool_calls":[{"index":0,"id":"call_a","function":{"name":"write","arguments":"{\"text\":\""}}]}"#,
    );
    for _ in 0..5_000 {
        stream += &piece(
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"twenty letters here "}}]}"#,
        );
    }
    stream += &piece(r#"{"tool_calls":[{"index":0,"function":{"arguments":"\"}"}}]}"#);
    stream += "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n";
    upstream.answer(Act::events(&stream));
    let answer = world.generate(plain("openai_chat")).await;
    assert!(answer.contains("finished tool_calls"));
    // Once in pieces and once whole, and a few words around each piece.
    assert!(answer.len() < 400_000, "{}", answer.len());
}

#[sqlx::test(migrations = false)]
async fn who_fails_again_and_again_is_left_alone(db: PgPool) {
    let (mut world, upstream) = world(db).await;
    for _ in 0..5 {
        upstream.answer(Act::refusal("503 Service Unavailable", "", ""));
        world.generate(plain("anthropic")).await;
    }
    let answer = world.generate(plain("anthropic")).await;
    assert_eq!(upstream.heard().len(), 5, "nobody asked a sixth time");
    assert!(answer.contains("anthropic failed too often"), "{answer}");
    let models = world.models().await;
    let breakers: Vec<_> = models.iter().map(|one| (&one.model[..], &one.breaker[..])).collect();
    assert_eq!(breakers[0], ("anthropic/m-1", "open"));
    assert!(breakers[1..].iter().all(|(_, breaker)| *breaker == "closed"));
    // And nobody else is.
    upstream.answer(Act::events(FORMATS[0].stream));
    assert!(world.generate(plain("openai_chat")).await.contains("finished tool_calls"));
}

/// Nobody is asked by name, so the next of the same tier answers, and the log says so.
#[sqlx::test(migrations = false)]
async fn before_the_first_word_another_model_answers_unnoticed(db: PgPool) {
    let (world, upstream) = world(db).await;
    upstream.answer(Act::refusal(
        "529 ",
        "",
        r#"{"error":{"type":"overloaded_error","message":"Overloaded"}}"#,
    ));
    upstream.answer(Act::events(FORMATS[3].stream));
    let target = pb::Target { profile: "chat".to_owned(), ..pb::Target::default() };
    let request = pb::GenerateRequest { target: Some(target), ..script("say ignored") };
    let answer = world.generate(request).await;
    let lines: Vec<_> = answer
        .lines()
        .filter(|line| {
            line.starts_with("routing.decided")
                || line.starts_with("routing.fallback")
                || line.starts_with("finished")
                || line.starts_with("text")
        })
        .collect();
    expect![[r#"
        routing.decided {"provider":"anthropic","model":"m-1","reason":"best for chat: a balanced model, score 1.0","candidates":4,"fallbacks":["gemini/m-1","openai_chat/m-1","openai_responses/m-1"]}
        routing.fallback.applied {"fromProvider":"anthropic","fromModel":"m-1","toProvider":"gemini","toModel":"m-1","reason":"transient: it answered with 529: Overloaded"}
        text "Let me look."
        finished tool_calls gemini/m-1 380 {"input":93,"output":46,"reasoning":6,"cacheRead":1024}"#]].assert_eq(&lines.join("\n"));
}
