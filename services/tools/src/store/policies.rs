use std::time::Duration;

use chassis::Tenant;
use proto::tools::v1::{
    Rule,
    rule::{Action, Source},
};
use serde::Deserialize;
use sqlx::{PgExecutor, PgPool, Postgres, Transaction, types::Json};

use crate::{
    call::WorkspaceId,
    error::{Error, Result},
    evaluate::action_name,
    hook::{Event, Hook, Target},
    policies::Policy,
};

/// How much a project may have.
const MOST_RULES: i64 = 200;
const MOST_HOOKS: i64 = 50;

/// A row of `tools.rule`.
#[derive(Debug, Deserialize)]
struct RuleRow {
    permission: String,
    pattern: String,
    action: String,
}

/// A row of `tools.hook`.
#[derive(Debug, Deserialize)]
struct HookRow {
    project: String,
    hook_id: String,
    event: String,
    tools: String,
    url: Option<String>,
    command: Option<String>,
    timeout_ms: i32,
    fail_open: bool,
    rank: i32,
}

/// What holds in a workspace: what its project has, and what all projects have.
pub async fn policy(db: impl PgExecutor<'_>, tenant: &Tenant, id: WorkspaceId) -> Result<Policy> {
    let found = sqlx::query!(
        r#"
        with named as (
            select coalesce((
                select nullif(project, '') from tools.workspace
                where tenant_id = $1 and workspace_id = $2
            ), $2) as project
        )
        select
            project as "project!",
            (
                select coalesce(jsonb_agg(rule), '[]') from tools.rule
                where rule.tenant_id = $1 and rule.project in ('', named.project)
            ) as "rules!: Json<Vec<RuleRow>>",
            (
                select coalesce(jsonb_agg(hook order by rank, project, hook_id), '[]') from tools.hook
                where hook.tenant_id = $1 and hook.project in ('', named.project)
            ) as "hooks!: Json<Vec<HookRow>>"
        from named
        "#,
        tenant.as_str(),
        id.to_string(),
    )
    .fetch_one(db)
    .await?;
    Ok(Policy {
        project: found.project,
        rules: found.rules.0.into_iter().map(Into::into).collect(),
        hooks: found.hooks.0.into_iter().filter_map(HookRow::hook).collect(),
    })
}

pub async fn put_rule(db: &PgPool, tenant: &Tenant, project: &str, rule: &Rule) -> Result<()> {
    let mut alone = alone_with(db, tenant, project).await?;
    let stored = sqlx::query!(
        r#"
        insert into tools.rule (tenant_id, project, permission, pattern, action)
        select $1, $2, $3, $4, $5
        where exists (
            select from tools.rule
            where tenant_id = $1 and project = $2 and permission = $3 and md5(pattern) = md5($4)
        ) or (select count(*) from tools.rule where tenant_id = $1 and project = $2) < $6
        on conflict (tenant_id, project, permission, md5(pattern)) do update
            set pattern = excluded.pattern, action = excluded.action
        "#,
        tenant.as_str(),
        project,
        rule.permission,
        rule.pattern,
        action_name(rule.action()),
        MOST_RULES,
    )
    .execute(&mut *alone)
    .await?;
    alone.commit().await?;
    room("rule", stored.rows_affected(), MOST_RULES)
}

pub async fn rules(db: impl PgExecutor<'_>, tenant: &Tenant, project: &str) -> Result<Vec<Rule>> {
    let rows = sqlx::query_as!(
        RuleRow,
        r#"
        select permission, pattern, action from tools.rule
        where tenant_id = $1 and project = $2
        order by permission collate "C", pattern collate "C"
        limit $3
        "#,
        tenant.as_str(),
        project,
        MOST_RULES,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

/// Whether there was such a rule.
pub async fn delete_rule(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    project: &str,
    permission: &str,
    pattern: &str,
) -> Result<bool> {
    let deleted = sqlx::query!(
        "delete from tools.rule
         where tenant_id = $1 and project = $2 and permission = $3 and md5(pattern) = md5($4)",
        tenant.as_str(),
        project,
        permission,
        pattern,
    )
    .execute(db)
    .await?;
    Ok(deleted.rows_affected() > 0)
}

pub async fn put_hook(db: &PgPool, tenant: &Tenant, hook: &Hook) -> Result<()> {
    let (url, command) = match &hook.target {
        Target::Url(url) => (Some(url), None),
        Target::Command(command) => (None, Some(command)),
    };
    let mut alone = alone_with(db, tenant, &hook.project).await?;
    let stored = sqlx::query!(
        r#"
        insert into tools.hook
            (tenant_id, project, hook_id, event, tools, url, command, timeout_ms, fail_open, rank)
        select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10
        where exists (
            select from tools.hook where tenant_id = $1 and project = $2 and hook_id = $3
        ) or (select count(*) from tools.hook where tenant_id = $1 and project = $2) < $11
        on conflict (tenant_id, project, hook_id) do update
            set event = excluded.event, tools = excluded.tools, url = excluded.url,
                command = excluded.command, timeout_ms = excluded.timeout_ms,
                fail_open = excluded.fail_open, rank = excluded.rank
        "#,
        tenant.as_str(),
        hook.project,
        hook.id,
        hook.event.name(),
        hook.tools,
        url,
        command,
        hook.timeout.as_millis() as i32,
        hook.fail_open,
        hook.rank,
        MOST_HOOKS,
    )
    .execute(&mut *alone)
    .await?;
    alone.commit().await?;
    room("hook", stored.rows_affected(), MOST_HOOKS)
}

/// In the order in which they are asked.
pub async fn hooks(db: impl PgExecutor<'_>, tenant: &Tenant, project: &str) -> Result<Vec<Hook>> {
    let rows = sqlx::query_as!(
        HookRow,
        r#"
        select project, hook_id, event, tools, url, command, timeout_ms, fail_open, rank
        from tools.hook
        where tenant_id = $1 and project = $2
        order by rank, hook_id
        limit $3
        "#,
        tenant.as_str(),
        project,
        MOST_HOOKS,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().filter_map(HookRow::hook).collect())
}

/// Whether there was such a hook.
pub async fn delete_hook(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    project: &str,
    id: &str,
) -> Result<bool> {
    let deleted = sqlx::query!(
        "delete from tools.hook where tenant_id = $1 and project = $2 and hook_id = $3",
        tenant.as_str(),
        project,
        id,
    )
    .execute(db)
    .await?;
    Ok(deleted.rows_affected() > 0)
}

/// The events that any project of the tenant has hooks for.
pub async fn hook_events(db: impl PgExecutor<'_>, tenant: &Tenant) -> Result<Vec<String>> {
    let names = Event::ALL.map(|event| event.name().to_owned());
    let events = sqlx::query_scalar!(
        r#"
        select name as "name!" from unnest($2::text[]) as name
        where exists (select from tools.hook where tenant_id = $1 and event = name)
        "#,
        tenant.as_str(),
        &names,
    )
    .fetch_all(db)
    .await?;
    Ok(events)
}

/// A transaction in which nobody else adds to this project, so that what is counted is right.
async fn alone_with(
    db: &PgPool,
    tenant: &Tenant,
    project: &str,
) -> Result<Transaction<'static, Postgres>> {
    let mut alone = chassis::database::begin(db, "begin").await?;
    sqlx::query!(
        "select pg_advisory_xact_lock(hashtextextended('policy/' || $1 || '/' || $2, 0))",
        tenant.as_str(),
        project,
    )
    .execute(&mut *alone)
    .await?;
    Ok(alone)
}

fn room(field: &'static str, stored: u64, most: i64) -> Result<()> {
    match stored {
        0 => {
            let problem = format!("the project has {most} of them already, delete one first");
            Err(Error::Invalid { field, problem })
        }
        _ => Ok(()),
    }
}

impl From<RuleRow> for Rule {
    fn from(row: RuleRow) -> Rule {
        let action = match row.action.as_str() {
            "allow" => Action::Allow,
            "ask" => Action::Ask,
            _ => Action::Deny,
        };
        Rule {
            permission: row.permission,
            pattern: row.pattern,
            action: action.into(),
            source: Source::Project.into(),
        }
    }
}

impl HookRow {
    /// None of an event that only a newer server knows.
    fn hook(self) -> Option<Hook> {
        Some(Hook {
            event: Event::parse(&self.event)?,
            target: match (self.url, self.command) {
                (Some(url), _) => Target::Url(url),
                (None, command) => Target::Command(command?),
            },
            project: self.project,
            id: self.hook_id,
            tools: self.tools,
            timeout: Duration::from_millis(self.timeout_ms.unsigned_abs().into()),
            fail_open: self.fail_open,
            rank: self.rank,
        })
    }
}
