use std::time::Duration;

use chassis::Tenant;
use jiff_sqlx::{Timestamp, ToSqlx as _};
use sqlx::{PgExecutor, PgPool, Postgres, Transaction};

use crate::{
    call::{Call, OutputRef, ProcessId, SessionId, ToolCallId},
    error::Result,
};

/// An output that can be read.
#[derive(Debug)]
pub struct Stored {
    pub session_id: SessionId,
    pub digest: String,
    pub bytes: i64,
    pub expires_at: Timestamp,
}

/// Who printed an output.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    pub tenant: &'a Tenant,
    pub session_id: SessionId,
    pub printer: Printer,
}

#[derive(Debug, Clone, Copy)]
pub enum Printer {
    ToolCall(ToolCallId),
    Process(ProcessId),
}

impl<'a> From<&'a Call> for Owner<'a> {
    fn from(call: &'a Call) -> Owner<'a> {
        let printer = Printer::ToolCall(call.tool_call_id);
        Owner { tenant: &call.tenant, session_id: call.session_id, printer }
    }
}

/// Notes that an output is about to be stored.
pub async fn begin(
    db: impl PgExecutor<'_>,
    owner: Owner<'_>,
    output_ref: OutputRef,
    digest: &str,
    bytes: i64,
    retention: Duration,
) -> Result<()> {
    let expires_at = (jiff::Timestamp::now() + retention).to_sqlx();
    let (tool_call_id, process_id) = match owner.printer {
        Printer::ToolCall(id) => (Some(id.to_string()), None),
        Printer::Process(id) => (None, Some(id.to_string())),
    };
    sqlx::query!(
        "insert into tools.output
             (tenant_id, output_ref, session_id, tool_call_id, process_id, digest, bytes, expires_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        owner.tenant.as_str(),
        output_ref as _,
        owner.session_id as _,
        tool_call_id,
        process_id,
        digest,
        bytes,
        expires_at as _,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// A transaction in which nobody else stores or removes what has this digest.
pub async fn alone_with(
    db: &PgPool,
    tenant: &Tenant,
    digest: &str,
) -> Result<Transaction<'static, Postgres>> {
    let mut alone = chassis::database::begin(db, "begin").await?;
    sqlx::query!(
        "select pg_advisory_xact_lock(hashtextextended($1 || '/' || $2, 0))",
        tenant.as_str(),
        digest,
    )
    .execute(&mut *alone)
    .await?;
    Ok(alone)
}

/// Notes that an output is stored now.
pub async fn finish(db: impl PgExecutor<'_>, tenant: &Tenant, output_ref: OutputRef) -> Result<()> {
    sqlx::query!(
        "update tools.output set stored = true where tenant_id = $1 and output_ref = $2",
        tenant.as_str(),
        output_ref as _,
    )
    .execute(db)
    .await?;
    Ok(())
}

pub async fn get(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    output_ref: OutputRef,
) -> Result<Option<Stored>> {
    let stored = sqlx::query_as!(
        Stored,
        r#"
        select session_id as "session_id: _", digest, bytes, expires_at as "expires_at: _"
        from tools.output
        where tenant_id = $1 and output_ref = $2 and stored and expires_at > now()
        "#,
        tenant.as_str(),
        output_ref as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(stored)
}

/// Some of what has expired: whose, and which content.
pub async fn expired(db: impl PgExecutor<'_>, limit: i64) -> Result<Vec<(Tenant, String)>> {
    let rows = sqlx::query!(
        r#"
        select distinct tenant_id as "tenant_id: Tenant", digest
        from (select tenant_id, digest from tools.output
              where expires_at <= now() order by expires_at limit $1) as old
        "#,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.digest)).collect())
}

/// Forgets what of this content has expired. Whether anybody still has it.
pub async fn forget(db: impl PgExecutor<'_>, tenant: &Tenant, digest: &str) -> Result<bool> {
    let wanted = sqlx::query_scalar!(
        r#"
        with forgotten as (
            delete from tools.output
            where tenant_id = $1 and digest = $2 and expires_at <= now()
        )
        select exists (
            select from tools.output
            where tenant_id = $1 and digest = $2 and expires_at > now()
        ) as "wanted!"
        "#,
        tenant.as_str(),
        digest,
    )
    .fetch_one(db)
    .await?;
    Ok(wanted)
}
