use std::fs;

use local::{Fleet, Service};
use proto::session::v1::message::Role;
use tests::{Act, Upstream, World, text_of};

/// A delta that calls `bash`.
pub const CALL: &str = r#"{"role":"assistant","content":"","tool_calls":[{"id":"call_h5d3s25w","index":0,"type":"function","function":{"name":"bash","arguments":"{\"command\":\"echo $((6 * 7))\"}"}}]}"#;

/// An answer of an OpenAI-compatible server, as Ollama sends it.
pub fn answer(delta: &str, finish_reason: &str) -> Vec<Act> {
    let event = |choices: &str, usage: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"qwen3\",\"choices\":[{choices}]{usage}}}\n\n"
        )
    };
    let text = [
        event(&format!("{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}"), ""),
        event(
            &format!(
                "{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"finish_reason\":\"{finish_reason}\"}}"
            ),
            "",
        ),
        event(
            "",
            ",\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":10,\"total_tokens\":110}",
        ),
        "data: [DONE]\n\n".to_owned(),
    ];
    Act::events(&text.concat())
}

/// The catalogue that CATALOGUE.md begins with, with the address of a server that is really there.
pub fn catalogue(url: &str) -> String {
    let manual = include_str!("../../services/models/CATALOGUE.md");
    let (_, block) = manual.split_once("```json\n").unwrap();
    let (catalogue, _) = block.split_once("```").unwrap();
    let address = "http://127.0.0.1:11434";
    assert!(catalogue.contains(address));
    catalogue.replace(address, url)
}

#[tokio::test]
async fn an_openai_compatible_server_is_a_catalogue_entry_and_no_code() {
    let upstream = Upstream::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("catalogue.json");
    fs::write(&path, catalogue(&upstream.url)).unwrap();
    let plan = Fleet::plan().env_of(Service::Models, "CATALOGUE", path.to_string_lossy());
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let session = client.create_session_on("local/qwen3").await;

    upstream.answer(answer(CALL, "tool_calls"));
    upstream.answer(answer(r#"{"role":"assistant","content":"It is 42."}"#, "stop"));
    let seen = session.run("this is no script here").await;
    assert_eq!(seen.last().unwrap().r#type, "turn.completed", "{:?}", seen.last());
    assert_eq!(text_of(&seen), "It is 42.");
    assert!(seen.iter().any(|event| event.r#type == "tool.result"));

    // The second request shows the model its call and what came of it.
    let heard = upstream.heard();
    assert_eq!(heard.len(), 2);
    assert!(heard[0].head.starts_with("POST /v1/chat/completions HTTP/1.1"));
    let body: serde_json::Value = serde_json::from_str(&heard[1].body).unwrap();
    assert_eq!(body["model"], "qwen3");
    let messages = body["messages"].as_array().unwrap();
    let [.., call, result] = messages.as_slice() else { panic!("{messages:?}") };
    assert_eq!(call["tool_calls"][0]["id"], result["tool_call_id"]);
    assert!(result["content"].as_str().unwrap().contains("42"), "{result}");

    // And it is paid for like any other.
    let messages = session.messages().await;
    let answers = messages.iter().filter(|message| message.role() == Role::Assistant);
    let usages: Vec<_> = answers.filter_map(|message| message.usage).collect();
    assert_eq!(
        usages.iter().map(|usage| (usage.input, usage.output)).collect::<Vec<_>>(),
        [(100, 10); 2]
    );
}
