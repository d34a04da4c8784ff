use chassis::Tenant;
use proto::event::v1::Event;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{ChannelId, ReplicaId, SessionId},
    store::{events, turns::Stamp},
};

/// How many names a session's readers may have had.
const MOST: i32 = 1000;

/// Where a reader wants to begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    Beginning,
    After(i64),
    Live,
    Acknowledged,
}

#[derive(Debug)]
pub struct NewConnection<'a> {
    pub tenant: &'a Tenant,
    pub session_id: SessionId,
    pub name: &'a str,
    pub subject: &'a str,
    pub client: &'a str,
    pub start: Start,
}

/// A reader's hold on its name.
#[derive(Debug, Clone)]
pub struct Connection {
    pub tenant: Tenant,
    pub session_id: SessionId,
    pub name: String,
    pub connection: i64,
}

/// Connects a reader under a name and says so in the log. Returns the hold on the name, after
/// which event the reader begins, and what is to be published.
pub async fn connect(
    db: impl PgExecutor<'_>,
    new: NewConnection<'_>,
    replica: ReplicaId,
    stamp: &Stamp,
) -> Result<(Connection, i64, Vec<Event>)> {
    let (from, after) = match new.start {
        Start::Beginning => ("start", 0),
        Start::After(after) => ("after", after),
        Start::Live => ("live", 0),
        Start::Acknowledged => ("acknowledged", 0),
    };
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", connection, after_seq, last_seq, events as "events: Json<Vec<events::Row>>"
        from session.connect_channel($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        "#,
        new.tenant as _,
        new.session_id as _,
        new.name,
        ChannelId::new() as _,
        new.subject,
        new.client,
        replica as _,
        from,
        after,
        MOST,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    let id = new.session_id;
    let (after, last) = (row.after_seq.unwrap_or_default(), row.last_seq.unwrap_or_default());
    match row.outcome.as_str() {
        "not_found" => return Err(Error::SessionNotFound(id)),
        "ahead" => return Err(Error::CursorAhead { id, after, last }),
        "full" => {
            let problem = format!("session {id} has {MOST} channels, which is as many as it may");
            return Err(Error::Invalid { field: "channel", problem });
        }
        _ => {}
    }
    let events = row.events.map(|events| events.0).unwrap_or_default();
    let connection = Connection {
        tenant: new.tenant.clone(),
        session_id: id,
        name: new.name.to_owned(),
        connection: row.connection.unwrap_or_default(),
    };
    let events = events.into_iter().map(events::Row::into_event).collect::<Result<_>>()?;
    Ok((connection, after, events))
}

/// Says in the log that a reader is gone; returns what is to be published, which is nothing
/// if it was said before.
pub async fn disconnect(
    db: impl PgExecutor<'_>,
    connection: &Connection,
    reason: &str,
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"select session.disconnect_channel($1, $2, $3, $4, $5) as "events!: Json<Vec<events::Row>>""#,
        connection.session_id as _,
        connection.name,
        connection.connection,
        reason,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    row.events.0.into_iter().map(events::Row::into_event).collect()
}

/// Remembers that everything up to `sequence` arrived, and returns what is remembered. Nothing is
/// appended, so the session's row is only read.
pub async fn acknowledge(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: SessionId,
    name: &str,
    sequence: i64,
) -> Result<i64> {
    let row = sqlx::query!(
        r#"
        with state as (
            select r.next_seq - 1 as last from session.run_state r where r.session_id = $2 and r.tenant_id = $1
        ), moved as (
            update session.channel c
            set acknowledged = greatest(c.acknowledged, $4)
            from state
            where c.session_id = $2 and c.name = $3 and $4 <= state.last
            returning c.acknowledged
        )
        select state.last as "last!", (select acknowledged from moved) as acknowledged
        from state
        "#,
        tenant as _,
        id as _,
        name,
        sequence,
    )
    .fetch_optional(db)
    .await?
    .ok_or(Error::SessionNotFound(id))?;
    match row.acknowledged {
        Some(acknowledged) => Ok(acknowledged),
        None if sequence > row.last => {
            Err(Error::CursorAhead { id, after: sequence, last: row.last })
        }
        None => {
            let problem = format!("session {id} has no channel of this name");
            Err(Error::Invalid { field: "channel", problem })
        }
    }
}

/// Readers that were served by replicas that are dead.
pub async fn lost(db: impl PgExecutor<'_>, limit: i64) -> Result<Vec<Connection>> {
    let lost = sqlx::query_as!(
        Connection,
        r#"
        select s.tenant_id as "tenant: _", c.session_id as "session_id: _", c.name, c.connection
        from session.channel c
        join session.run_state s on s.session_id = c.session_id
        where c.replica_id in (select r.id from session.replica r where r.dead)
        limit $1
        "#,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(lost)
}
