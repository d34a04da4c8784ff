use std::io::Write as _;

use proto::tools::v1::ListToolsRequest;
use serde_json::json;
use sqlx::PgPool;

use crate::{site::Site, world::World};

async fn names(world: &World) -> Vec<String> {
    let request = world.peer.request(&world.caller, ListToolsRequest::default());
    let response = world.client.clone().list_tools(request).await.unwrap().into_inner();
    response.tools.into_iter().map(|tool| tool.name).collect()
}

const KEY: &str = "a key that nobody may see";

async fn brave(db: PgPool, site: &Site, more: &[&str]) -> World {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{KEY}").unwrap();
    let (url, path) = (site.url("/api/"), file.path().to_str().unwrap().to_owned());
    let flags = ["--search-provider", "brave", "--search-url", &url, "--search-key-file", &path];
    let world = World::with(db, &[&flags[..], more].concat()).await;
    // Once it answers, it has read the file.
    assert!(names(&world).await.contains(&"web_search".to_owned()));
    world
}

async fn searxng(db: PgPool, site: &Site) -> World {
    let url = site.url("");
    World::with(db, &["--search-provider", "searxng", "--search-url", &url]).await
}

#[sqlx::test(migrations = false)]
async fn without_a_provider_there_is_no_search(db: PgPool) {
    let world = World::start(db).await;
    assert!(!names(&world).await.contains(&"web_search".to_owned()));
    let ended = world.execute(world.call("web_search", json!({ "query": "x" }))).await.unwrap();
    assert_eq!(ended.error(), ("unknown_tool", "there is no tool named \"web_search\""));
}

#[sqlx::test(migrations = false)]
async fn brave_is_asked_in_its_own_way(db: PgPool) {
    let site = Site::start().await;
    let item = |name: &str| json!({ "title": name, "url": format!("https://{name}.example/"), "description": "d" });
    let answer = json!({ "web": { "results": [
        item("a"), { "title": "bad", "url": "javascript:x" }, item("b"), item("c"),
    ] } });
    site.page("/api/res/v1/web/search", 200, "content-type: application/json", answer.to_string());
    let world = brave(db, &site, &[]).await;
    let input = json!({ "query": "rust & tokio?", "count": 3 });
    let ended = world.execute(world.call("web_search", input)).await.unwrap();
    assert_eq!(ended.names(), ["sandbox.applied"]);
    let data = ended.data();
    assert_eq!(
        data["results"],
        json!([
            { "title": "a", "url": "https://a.example/", "snippet": "d" },
            { "title": "b", "url": "https://b.example/", "snippet": "d" },
        ])
    );
    assert!(data["notice"].as_str().unwrap().starts_with("This comes from outside"));
    let heard = site.heard().concat();
    let asked = "GET /api/res/v1/web/search?q=rust+%26+tokio%3F&count=3&text_decorations=false ";
    assert!(heard.starts_with(asked), "{heard}");
    assert!(heard.contains(&format!("x-subscription-token: {KEY}\r\n")), "{heard}");
    for input in [json!({ "query": "" }), json!({ "query": "x", "count": 21 }), json!({})] {
        let ended = world.execute(world.call("web_search", input)).await.unwrap();
        assert_eq!(ended.error().0, "schema");
    }
}

#[sqlx::test(migrations = false)]
async fn searxng_is_asked_in_its_own_way(db: PgPool) {
    let site = Site::start().await;
    let answer = json!({ "query": "x", "results": [
        { "title": "a", "url": "https://a.example/", "content": "one", "engine": "e" },
        { "title": "b", "url": "https://b.example/", "content": null },
    ] });
    site.page("/search", 200, "content-type: application/json", answer.to_string());
    let world = searxng(db, &site).await;
    let ended = world.execute(world.call("web_search", json!({ "query": "x" }))).await.unwrap();
    assert_eq!(
        ended.data()["results"],
        json!([
            { "title": "a", "url": "https://a.example/", "snippet": "one" },
            { "title": "b", "url": "https://b.example/", "snippet": "" },
        ])
    );
    assert!(site.heard()[0].starts_with("GET /search?q=x&format=json "), "{:?}", site.heard());
}

#[sqlx::test(migrations = false)]
async fn what_goes_wrong_at_the_provider_is_told_without_the_key(db: PgPool) {
    let site = Site::start().await;
    let world = brave(db, &site, &[]).await;
    let path = "/api/res/v1/web/search";
    let huge = format!("{{\"x\": \"{}\"}}", "y".repeat(3 << 20));
    for (status, headers, body, expected) in [
        (401, "", "bad key", "the search provider refuses our key"),
        (403, "", "", "the search provider refuses our key"),
        (429, "", "", "the search provider has had enough of us"),
        (500, "", KEY, "the search provider answers with status 500"),
        (
            302,
            "location: http://169.254.169.254/",
            "",
            "the search provider answers with status 302",
        ),
        (200, "", "<html>", "the search provider's answer cannot be understood: expected value"),
        (
            200,
            "",
            "{\"web\": {\"results\": [{}]}}",
            "the search provider's answer cannot be understood: missing field",
        ),
        (
            200,
            "",
            huge.as_str(),
            "the search provider's answer cannot be understood: it is too large",
        ),
    ] {
        site.page(path, status, headers, body);
        let ended = world.execute(world.call("web_search", json!({ "query": "x" }))).await.unwrap();
        let (kind, text) = ended.error();
        assert!(kind == "failed" && text.starts_with(expected), "{kind}: {text}");
        assert!(!format!("{ended:?}").contains(KEY));
    }
    site.page(path, 200, "", "{\"type\": \"search\"}");
    let ended = world.execute(world.call("web_search", json!({ "query": "x" }))).await.unwrap();
    assert_eq!(ended.data()["results"], json!([]));
}

#[sqlx::test(migrations = false)]
async fn a_tenant_searches_only_so_often(db: PgPool) {
    let site = Site::start().await;
    site.page("/api/res/v1/web/search", 200, "", "{}");
    let mut world = brave(db, &site, &["--search-per-minute", "2"]).await;
    let search = |world: &World| world.call("web_search", json!({ "query": "x" }));
    for _ in 0..2 {
        world.execute(search(&world)).await.unwrap().data();
    }
    let ended = world.execute(search(&world)).await.unwrap();
    assert!(ended.error().1.starts_with("no more than 2 searches a minute"), "{ended:?}");
    assert_eq!(site.heard().len(), 2);
    world.caller.tenant = "other".parse().unwrap();
    world.execute(search(&world)).await.unwrap().data();
}
