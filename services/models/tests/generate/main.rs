//! The service from outside: over gRPC, with a database for its callers.

#![allow(clippy::unwrap_used, reason = "a test that is surprised fails")]

mod catalogues;
mod continuing;
mod faults;
mod limits;
mod providers;
mod world;

use expect_test::expect;
use proto::models::v1::{self as pb, content::Kind, message::Role};
use sqlx::PgPool;

use world::{World, explain, script};

#[sqlx::test(migrations = false)]
async fn facts_come_first_and_the_bill_last(db: PgPool) {
    let world = World::start(db).await;
    let answer = world.play("think Hm.\nsay Hello you").await;
    expect![[r#"
        task.profile.resolved {"profile":"chat","tokens":8,"tier":"balanced"}
        routing.candidates.resolved {"candidates":[{"provider":"scripted","model":"demo","score":1.0}],"excluded":[{"provider":"scripted","model":"small","reason":"not_requested","detail":"another model was asked for"}]}
        routing.single_candidate {"provider":"scripted","model":"demo","reason":"scripted/demo was asked for"}
        routing.decided {"provider":"scripted","model":"demo","reason":"scripted/demo was asked for","candidates":1}
        cost.estimated {"worstCaseMicros":"256010","currency":"USD"}
        reasoning "Hm."
        text "Hello you"
        cost.recorded {"usage":{"input":8,"output":3,"reasoning":1},"costMicros":"20","currency":"USD","basis":"estimated"}
        finished stop scripted/demo 20 {"input":8,"output":3,"reasoning":1}
    "#]].assert_eq(&answer);
}

#[sqlx::test(migrations = false)]
async fn tool_calls_are_streamed_and_parallel(db: PgPool) {
    let world = World::start(db).await;
    let script = "call read {\"path\": \"a b\"}\ncall list\nusage input=10 output=5 cache_read=100";
    expect![[r#"
        task.profile.resolved {"profile":"chat","tokens":21,"tier":"balanced"}
        routing.candidates.resolved {"candidates":[{"provider":"scripted","model":"demo","score":1.0}],"excluded":[{"provider":"scripted","model":"small","reason":"not_requested","detail":"another model was asked for"}]}
        routing.single_candidate {"provider":"scripted","model":"demo","reason":"scripted/demo was asked for"}
        routing.decided {"provider":"scripted","model":"demo","reason":"scripted/demo was asked for","candidates":1}
        cost.estimated {"worstCaseMicros":"256027","currency":"USD"}
        call 0 read (scripted_0_0)
        call 0 + {"path": "a b"}
        call 0 = {"path": "a b"}
        call 1 list (scripted_0_1)
        call 1 + {}
        call 1 = {}
        cost.recorded {"usage":{"input":10,"output":5,"cacheRead":100},"costMicros":"40","currency":"USD","basis":"exact"}
        finished tool_calls scripted/demo 40 {"input":10,"output":5,"cacheRead":100}
    "#]].assert_eq(&world.play(script).await);
}

#[sqlx::test(migrations = false)]
async fn a_profile_is_routed_and_says_why(db: PgPool) {
    let world = World::start(db).await;
    let target = pb::Target { profile: "title".to_owned(), ..pb::Target::default() };
    let request = pb::GenerateRequest { target: Some(target), ..script("say Lunch") };
    expect![[r#"
        task.profile.resolved {"profile":"title","tokens":5,"tier":"cheap"}
        routing.candidates.resolved {"candidates":[{"provider":"scripted","model":"small","score":1.0},{"provider":"scripted","model":"demo","score":0.5}]}
        routing.decided {"provider":"scripted","model":"small","reason":"best for title: a cheap model, score 1.0","candidates":2,"fallbacks":["scripted/demo"]}
        cost.estimated {"worstCaseMicros":"801","currency":"USD"}
        cost.recorded {"usage":{"input":5},"costMicros":"1","currency":"USD","basis":"estimated"}
        finished stop scripted/small 1 {"input":5}
    "#]].assert_eq(&world.generate(request).await);
}

#[sqlx::test(migrations = false)]
async fn what_cannot_be_routed_is_on_record_and_refused(db: PgPool) {
    let world = World::start(db).await;
    let target = pb::Target { model: "scripted/small".to_owned(), ..pb::Target::default() };
    let long = format!("say hi\n#{}", "x".repeat(40_000));
    let request = pb::GenerateRequest { target: Some(target), ..script(&long) };
    expect![[r#"
        task.profile.resolved {"profile":"chat","tokens":10005,"tier":"balanced"}
        routing.candidates.resolved {"excluded":[{"provider":"scripted","model":"demo","reason":"not_requested","detail":"another model was asked for"},{"provider":"scripted","model":"small","reason":"context","detail":"10005 tokens do not fit into 8000"}]}
        routing.not_possible {"reason":"every model of the catalogue is excluded","excluded":[{"provider":"scripted","model":"demo","reason":"not_requested","detail":"another model was asked for"},{"provider":"scripted","model":"small","reason":"context","detail":"10005 tokens do not fit into 8000"}]}
        error FailedPrecondition REASON_CONTEXT_OVERFLOW: the prompt has about 10005 tokens and scripted/small reads at most 8000 [context: 8000] [model: scripted/small] [tokens: 10005]
    "#]].assert_eq(&world.generate(request).await);
}

#[sqlx::test(migrations = false)]
async fn bad_input_names_its_field(db: PgPool) {
    let world = World::start(db).await;
    let mut errors = String::new();
    let bad: [fn(&mut pb::GenerateRequest); 14] = [
        |request| request.prompt = None,
        |request| prompt(request).messages.clear(),
        |request| prompt(request).messages[0].role = 0,
        |request| prompt(request).messages[0].content.push(pb::Content { kind: None }),
        |request| prompt(request).messages[0].role = Role::Tool.into(),
        |request| {
            let image = pb::Image { media_type: "image/bmp".to_owned(), data: vec![1] };
            prompt(request).messages[0].content[0].kind = Some(Kind::Image(image));
        },
        |request| prompt(request).system = "x".repeat(1024 * 1024 + 1),
        |request| prompt(request).tools.push(pb::Tool::default()),
        |request| {
            let tool = pb::Tool { name: "read".to_owned(), ..pb::Tool::default() };
            prompt(request).tools.push(tool);
        },
        |request| {
            request.target =
                Some(pb::Target { capabilities: vec!["magic".to_owned()], ..pb::Target::default() })
        },
        |request| {
            request.options =
                Some(pb::Options { temperature: Some(f64::NAN), ..pb::Options::default() })
        },
        |request| {
            request.options =
                Some(pb::Options { reasoning_effort: "max".to_owned(), ..pb::Options::default() })
        },
        |request| request.attempt = -1,
        |request| request.session_id = "x".repeat(129),
    ];
    for change in bad {
        let mut request = script("say hi");
        change(&mut request);
        errors += &world.generate(request).await;
    }
    expect![[r#"
        error InvalidArgument REASON_INVALID_FIELD: invalid prompt: is missing [field: prompt]
        error InvalidArgument REASON_INVALID_FIELD: invalid prompt.messages: must be 1 to 100,000 messages [field: prompt.messages]
        error InvalidArgument REASON_INVALID_FIELD: invalid prompt.messages[0].role: is missing [field: prompt.messages[0].role]
        error InvalidArgument REASON_INVALID_FIELD: invalid prompt.messages[0].content[1]: is empty [field: prompt.messages[0].content[1]]
        error InvalidArgument REASON_INVALID_FIELD: invalid prompt.messages[0].content[0]: must be a tool result in a tool message [field: prompt.messages[0].content[0]]
        error InvalidArgument REASON_INVALID_FIELD: invalid prompt.messages[0].content[0]: must be image/png, image/jpeg, image/webp or image/gif [field: prompt.messages[0].content[0]]
        error InvalidArgument REASON_INVALID_FIELD: invalid prompt.system: must be at most 1 MiB [field: prompt.system]
        error InvalidArgument REASON_INVALID_FIELD: invalid prompt.tools[0].name: must be 1 to 128 bytes [field: prompt.tools[0].name]
        error InvalidArgument REASON_INVALID_FIELD: invalid prompt.tools[0].input_schema_json: must be a JSON object [field: prompt.tools[0].input_schema_json]
        error InvalidArgument REASON_INVALID_FIELD: invalid target.capabilities[0]: expected tools, images, reasoning or structured_output [field: target.capabilities[0]]
        error InvalidArgument REASON_INVALID_FIELD: invalid options.temperature: must be from 0 to 2 [field: options.temperature]
        error InvalidArgument REASON_INVALID_FIELD: invalid options.reasoning_effort: must be none, low, medium or high [field: options.reasoning_effort]
        error InvalidArgument REASON_INVALID_FIELD: invalid attempt: must not be negative [field: attempt]
        error InvalidArgument REASON_INVALID_FIELD: invalid session_id: must be at most 128 printable characters [field: session_id]
    "#]].assert_eq(&errors);
}

fn prompt(request: &mut pb::GenerateRequest) -> &mut pb::Prompt {
    request.prompt.as_mut().unwrap()
}

#[sqlx::test(migrations = false)]
async fn what_does_not_exist_is_not_found(db: PgPool) {
    let world = World::start(db).await;
    let target = pb::Target { model: "scripted/huge".to_owned(), ..pb::Target::default() };
    let request = pb::GenerateRequest { target: Some(target), ..script("say hi") };
    expect![[r#"
        error NotFound REASON_MODEL_NOT_FOUND: model scripted/huge not found [model: scripted/huge]
    "#]]
    .assert_eq(&world.generate(request).await);
    let request = pb::GenerateRequest { budget_id: "bud_1".to_owned(), ..script("say hi") };
    expect![[r#"
        error NotFound REASON_BUDGET_NOT_FOUND: budget bud_1 not found [budget_id: bud_1]
    "#]]
    .assert_eq(&world.generate(request).await);
}

#[sqlx::test(migrations = false)]
async fn models_are_listed_page_by_page(db: PgPool) {
    let mut world = World::start(db).await;
    let mut names = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = pb::ListModelsRequest { page_size: 1, page_token };
        let request = world.peer.request(&world.caller, request);
        let page = world.client.list_models(request).await.unwrap().into_inner();
        names.extend(page.models.into_iter().map(|model| model.model));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["scripted/demo", "scripted/small"]);

    let request = pb::ListModelsRequest { page_size: 1, page_token: "nonsense".to_owned() };
    let request = world.peer.request(&world.caller, request);
    let error = world.client.list_models(request).await.unwrap_err();
    expect![
        "InvalidArgument REASON_INVALID_CURSOR: page_token is not one of ours [field: page_token]"
    ]
    .assert_eq(&explain(&error));
}

#[sqlx::test(migrations = false)]
async fn a_prompt_is_measured_against_its_model(db: PgPool) {
    let mut world = World::start(db).await;
    let prompt = script(&"x".repeat(4_000)).prompt;
    let request = pb::CountTokensRequest { prompt, model: "scripted".to_owned() };
    let request = world.peer.request(&world.caller, request);
    let count = world.client.count_tokens(request).await.unwrap().into_inner();
    expect![[r#"
        CountTokensResponse {
            tokens: 1003,
            usable_tokens: 64000,
            basis: "estimated",
        }
    "#]]
    .assert_debug_eq(&count);
}

#[sqlx::test(migrations = false)]
async fn a_route_is_explained_without_being_taken(db: PgPool) {
    let mut world = World::start(db).await;
    let target = pb::Target { profile: "code".to_owned(), ..pb::Target::default() };
    let request = pb::ExplainRouteRequest { target: Some(target), tokens: 10_000 };
    let request = world.peer.request(&world.caller, request);
    let explained = world.client.explain_route(request).await.unwrap().into_inner();
    let facts = explained.facts.iter().map(world::fact).collect::<String>();
    expect![[r#"
        task.profile.resolved {"profile":"code","tokens":10000,"tier":"strong"}
        routing.candidates.resolved {"candidates":[{"provider":"scripted","model":"demo","score":0.5}],"excluded":[{"provider":"scripted","model":"small","reason":"context","detail":"10000 tokens do not fit into 8000"}]}
        routing.single_candidate {"provider":"scripted","model":"demo","reason":"best for code: a balanced model, score 0.5"}
        routing.decided {"provider":"scripted","model":"demo","reason":"best for code: a balanced model, score 0.5","candidates":1}
    "#]].assert_eq(&facts);
}

/// People's keys do not reach the models themselves; only our own services do.
#[sqlx::test(migrations = false)]
async fn a_key_may_list_models_and_not_call_them(db: PgPool) {
    let mut world = World::start(db).await;
    let key = world.key().await;
    let listed =
        world.client.list_models(world.as_key(&key, pb::ListModelsRequest::default())).await;
    assert_eq!(listed.unwrap().into_inner().models.len(), 2);
    let refused = world.client.generate(world.as_key(&key, script("say hi"))).await.unwrap_err();
    expect!["PermissionDenied REASON_SCOPE_MISSING: the credential does not hold the scope internal [scope: internal]"].assert_eq(&explain(&refused));
}
