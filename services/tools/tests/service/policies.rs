//! Rules and hooks as they are put, listed and deleted, and rules as they decide.

use expect_test::expect;
use proto::tools::v1::{
    Call, DeleteHookRequest, DeleteRuleRequest, Hook, ListHooksRequest, ListRulesRequest,
    Permissions, PutHookRequest, PutRuleRequest, Rule,
    hook::Target,
    policy_service_client::PolicyServiceClient,
    rule::{Action, Source},
};
use sqlx::PgPool;
use tonic::{Status, transport::Channel};

use crate::world::{World, explain, rule};

impl World {
    pub fn policies(&self) -> PolicyServiceClient<Channel> {
        PolicyServiceClient::new(self.peer.channel())
    }

    pub async fn put_rule(&self, project: &str, rule: Rule) -> Result<Rule, Status> {
        let request = PutRuleRequest { project: project.into(), rule: Some(rule) };
        let request = self.peer.request(&self.caller, request);
        Ok(self.policies().put_rule(request).await?.into_inner().rule.unwrap())
    }

    pub async fn put_hook(&self, project: &str, hook: Hook) -> Result<Hook, Status> {
        let request = PutHookRequest { project: project.into(), hook: Some(hook) };
        let request = self.peer.request(&self.caller, request);
        Ok(self.policies().put_hook(request).await?.into_inner().hook.unwrap())
    }

    pub async fn delete_hook(&self, project: &str, hook_id: &str) -> Result<(), Status> {
        let request = DeleteHookRequest { project: project.into(), hook_id: hook_id.into() };
        self.policies().delete_hook(self.peer.request(&self.caller, request)).await.map(|_| ())
    }

    async fn rules(&self, project: &str, page_size: i32) -> Vec<String> {
        let mut request =
            ListRulesRequest { project: project.into(), page_size, page_token: String::new() };
        let mut rules = Vec::new();
        loop {
            let page = self.peer.request(&self.caller, request.clone());
            let page = self.policies().list_rules(page).await.unwrap().into_inner();
            assert!(page_size == 0 || page.rules.len() <= page_size as usize);
            rules.extend(page.rules.iter().map(|rule| {
                format!("{} {} {}", rule.permission, rule.pattern, rule.action().as_str_name())
            }));
            if page.next_page_token.is_empty() {
                return rules;
            }
            request.page_token = page.next_page_token;
        }
    }

    /// What is decided about a command, and by what.
    async fn decided(&self, call: Call) -> String {
        let evaluation = self.evaluate(call).await.unwrap().evaluation.unwrap();
        let rule = match evaluation.rule {
            Some(rule) => format!(" by {} {} {}", rule.source, rule.permission, rule.pattern),
            None => String::new(),
        };
        format!("{} {}{rule}: {}", evaluation.decision, evaluation.cause, evaluation.reason)
    }
}

fn hook(id: &str, event: &str, target: Target) -> Hook {
    Hook { hook_id: id.into(), event: event.into(), target: Some(target), ..Hook::default() }
}

fn command(id: &str, event: &str) -> Hook {
    hook(id, event, Target::Command("true".into()))
}

#[sqlx::test(migrations = false)]
async fn a_projects_rules_are_put_listed_and_deleted(db: PgPool) {
    let world = World::start(db).await;
    for (permission, pattern, action) in [
        ("write", "secret/*", Action::Deny),
        ("bash", "git *", Action::Allow),
        ("bash", "git push*", Action::Ask),
        ("bash", "git *", Action::Ask),
    ] {
        let put = world.put_rule("p", rule(permission, pattern, action)).await.unwrap();
        assert_eq!((put.source(), put.action()), (Source::Project, action));
    }
    let all = ["bash git * ACTION_ASK", "bash git push* ACTION_ASK", "write secret/* ACTION_DENY"];
    assert_eq!(world.rules("p", 0).await, all);
    assert_eq!(world.rules("p", 1).await, all);
    assert!(world.rules("", 0).await.is_empty() && world.rules("q", 0).await.is_empty());

    let delete = async |project: &str, pattern: &str| {
        let (project, permission) = (project.to_owned(), "bash".to_owned());
        let request = DeleteRuleRequest { project, permission, pattern: pattern.into() };
        world.policies().delete_rule(world.peer.request(&world.caller, request)).await
    };
    delete("p", "git *").await.unwrap();
    assert_eq!(world.rules("p", 0).await, all[1..]);
    for (project, pattern) in [("p", "git *"), ("q", "git push*")] {
        let status = delete(project, pattern).await.unwrap_err();
        let expected = format!(
            "NotFound REASON_POLICY_NOT_FOUND: there is no \"bash {pattern}\" in the project"
        );
        assert_eq!(explain(&status), expected);
    }
}

#[sqlx::test(migrations = false)]
async fn what_is_no_policy_is_refused_by_its_field(db: PgPool) {
    let world = World::start(db).await;
    let mut lines = String::new();
    let mut note = |status: Status| {
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
        lines += &format!("{}\n", status.message());
    };
    let long = "x".repeat(1_001);
    for wrong in [
        rule("", "*", Action::Allow),
        rule(&"x".repeat(101), "*", Action::Allow),
        rule("[", "*", Action::Allow),
        rule("bash", "", Action::Allow),
        rule("bash", &long, Action::Allow),
        rule("bash", "{a", Action::Deny),
        rule("bash", "[z-a]", Action::Deny),
        rule("bash", "a\0b", Action::Deny),
        rule("bash", "*", Action::Unspecified),
        Rule { action: 9, ..rule("bash", "*", Action::Allow) },
    ] {
        note(world.put_rule("p", wrong).await.unwrap_err());
    }
    note(world.put_rule(&"p".repeat(201), rule("bash", "*", Action::Ask)).await.unwrap_err());
    let url = |url: &str| hook("h", "stop", Target::Url(url.into()));
    for wrong in [
        Hook { hook_id: "Big".into(), ..command("h", "stop") },
        command("h", "lunch"),
        Hook { tools: "bash".into(), ..command("h", "stop") },
        Hook { tools: "[".into(), ..command("h", "pre_tool_use") },
        Hook { target: None, ..command("h", "stop") },
        hook("h", "stop", Target::Command(String::new())),
        Hook { timeout_ms: 60_001, ..command("h", "stop") },
        Hook { timeout_ms: -1, ..command("h", "stop") },
        url("nothing"),
        url("ftp://example.com"),
        url("http://127.0.0.1:1/"),
        url("http://[::ffff:10.0.0.1]/"),
        url("http://169.254.169.254/latest/meta-data"),
    ] {
        note(world.put_hook("p", wrong).await.unwrap_err());
    }
    expect![[r#"
        invalid rule.permission: is missing
        invalid rule.permission: is longer than 100 characters
        invalid rule.permission: is no glob: a [, { or \ has no end, or it is too deep
        invalid rule.pattern: is missing
        invalid rule.pattern: is longer than 1000 characters
        invalid rule.pattern: is no glob: a [, { or \ has no end, or it is too deep
        invalid rule.pattern: is no glob: a [, { or \ has no end, or it is too deep
        invalid rule.pattern: contains NUL
        invalid rule.action: is none of allow, ask and deny
        invalid rule.action: is none of allow, ask and deny
        invalid project: is longer than 200 characters
        invalid hook.hook_id: expected 1 to 64 characters of a-z, 0-9 and -
        invalid hook.event: is none of the events that the contract lists
        invalid hook.tools: stop is not about a tool
        invalid hook.tools: is no glob: a [, { or \ has no end, or it is too deep
        invalid hook.target: is missing: a url or a command
        invalid hook.command: is missing
        invalid hook.timeout_ms: is not between 0 and 60000
        invalid hook.timeout_ms: is not between 0 and 60000
        invalid hook.url: it is no URL
        invalid hook.url: its scheme is ftp and not http or https
        invalid hook.url: 127.0.0.1 is not a public address
        invalid hook.url: ::ffff:10.0.0.1 is not a public address
        invalid hook.url: 169.254.169.254 is not a public address
    "#]]
    .assert_eq(&lines);
    assert!(world.rules("p", 0).await.is_empty());
}

#[sqlx::test(migrations = false)]
async fn a_project_has_only_so_many(db: PgPool) {
    let world = World::start(db).await;
    for number in 0..200 {
        let rule = rule("bash", &format!("run {number}"), Action::Ask);
        world.put_rule("p", rule).await.unwrap();
    }
    let status = world.put_rule("p", rule("bash", "more", Action::Ask)).await.unwrap_err();
    let full = "invalid rule: the project has 200 of them already, delete one first";
    assert_eq!(status.message(), full);
    // One that is there can still be changed, and others have room of their own.
    world.put_rule("p", rule("bash", "run 7", Action::Deny)).await.unwrap();
    world.put_rule("", rule("bash", "more", Action::Ask)).await.unwrap();
    for number in 0..50 {
        world.put_hook("p", command(&format!("h{number}"), "stop")).await.unwrap();
    }
    let status = world.put_hook("p", command("more", "stop")).await.unwrap_err();
    assert!(status.message().contains("the project has 50 of them already"), "{status:?}");
}

#[sqlx::test(migrations = false)]
async fn hooks_are_listed_in_the_order_in_which_they_are_called(db: PgPool) {
    let world = World::start(db).await;
    for (id, order) in [("c", 1), ("a", 2), ("b", 1), ("d", -1)] {
        world.put_hook("p", Hook { order, ..command(id, "stop") }).await.unwrap();
    }
    let list = async || {
        let request = ListHooksRequest { project: "p".into(), ..Default::default() };
        let request = world.peer.request(&world.caller, request);
        world.policies().list_hooks(request).await.unwrap().into_inner().hooks
    };
    let ids = |hooks: &[Hook]| hooks.iter().map(|hook| hook.hook_id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&list().await), ["d", "b", "c", "a"]);
    let full = Hook { timeout_ms: 5_000, ..command("b", "stop") };
    assert_eq!(list().await[1], Hook { order: 1, ..full });
    world.delete_hook("p", "b").await.unwrap();
    assert_eq!(ids(&list().await), ["d", "c", "a"]);
    let status = world.delete_hook("p", "b").await.unwrap_err();
    assert!(explain(&status).starts_with("NotFound REASON_POLICY_NOT_FOUND"), "{status:?}");
}

#[sqlx::test(migrations = false)]
async fn a_rule_holds_where_it_was_put_and_decides_by_its_weight(db: PgPool) {
    let mut world = World::start(db).await;
    let workspace = world.call("bash", serde_json::json!({})).workspace_id;
    let call = |world: &World, command: &str, rules: Vec<Rule>| {
        let mut call = Call { workspace_id: workspace.clone(), ..world.bash(command) };
        call.permissions = Some(Permissions { rules, ..Permissions::default() });
        call
    };
    let of = |source: Source, mut rule: Rule| {
        rule.set_source(source);
        rule
    };
    let mut lines = String::new();
    let mut note = |what: &str, decided: String| lines += &format!("{what}\n    {decided}\n");

    note("nothing put", world.decided(call(&world, "ls", vec![])).await);
    world.put_rule("", rule("bash", "*", Action::Ask)).await.unwrap();
    // It holds for the very next call.
    note("ask of the tenant", world.decided(call(&world, "ls", vec![])).await);
    world.put_rule(&workspace, rule("bash", "ls*", Action::Allow)).await.unwrap();
    note("narrower allow of the project", world.decided(call(&world, "ls", vec![])).await);
    note("another command", world.decided(call(&world, "pwd", vec![])).await);
    world.put_rule(&workspace, rule("bash", "ls -a", Action::Deny)).await.unwrap();
    note("narrower deny of the project", world.decided(call(&world, "ls -a; ls", vec![])).await);
    let session = of(Source::Session, rule("bash", "ls -a", Action::Allow));
    note("equal allow of the session", world.decided(call(&world, "ls -a", vec![session])).await);
    let manifest = of(Source::Manifest, rule("bash", "l*", Action::Deny));
    note("wider deny of the manifest", world.decided(call(&world, "ls", vec![manifest])).await);
    let manifest = of(Source::Manifest, rule("bash", "pwd", Action::Ask));
    world.put_rule(&workspace, rule("bash", "pwd", Action::Allow)).await.unwrap();
    note(
        "the project's answer to a manifest's ask",
        world.decided(call(&world, "pwd", vec![manifest])).await,
    );
    let refused = world.execute(call(&world, "ls -a", vec![])).await.unwrap();
    note("running it", format!("{:?} {:?}", refused.error(), refused.names()));
    expect![[r#"
        nothing put
            allow default: no rule decides, and bash runs in a strict sandbox
        ask of the tenant
            ask rule by project bash *: the rule bash "*" of the project asks a person
        narrower allow of the project
            allow rule by project bash ls*: the rule bash "ls*" of the project allows it
        another command
            ask rule by project bash *: the rule bash "*" of the project asks a person
        narrower deny of the project
            deny rule by project bash ls -a: the rule bash "ls -a" of the project denies "ls -a"
        equal allow of the session
            deny rule by project bash ls -a: the rule bash "ls -a" of the project denies it
        wider deny of the manifest
            deny rule by manifest bash l*: the rule bash "l*" of the manifest denies it
        the project's answer to a manifest's ask
            allow rule by project bash pwd: the rule bash "pwd" of the project allows it
        running it
            ("denied", "the rule bash \"ls -a\" of the project denies it") ["permission.evaluated"]
    "#]]
    .assert_eq(&lines);

    // Neither other projects nor other tenants have heard of it.
    let elsewhere =
        Call { workspace_id: world.bash("ls").workspace_id, ..call(&world, "ls", vec![]) };
    assert!(world.decided(elsewhere).await.starts_with("ask rule by project bash *"));
    world.caller.tenant = "other".parse().unwrap();
    assert!(world.decided(call(&world, "ls", vec![])).await.starts_with("allow default"));
    assert!(world.rules("", 0).await.is_empty() && world.rules(&workspace, 0).await.is_empty());
}

#[sqlx::test(migrations = false)]
async fn a_workspace_has_the_rules_of_the_project_it_belongs_to(db: PgPool) {
    let world = World::start(db.clone()).await;
    world.put_rule("shop", rule("bash", "ls", Action::Deny)).await.unwrap();
    let call = world.bash("ls");
    sqlx::query("insert into tools.workspace (tenant_id, workspace_id, project) values ('acme', $1, 'shop')")
        .bind(&call.workspace_id)
        .execute(&db)
        .await
        .unwrap();
    assert!(world.decided(call).await.starts_with("deny rule by project bash ls"));
    assert!(world.decided(world.bash("ls")).await.starts_with("allow rule by manifest"));
}
