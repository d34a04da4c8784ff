use std::{sync::Arc, time::Duration};

use proto::tools::v1::{
    self as pb, Rule, hook::Target as PbTarget, policy_service_server::PolicyService, rule::Action,
    rule::Source,
};
use sqlx::PgPool;
use tonic::{Request, Response, Status};

use super::{invalid, mcp_servers};
use crate::{
    error::{Error, Result},
    execute::Executor,
    hook::{Event, Hook, Target},
    pattern::Pattern,
};

/// Limits that the contract promises, in characters and milliseconds.
const LONGEST_PROJECT: usize = 200;
const LONGEST_PERMISSION: usize = 100;
const LONGEST_URL: usize = 2_000;
const LONGEST_COMMAND: usize = 10_000;
const LONGEST_TIMEOUT_MS: i32 = 60_000;
const USUAL_TIMEOUT_MS: i32 = 5_000;

pub struct Api {
    pub db: PgPool,
    pub executor: Arc<Executor>,
}

#[tonic::async_trait]
impl PolicyService for Api {
    async fn put_rule(
        &self,
        request: Request<pb::PutRuleRequest>,
    ) -> Result<Response<pb::PutRuleResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let pb::PutRuleRequest { project, rule } = request.into_inner();
        check_project(&project)?;
        let rule = check_rule(rule)?;
        self.executor.policies.put_rule(&tenant, &project, &rule).await?;
        Ok(Response::new(pb::PutRuleResponse { rule: Some(rule) }))
    }

    async fn list_rules(
        &self,
        request: Request<pb::ListRulesRequest>,
    ) -> Result<Response<pb::ListRulesResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        check_project(&request.project)?;
        let size = page_size(request.page_size, 200, 1_000)?;
        let rules = self.executor.policies.rules(&tenant, &request.project).await?;
        let (rules, next_page_token) = page(rules, size, &request.page_token)?;
        Ok(Response::new(pb::ListRulesResponse { rules, next_page_token }))
    }

    async fn delete_rule(
        &self,
        request: Request<pb::DeleteRuleRequest>,
    ) -> Result<Response<pb::DeleteRuleResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let pb::DeleteRuleRequest { project, permission, pattern } = request.into_inner();
        check_project(&project)?;
        check_text("permission", &permission, LONGEST_PERMISSION)?;
        check_pattern("pattern", &pattern)?;
        let policies = &self.executor.policies;
        policies.delete_rule(&tenant, &project, &permission, &pattern).await?;
        Ok(Response::new(pb::DeleteRuleResponse {}))
    }

    async fn put_hook(
        &self,
        request: Request<pb::PutHookRequest>,
    ) -> Result<Response<pb::PutHookResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let pb::PutHookRequest { project, hook } = request.into_inner();
        check_project(&project)?;
        let hook = self.check_hook(project, hook)?;
        self.executor.policies.put_hook(&tenant, &hook).await?;
        let signing_secret = match (&self.executor.hooks.http.signer, &hook.target) {
            (Some(signer), Target::Url(_)) => signer.shown(&tenant, &hook),
            _ => String::new(),
        };
        let hook = pb::Hook { signing_secret, ..hook.into() };
        Ok(Response::new(pb::PutHookResponse { hook: Some(hook) }))
    }

    async fn list_hooks(
        &self,
        request: Request<pb::ListHooksRequest>,
    ) -> Result<Response<pb::ListHooksResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        check_project(&request.project)?;
        let size = page_size(request.page_size, 50, 200)?;
        let hooks = self.executor.policies.hooks(&tenant, &request.project).await?;
        let (hooks, next_page_token) = page(hooks, size, &request.page_token)?;
        let hooks = hooks.into_iter().map(Into::into).collect();
        Ok(Response::new(pb::ListHooksResponse { hooks, next_page_token }))
    }

    async fn delete_hook(
        &self,
        request: Request<pb::DeleteHookRequest>,
    ) -> Result<Response<pb::DeleteHookResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let pb::DeleteHookRequest { project, hook_id } = request.into_inner();
        check_project(&project)?;
        check_hook_id("hook_id", &hook_id)?;
        self.executor.policies.delete_hook(&tenant, &project, &hook_id).await?;
        Ok(Response::new(pb::DeleteHookResponse {}))
    }

    async fn put_mcp_server(
        &self,
        request: Request<pb::PutMcpServerRequest>,
    ) -> Result<Response<pb::PutMcpServerResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let answer =
            mcp_servers::put(&self.db, &self.executor.servers, &tenant, request.into_inner());
        Ok(Response::new(answer.await?))
    }

    async fn list_mcp_servers(
        &self,
        request: Request<pb::ListMcpServersRequest>,
    ) -> Result<Response<pb::ListMcpServersResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let answer =
            mcp_servers::list(&self.db, &self.executor.servers, &tenant, request.into_inner());
        Ok(Response::new(answer.await?))
    }

    async fn delete_mcp_server(
        &self,
        request: Request<pb::DeleteMcpServerRequest>,
    ) -> Result<Response<pb::DeleteMcpServerResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let answer =
            mcp_servers::delete(&self.db, &self.executor.servers, &tenant, request.into_inner());
        Ok(Response::new(answer.await?))
    }
}

impl Api {
    fn check_hook(&self, project: String, hook: Option<pb::Hook>) -> Result<Hook> {
        let hook = hook.ok_or_else(|| invalid("hook", "is missing"))?;
        check_hook_id("hook.hook_id", &hook.hook_id)?;
        let event = Event::parse(&hook.event).ok_or_else(|| {
            invalid("hook.event", "is none of the events that the contract lists")
        })?;
        if !hook.tools.is_empty() {
            if !event.is_about_a_tool() {
                return Err(invalid("hook.tools", format!("{event} is not about a tool")));
            }
            check_text("hook.tools", &hook.tools, LONGEST_PERMISSION)?;
            check_pattern("hook.tools", &hook.tools)?;
        }
        let target = match hook.target {
            Some(PbTarget::Url(url)) => {
                check_text("hook.url", &url, LONGEST_URL)?;
                let checked = self.executor.hooks.http.check(&url);
                checked.map_err(|problem| invalid("hook.url", problem))?;
                Target::Url(url)
            }
            Some(PbTarget::Command(command)) => {
                check_text("hook.command", &command, LONGEST_COMMAND)?;
                Target::Command(command)
            }
            None => return Err(invalid("hook.target", "is missing: a url or a command")),
        };
        let timeout_ms = match hook.timeout_ms {
            0 => USUAL_TIMEOUT_MS,
            timeout_ms @ 1..=LONGEST_TIMEOUT_MS => timeout_ms,
            _ => return Err(invalid("hook.timeout_ms", "is not between 0 and 60000")),
        };
        Ok(Hook {
            project,
            id: hook.hook_id,
            event,
            tools: hook.tools,
            target,
            timeout: Duration::from_millis(timeout_ms.unsigned_abs().into()),
            fail_open: hook.fail_open,
            rank: hook.order,
        })
    }
}

fn check_rule(rule: Option<Rule>) -> Result<Rule> {
    let rule = rule.ok_or_else(|| invalid("rule", "is missing"))?;
    check_text("rule.permission", &rule.permission, LONGEST_PERMISSION)?;
    check_pattern("rule.permission", &rule.permission)?;
    check_pattern("rule.pattern", &rule.pattern)?;
    match Action::try_from(rule.action) {
        Ok(Action::Allow | Action::Ask | Action::Deny) => (),
        Ok(Action::Unspecified) | Err(_) => {
            return Err(invalid("rule.action", "is none of allow, ask and deny"));
        }
    }
    Ok(Rule { source: Source::Project.into(), ..rule })
}

/// What a rule is compared with must be a glob that can be compared.
fn check_pattern(field: &'static str, text: &str) -> Result<()> {
    check_text(field, text, 1_000)?;
    // Some are only understood when they are used.
    match Pattern::new(text).and_then(|pattern| pattern.check()) {
        Ok(()) => Ok(()),
        Err(_) => Err(invalid(field, "is no glob: a [, { or \\ has no end, or it is too deep")),
    }
}

/// Between 1 and `longest` characters.
fn check_text(field: &'static str, text: &str, longest: usize) -> Result<()> {
    if text.is_empty() {
        return Err(invalid(field, "is missing"));
    }
    check_length(field, text, longest)
}

fn check_project(project: &str) -> Result<()> {
    check_length("project", project, LONGEST_PROJECT)
}

fn check_length(field: &'static str, text: &str, longest: usize) -> Result<()> {
    if text.chars().count() > longest {
        return Err(invalid(field, format!("is longer than {longest} characters")));
    }
    match text.contains('\0') {
        true => Err(invalid(field, "contains NUL")),
        false => Ok(()),
    }
}

fn check_hook_id(field: &'static str, id: &str) -> Result<()> {
    let allowed = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    match (1..=64).contains(&id.len()) && id.bytes().all(allowed) {
        true => Ok(()),
        false => Err(invalid(field, "expected 1 to 64 characters of a-z, 0-9 and -")),
    }
}

fn page_size(size: i32, usual: usize, largest: usize) -> Result<usize> {
    match usize::try_from(size) {
        Ok(0) => Ok(usual),
        Ok(size) if size <= largest => Ok(size),
        _ => Err(invalid("page_size", format!("is not between 0 and {largest}"))),
    }
}

/// A page of a list that is short enough to be read as a whole; a token is a place in it.
fn page<T>(items: Vec<T>, size: usize, token: &str) -> Result<(Vec<T>, String)> {
    let start: usize = match token {
        "" => 0,
        token => token.parse().map_err(|_| Error::InvalidCursor)?,
    };
    let end = items.len().min(start.saturating_add(size));
    let next = if end < items.len() { end.to_string() } else { String::new() };
    Ok((items.into_iter().skip(start).take(size).collect(), next))
}

impl From<Hook> for pb::Hook {
    fn from(hook: Hook) -> pb::Hook {
        pb::Hook {
            hook_id: hook.id,
            event: hook.event.name().to_owned(),
            tools: hook.tools,
            target: Some(match hook.target {
                Target::Url(url) => PbTarget::Url(url),
                Target::Command(command) => PbTarget::Command(command),
            }),
            timeout_ms: hook.timeout.as_millis() as i32,
            fail_open: hook.fail_open,
            order: hook.rank,
            signing_secret: String::new(),
        }
    }
}
