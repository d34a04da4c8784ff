use chassis::Tenant;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::Result,
    ids::{ReplicaId, SessionId, TurnId},
    store::turns::{Claim, Context},
};

pub async fn register(db: impl PgExecutor<'_>, id: ReplicaId, address: &str) -> Result<()> {
    sqlx::query!("insert into session.replica (id, address) values ($1, $2)", id as _, address)
        .execute(db)
        .await?;
    Ok(())
}

/// Another replica, as the last heartbeat found it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peer {
    pub id: ReplicaId,
    pub counter: i64,
    pub dead: bool,
    /// Whether it still owns sessions.
    pub owns: bool,
}

/// Counts once more for `id` and looks at everybody else. `None`: we were declared dead.
pub async fn beat(db: impl PgExecutor<'_>, id: ReplicaId) -> Result<Option<Vec<Peer>>> {
    let rows = sqlx::query!(
        r#"
        with me as (
            update session.replica set counter = counter + 1
            where id = $1 and not dead
            returning id
        )
        select r.id as "id: ReplicaId", r.counter, r.dead, exists(select from me) as "alive!",
               exists(select from session.run_state s where s.owner = r.id) as "owns!"
        from session.replica r
        "#,
        id as _,
    )
    .fetch_all(db)
    .await?;
    if !rows.iter().any(|row| row.alive) {
        return Ok(None);
    }
    let peers = rows.into_iter().filter(|row| row.id != id);
    Ok(Some(
        peers
            .map(|row| Peer { id: row.id, counter: row.counter, dead: row.dead, owns: row.owns })
            .collect(),
    ))
}

/// From here on `id` can neither count nor claim. Only if it has not counted since.
pub async fn bury(db: impl PgExecutor<'_>, id: ReplicaId, counter: i64) -> Result<bool> {
    let buried = sqlx::query!(
        "update session.replica set dead = true where id = $1 and counter = $2",
        id as _,
        counter,
    )
    .execute(db)
    .await?;
    Ok(buried.rows_affected() > 0)
}

/// Whether the replica that owns a session is dead.
pub async fn owner_is_dead(db: impl PgExecutor<'_>, session_id: SessionId) -> Result<bool> {
    let dead = sqlx::query_scalar!(
        r#"
        select r.dead from session.run_state s
        join session.replica r on r.id = s.owner
        where s.session_id = $1
        "#,
        session_id as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(dead.unwrap_or(false))
}

/// Says goodbye: nobody has to wait to find out.
pub async fn leave(db: impl PgExecutor<'_>, id: ReplicaId) -> Result<()> {
    sqlx::query!("update session.replica set dead = true where id = $1", id as _)
        .execute(db)
        .await?;
    Ok(())
}

/// Forgets replicas that are dead and own nothing.
pub async fn forget(db: impl PgExecutor<'_>) -> Result<()> {
    sqlx::query!(
        r#"
        delete from session.replica r
        where r.dead and r.started_at < now() - interval '1 day'
          and not exists (select from session.run_state s where s.owner = r.id)
        "#
    )
    .execute(db)
    .await?;
    Ok(())
}

/// What a replica that is dead left behind.
#[derive(Debug, Clone)]
pub struct Orphan {
    pub session_id: SessionId,
    pub tenant: Tenant,
    pub epoch: i64,
}

pub async fn orphans(db: impl PgExecutor<'_>, owner: ReplicaId) -> Result<Vec<Orphan>> {
    let orphans = sqlx::query_as!(
        Orphan,
        r#"
        select session_id as "session_id: _", tenant_id as "tenant: _", epoch
        from session.run_state
        where owner = $1
        order by session_id
        limit 1000
        "#,
        owner as _,
    )
    .fetch_all(db)
    .await?;
    Ok(orphans)
}

/// What became of an adopted session.
pub enum Adopted {
    /// Its turn had not begun and waits for a worker again.
    Ready,
    /// Its turn is ours to bring to its end.
    Begun(Claim, Box<Context>),
    /// Somebody else was faster.
    Gone,
}

pub async fn adopt(
    db: impl PgExecutor<'_>,
    replica: ReplicaId,
    session_id: SessionId,
    dead: ReplicaId,
) -> Result<Adopted> {
    let row = sqlx::query!(
        r#"
        select session_id as "session_id!: SessionId", tenant_id as "tenant!: Tenant",
               turn_id as "turn_id!: TurnId", epoch as "epoch!", flush_no as "flush_no!",
               attempts as "attempts!", begun as "begun!", context as "context!: Json<Context>"
        from session.adopt($1, $2, $3)
        "#,
        replica as _,
        session_id as _,
        dead as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(match row {
        None => Adopted::Gone,
        Some(row) if !row.begun => Adopted::Ready,
        Some(row) => {
            let claim = Claim {
                session_id: row.session_id,
                tenant: row.tenant,
                turn_id: row.turn_id,
                epoch: row.epoch,
                flush_no: row.flush_no,
                attempts: row.attempts,
            };
            Adopted::Begun(claim, Box::new(row.context.0))
        }
    })
}
