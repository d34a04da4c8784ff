use expect_test::expect;
use proto::{
    event::v1::{Payload, SandboxViolation},
    tools::v1::{Call, Permissions, Rule, rule::Action},
};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::{
    site::Site,
    world::{Ended, World, rule},
};

/// What the tests' own servers are reached by.
pub const LOCAL: &[&str] = &["--egress-allow-private", "127.0.0.1,::1"];

fn fetch(world: &World, url: &str, hosts: &[&str], rules: Vec<Rule>) -> Call {
    Call {
        permissions: Some(Permissions {
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            rules,
            ..Permissions::default()
        }),
        ..world.call("web_fetch", json!({ "url": url }))
    }
}

async fn fetched(world: &World, url: &str) -> Ended {
    world.execute(fetch(world, url, &["localhost"], vec![])).await.unwrap()
}

pub fn violations(ended: &Ended) -> Vec<SandboxViolation> {
    let violation = |fact: &proto::event::v1::Event| match &fact.payload {
        Some(Payload::SandboxViolation(violation)) => Some(violation.clone()),
        _ => None,
    };
    ended.facts.iter().filter_map(violation).collect()
}

#[sqlx::test(migrations = false)]
async fn a_page_is_read_as_text_that_comes_from_outside(db: PgPool) {
    let world = World::with(db, LOCAL).await;
    let site = Site::start().await;
    site.html("/", "<title>Hello</title><h1>Big</h1><p>Some <a href='/b'>link</a>.");
    let ended = fetched(&world, &site.url("/")).await;
    assert_eq!(ended.names(), ["sandbox.applied"]);
    let Some(Payload::SandboxApplied(applied)) = &ended.facts[0].payload else { panic!() };
    assert_eq!(
        (applied.mode.as_str(), &applied.network[..]),
        ("strict", &["localhost".into()][..])
    );
    let data = ended.data();
    assert_eq!(
        (&data["url"], &data["status"], &data["title"]),
        (&json!(site.url("/")), &json!(200), &json!("Hello"))
    );
    assert!(data["notice"].as_str().unwrap().starts_with("This comes from outside"));
    expect![[r#"
        # Big

        Some [link][1].

        [1]: /b
    "#]]
    .assert_eq(data["content"].as_str().unwrap());

    let metadata = ended.outcome.metadata.unwrap();
    let [reached] = &metadata.reached[..] else { panic!("{metadata:?}") };
    assert_eq!((reached.host.as_str(), reached.port), ("localhost", i32::from(site.port)));
    assert_eq!((reached.address.as_str(), reached.connections), ("127.0.0.1", 1));
    let heard = site.heard().concat();
    assert!(heard.contains("user-agent: windlass/"), "{heard}");
    assert!(!heard.to_lowercase().contains("cookie") && !heard.contains("referer"), "{heard}");
}

#[sqlx::test(migrations = false)]
async fn a_host_is_reached_only_if_granted_and_only_at_an_address_that_may_be(db: PgPool) {
    let world = World::start(db.clone()).await;
    let site = Site::start().await;
    site.html("/", "secret");
    let ended =
        world.execute(fetch(&world, &site.url("/"), &["example.com"], vec![])).await.unwrap();
    assert_eq!(ended.error(), ("denied", "this agent may not reach \"localhost\""));

    for (url, hosts, reason) in [
        (site.url("/"), "localhost", "localhost may not be reached: "),
        (format!("http://127.1:{}/", site.port), "127.0.0.1", "127.0.0.1 may not be reached: "),
        (
            "http://169.254.169.254/latest/meta-data/".to_owned(),
            "169.254.169.254",
            "169.254.169.254 may not be reached: 169.254.169.254 is link-local",
        ),
        (format!("ftp://localhost:{}/", site.port), "localhost", "ftp://localhost is no `http`"),
        (format!("http://a:b@localhost:{}/", site.port), "localhost", "http://localhost is no"),
    ] {
        let ended = world.execute(fetch(&world, &url, &[hosts], vec![])).await.unwrap();
        let (kind, text) = ended.error();
        assert!(kind == "sandbox" && text.starts_with(reason), "{kind}: {text}");
        let [violation] = &violations(&ended)[..] else { panic!("{:?}", ended.facts) };
        assert_eq!((violation.layer.as_str(), violation.detail.as_str()), ("egress", text));
        assert!(ended.outcome.metadata.unwrap().reached.is_empty());
    }
    assert!(site.heard().is_empty());

    // With the operator's consent, it is reached.
    let world = World::with(db, LOCAL).await;
    assert_eq!(fetched(&world, &site.url("/")).await.data()["content"], "secret\n");
}

#[sqlx::test(migrations = false)]
async fn a_page_sends_only_to_where_the_agent_may_go(db: PgPool) {
    let world = World::with(db, LOCAL).await;
    let (site, other) = (Site::start().await, Site::start().await);
    site.html("/end", "the end");
    other.html("/", "elsewhere");
    let elsewhere = format!("http://127.0.0.1:{}/", other.port);
    site.redirect("/relative", "/end");
    site.redirect("/elsewhere", &elsewhere);
    site.redirect("/metadata", "http://169.254.169.254/");
    site.redirect("/file", "file:///etc/passwd");
    site.redirect("/loop", "/loop");
    site.redirect("/nonsense", "http://[");

    let ended = fetched(&world, &site.url("/relative")).await;
    assert_eq!(ended.data()["url"], site.url("/end"));
    assert_eq!(ended.outcome.metadata.unwrap().reached[0].connections, 2);

    for (path, to) in [
        ("/elsewhere", elsewhere.as_str()),
        ("/metadata", "http://169.254.169.254/"),
        ("/file", "file:///etc/passwd"),
        ("/nonsense", "http://["),
    ] {
        let data = fetched(&world, &site.url(path)).await.data();
        assert_eq!((&data["redirect"], &data["status"]), (&json!(to), &json!(302)), "{path}");
        assert_eq!(data["content"], Value::Null);
    }
    assert!(other.heard().is_empty());
    let ended = fetched(&world, &site.url("/loop")).await;
    assert_eq!(ended.error(), ("failed", "sent elsewhere more than 5 times"));

    // A host that was granted is followed to, unless a rule has something against it.
    let both = ["localhost", "127.0.0.1"];
    let denied = vec![rule("web_fetch", "127.0.0.1", Action::Deny)];
    let asked = vec![rule("web_*", "127.*", Action::Ask)];
    for (rules, followed) in [(vec![], true), (denied, false), (asked, false)] {
        let call = fetch(&world, &site.url("/elsewhere"), &both, rules);
        let data = world.execute(call).await.unwrap().data();
        assert_eq!(data["content"] == "elsewhere\n", followed, "{data}");
    }
    let metadata = ["localhost", "169.254.169.254"];
    let call = fetch(&world, &site.url("/metadata"), &metadata, vec![]);
    let ended = world.execute(call).await.unwrap();
    assert_eq!(ended.error().0, "sandbox");
    assert_eq!(violations(&ended).len(), 1);
}

#[sqlx::test(migrations = false)]
async fn what_is_no_text_is_refused_and_the_rest_is_read_as_it_is(db: PgPool) {
    let world = World::with(db, LOCAL).await;
    let site = Site::start().await;
    site.page("/pdf", 200, "content-type: application/pdf", "%PDF-1.7");
    site.page("/zip", 200, "content-type: text/plain\ncontent-encoding: gzip", "\x1f");
    site.page("/json", 200, "content-type: application/json", "{\"a\": [1, 2]}");
    site.page("/latin", 200, "content-type: text/plain; charset=iso-8859-1", b"\xe4\xf6");
    site.page("/none", 200, "", "no type");
    site.page("/missing", 404, "content-type: text/html", "<p>not here");
    site.page("/deep", 200, "content-type: text/html", "<div>".repeat(50_000));
    let port = site.port;
    for (path, expected) in [
        ("/json", Ok("{\"a\": [1, 2]}".to_owned())),
        ("/latin", Ok("äö".to_owned())),
        ("/none", Ok("no type".to_owned())),
        ("/missing", Ok("not here\n".to_owned())),
        (
            "/pdf",
            Err("web_fetch reads text and this is application/pdf; if you need the file, \
                 download it with a command"
                .to_owned()),
        ),
        (
            "/zip",
            Err(format!(
                "localhost:{port} answers in the encoding \"gzip\", which was not asked for"
            )),
        ),
        (
            "/deep",
            Err("the page is nested too deeply, or has too many elements, to be read".to_owned()),
        ),
    ] {
        let ended = fetched(&world, &site.url(path)).await;
        match expected {
            Ok(text) => assert_eq!(ended.data()["content"], text, "{path}"),
            Err(text) => assert_eq!(ended.error(), ("failed", text.as_str()), "{path}"),
        }
    }
    assert_eq!(fetched(&world, &site.url("/missing")).await.data()["status"], 404);
    let nobody = fetched(&world, "http://localhost:1/").await;
    assert!(
        nobody.error().1.starts_with("localhost:1 cannot be reached: "),
        "{:?}",
        nobody.error()
    );
}

#[sqlx::test(migrations = false)]
async fn a_long_page_is_kept_beside_the_log_and_a_longer_one_is_cut(db: PgPool) {
    let world = World::with(db, LOCAL).await;
    let site = Site::start().await;
    site.page("/long", 200, "content-type: text/plain", "x".repeat(100_000));
    site.page("/longer", 200, "content-type: text/plain", "x".repeat(3 << 20));
    let ended = fetched(&world, &site.url("/long")).await;
    assert_eq!(ended.names(), ["sandbox.applied", "output.spilled"]);
    assert!(ended.data()["content"].as_str().unwrap().contains("[67232 bytes omitted]"));
    let metadata = ended.outcome.metadata.clone().unwrap();
    assert!(metadata.truncated && !metadata.output_ref.is_empty());
    assert_eq!((metadata.output_bytes, ended.data()["cut"].clone()), (100_000, Value::Null));

    let ended = fetched(&world, &site.url("/longer")).await;
    assert_eq!(ended.data()["cut"], "only the first 2097152 bytes of the page were read");
    assert_eq!(ended.outcome.metadata.unwrap().output_bytes, 2 << 20);
}

#[sqlx::test(migrations = false)]
async fn a_host_that_says_nothing_is_given_up(db: PgPool) {
    let world = World::with(db, LOCAL).await;
    let site = Site::start().await;
    let call = fetch(&world, &site.url("/silent"), &["localhost"], vec![]);
    let ended = world.execute_within(call, 300).await.unwrap();
    assert_eq!(ended.error(), ("timeout", "not fetched after 300 ms"));
}
