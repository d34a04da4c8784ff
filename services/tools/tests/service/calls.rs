use expect_test::expect;
use proto::{
    event::v1::PermissionEvaluated,
    tools::v1::{Call, ListToolsRequest, Tool, permissions::Mode, rule::Action},
};
use serde_json::{Value, json};
use sqlx::PgPool;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::world::{World, assert_code, explain, rule};

#[sqlx::test(migrations = false)]
async fn tools_are_listed_with_their_schemas(db: PgPool) {
    let world = World::start(db).await;
    let request = world.peer.request(&world.caller, ListToolsRequest::default());
    let response = world.client.clone().list_tools(request).await.unwrap().into_inner();
    let mut lines = String::new();
    for tool in &response.tools {
        let Tool { name, host, read_only, destructive, .. } = tool;
        lines += &format!("{name} of {host}: read-only {read_only}, destructive {destructive}\n");
    }
    expect![[r#"
        bash of tools: read-only false, destructive true
        cancel_wakeup of session: read-only false, destructive false
        edit of tools: read-only false, destructive false
        glob of tools: read-only true, destructive false
        grep of tools: read-only true, destructive false
        memory_delete of session: read-only false, destructive false
        memory_list of session: read-only true, destructive false
        memory_read of session: read-only true, destructive false
        memory_write of session: read-only false, destructive false
        question of session: read-only false, destructive false
        read of tools: read-only true, destructive false
        request_wakeup of session: read-only false, destructive false
        skill of session: read-only true, destructive false
        task of session: read-only false, destructive false
        todo of session: read-only true, destructive false
        tool_search of session: read-only true, destructive false
        web_fetch of tools: read-only true, destructive false
        write of tools: read-only false, destructive false
    "#]]
    .assert_eq(&lines);
    assert!(response.next_page_token.is_empty());
    let schema: Value = serde_json::from_str(&response.tools[0].input_schema_json).unwrap();
    assert_eq!(schema["required"], json!(["command"]));

    for (wrong, field) in [
        (ListToolsRequest { page_size: 501, ..Default::default() }, "REASON_INVALID_FIELD"),
        (
            ListToolsRequest { page_token: "zsh".into(), ..Default::default() },
            "REASON_INVALID_CURSOR",
        ),
    ] {
        let request = world.peer.request(&world.caller, wrong);
        let status = world.client.clone().list_tools(request).await.unwrap_err();
        assert!(explain(&status).contains(field), "{status:?}");
    }
}

#[sqlx::test(migrations = false)]
async fn evaluating_decides_and_runs_nothing(db: PgPool) {
    let world = World::start(db).await;
    let call = world.bash("touch ran; rm ran");
    for _ in 0..2 {
        let response = world.evaluate(call.clone()).await.unwrap();
        assert_eq!(response.input_json, call.input_json);
        assert_eq!(response.facts.len(), 1);
        let evaluation = response.evaluation.unwrap();
        assert_eq!((evaluation.decision.as_str(), evaluation.destructive), ("allow", true));
        assert_eq!(evaluation.destructive_reason, r#""rm ran" removes files"#);
    }
    assert!(!world.workspaces.join("acme").exists());
    let response = world.evaluate(world.call("fly", json!({}))).await.unwrap();
    let evaluation = response.evaluation.unwrap();
    expect!["deny host_policy: there is no tool named \"fly\""]
        .assert_eq(&format!("{} {}: {}", evaluation.decision, evaluation.cause, evaluation.reason));
}

#[sqlx::test(migrations = false)]
async fn the_rule_that_decided_is_on_record(db: PgPool) {
    let world = World::start(db).await;
    let mut lines = String::new();
    let mut record = async |command: &str, action, headless| {
        let mut call = Call { headless, ..world.bash(command) };
        call.permissions.get_or_insert_default().rules.push(rule("bash", "rm *", action));
        let evaluation = world.evaluate(call).await.unwrap().evaluation.unwrap();
        let PermissionEvaluated { decision, cause, compared, mode, reason, .. } = evaluation;
        let rule = evaluation.rule.unwrap();
        lines += &format!("{decision} {cause} {compared:?} {mode}: {reason}\n    ");
        lines += &format!("{} {} {} {}\n", rule.source, rule.action, rule.permission, rule.pattern);
    };
    record("ls && rm x", Action::Ask, false).await;
    record("ls && rm x", Action::Ask, true).await;
    record("ls && rm x", Action::Deny, false).await;
    record("ls && ls", Action::Deny, false).await;
    expect![[r#"
        ask rule "ls && rm x" default: the rule bash "rm *" of the manifest asks a person about "rm x"
            manifest ask bash rm *
        deny mode "rm x" default: the rule bash "rm *" of the manifest asks a person about "rm x", and nobody can be asked
            manifest ask bash rm *
        deny rule "rm x" default: the rule bash "rm *" of the manifest denies "rm x"
            manifest deny bash rm *
        allow rule "ls" default: the rule bash "*" of the manifest allows "ls"
            manifest allow bash *
    "#]].assert_eq(&lines);
}

#[sqlx::test(migrations = false)]
async fn an_approval_settles_what_was_asked_and_nothing_else(db: PgPool) {
    let world = World::start(db).await;
    let with = |action| {
        let mut call = world.bash("echo ran >> log");
        call.permissions.get_or_insert_default().rules.push(rule("bash", "echo *", action));
        call
    };
    let asked = with(Action::Ask);
    assert_eq!(world.execute_approved(asked.clone()).await.unwrap().data()["exit_code"], 0);
    assert_eq!(world.read(&asked, "log"), "ran\n");

    let denied = with(Action::Deny);
    let ended = world.execute_approved(denied.clone()).await.unwrap();
    let reason = r#"the rule bash "echo *" of the manifest denies "echo ran""#;
    assert_eq!(ended.error(), ("denied", reason));
    let nobody = Call { headless: true, ..with(Action::Ask) };
    let ended = world.execute_approved(nobody.clone()).await.unwrap();
    assert_eq!(ended.error().0, "denied");
    let mut planned = with(Action::Allow);
    planned.permissions.get_or_insert_default().set_mode(Mode::Plan);
    let ended = world.execute_approved(planned.clone()).await.unwrap();
    let reason = r#"">> log" is not known to only read, and the mode is plan"#;
    assert_eq!(ended.error(), ("denied", reason));
    for call in [denied, nobody, planned] {
        assert!(world.read(&call, "log").is_empty());
    }
}

#[sqlx::test(migrations = false)]
async fn whatever_a_model_asks_for_ends_in_an_envelope(db: PgPool) {
    let world = World::start(db).await;
    let ended = world.execute(world.call("fly", json!({}))).await.unwrap();
    assert_eq!(ended.error(), ("unknown_tool", "there is no tool named \"fly\""));
    assert_eq!(ended.names(), ["permission.evaluated"]);

    let ended = world.execute(world.call("bash", json!({ "cmd": "ls" }))).await.unwrap();
    assert_eq!(ended.error().0, "schema");

    let mut call = world.bash("ls");
    call.input_json = "{".into();
    assert_eq!(world.execute(call).await.unwrap().error().0, "schema");

    let mut call = world.bash("ls");
    call.permissions.get_or_insert_default().tools = vec!["read".into()];
    let ended = world.execute(call).await.unwrap();
    assert_eq!(ended.error().0, "denied");
    assert_eq!(ended.names(), ["permission.evaluated"]);

    let mut call = world.bash("ls; rm x");
    call.permissions = None;
    let ended = world.execute(call).await.unwrap();
    expect![[r#""rm x" removes files, and no rule decides about it, and nobody has approved yet"#]]
        .assert_eq(ended.error().1);
    assert_eq!((ended.error().0, ended.names()), ("denied", vec!["permission.evaluated"]));

    let call = world.call("question", json!({ "questions": [{ "prompt": "Why?" }] }));
    let ended = world.execute(call).await.unwrap();
    assert_eq!(ended.error(), ("failed", "question runs in the session service and not here"));

    let ended = world.execute(world.bash("echo a\0b")).await.unwrap();
    assert_eq!(ended.error().0, "failed");
}

#[sqlx::test(migrations = false)]
async fn a_malformed_call_is_refused_with_the_field_named(db: PgPool) {
    let world = World::start(db).await;
    let mut problems = String::new();
    let mut refuse = async |change: fn(&mut proto::tools::v1::Call)| {
        let mut call = world.bash("touch ran");
        change(&mut call);
        let status = world.begin(call).await.unwrap_err();
        assert_code(&status, Code::InvalidArgument);
        problems += &format!("{}\n", explain(&status));
    };
    refuse(|call| call.session_id = "ses_1".into()).await;
    refuse(|call| call.tool_call_id = "../../etc".into()).await;
    refuse(|call| call.workspace_id = "ws_../../../../etc/cron.d/aaa".into()).await;
    refuse(|call| call.epoch = -1).await;
    refuse(|call| call.turn_id = "t".repeat(101)).await;
    refuse(|call| call.input_json = " ".repeat(1024 * 1024 + 1)).await;
    refuse(|call| {
        let rules = &mut call.permissions.get_or_insert_default().rules;
        rules.resize(1_001, rule("bash", "*", Action::Allow));
    })
    .await;
    refuse(|call| call.permissions.get_or_insert_default().paths = vec!["a".into(); 201]).await;
    expect![[r#"
        InvalidArgument REASON_INVALID_FIELD: invalid call.session_id: expected ses_ and 26 characters
        InvalidArgument REASON_INVALID_FIELD: invalid call.tool_call_id: expected call_ and 26 characters
        InvalidArgument REASON_INVALID_FIELD: invalid call.workspace_id: expected ws_ and 26 characters
        InvalidArgument REASON_INVALID_FIELD: invalid call.epoch: is negative
        InvalidArgument REASON_INVALID_FIELD: invalid call.turn_id: is longer than 100 characters
        InvalidArgument REASON_INVALID_FIELD: invalid call.input_json: is larger than 1 MiB
        InvalidArgument REASON_INVALID_FIELD: invalid call.permissions.rules: are more than 1,000
        InvalidArgument REASON_INVALID_FIELD: invalid call.permissions.paths: are more than 200
    "#]].assert_eq(&problems);
    assert!(!world.workspaces.join("acme").exists());
}

#[sqlx::test(migrations = false)]
async fn a_busy_server_says_when_to_come_back(db: PgPool) {
    let world = World::with(db, &["--max-executions", "1"]).await;
    let call = world.bash("echo started; sleep 60");
    let mut first = world.begin(call).await.unwrap();
    first.message().await.unwrap();
    let second = world.bash("true");
    let status = world.begin(second.clone()).await.unwrap_err();
    expect!["ResourceExhausted REASON_OVERLOADED: this server does as much at once as it may"]
        .assert_eq(&explain(&status));
    assert!(status.get_details_retry_info().is_some());

    // A call that was not started can be made again.
    drop(first);
    let retried = async {
        loop {
            match world.execute(second.clone()).await {
                Err(status) if status.code() == Code::ResourceExhausted => {
                    tokio::task::yield_now().await
                }
                ended => break ended,
            }
        }
    };
    assert_eq!(retried.await.unwrap().data()["exit_code"], 0);
}
