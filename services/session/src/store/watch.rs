use chassis::Tenant;
use jiff::Timestamp;
use jiff_sqlx::Timestamp as Time;
use proto::event::v1::Event;
use sqlx::{PgExecutor, types::Json};

use crate::{error::Result, store::events};

/// Turn starts, ends and calls for attention of a tenant since a moment, for watchers that
/// nobody told. Sees sessions that are active or were used since, and of each the last part of the log.
pub async fn since(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    since: Timestamp,
) -> Result<Vec<Event>> {
    let rows = sqlx::query!(
        r#"
        with seen as (
            (select session_id from session.run_state
             where tenant_id = $1 and active_turn is not null limit 500)
            union
            (select id from session.chat_sessions
             where tenant_id = $1 and not ephemeral and archived_at is null and updated_at > $2
             order by updated_at desc limit 500)
        )
        select to_jsonb(e) as "row!: Json<events::Row>"
        from seen
        cross join lateral (
            select * from (
                select * from session.event
                where session_id = seen.session_id
                order by seq desc
                limit 500
            ) tail
            where tail.created_at > $2
              and tail.type in ('turn.started', 'turn.completed', 'turn.failed', 'action.required')
        ) e
        order by e.created_at, e.session_id, e.seq
        limit 1000
        "#,
        tenant as _,
        Time::from(since) as _,
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|row| row.row.0.into_event()).collect()
}
