use jiff::Timestamp;
use jiff_sqlx::Timestamp as Time;
use serde::Serialize;
use serde_json::Value;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::Result,
    ids::{SessionId, TurnId},
    seal::{Digest, Replaced, Seal, hex},
};

/// Sessions with turns that ended and are not sealed. In no order, so that one that cannot be
/// sealed does not keep others waiting.
pub async fn unsealed(db: impl PgExecutor<'_>, limit: i64) -> Result<Vec<SessionId>> {
    let ids = sqlx::query_scalar!(
        r#"
        select session_id as "id!: SessionId"
        from (
            select distinct session_id from (
                select session_id from session.turn
                where not sealed and status in ('completed', 'failed', 'cancelled')
                limit 10000
            ) t
        ) s
        order by random()
        limit $1
        "#,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(ids)
}

/// Where a chain ends, and what is to be added.
#[derive(Debug)]
pub struct Head {
    /// Number, last sequence and digest of the last seal.
    pub seal: Option<(i32, i64, String)>,
    /// The last end of a turn that is not sealed.
    pub end: Option<i64>,
    /// Turns that ended, the last of them there.
    pub turns: Vec<TurnId>,
}

/// Asked in one statement: a turn and the event that ends it are committed together.
pub async fn head(db: impl PgExecutor<'_>, id: SessionId) -> Result<Head> {
    let row = sqlx::query!(
        r#"
        select s.number as "number?", s.through_seq as "through_seq?", s.digest as "digest?",
               (select max(e.seq) from session.event e
                where e.session_id = $1 and e.seq > coalesce(s.through_seq, 0)
                  and e.type in ('turn.completed', 'turn.failed')) as end_seq,
               array(select t.id from session.turn t
                     where t.session_id = $1 and not t.sealed
                       and t.status in ('completed', 'failed', 'cancelled')) as "turns!: Vec<TurnId>"
        from (select) one
        left join lateral (
            select * from session.seal where session_id = $1 order by number desc limit 1
        ) s on true
        "#,
        id as _,
    )
    .fetch_one(db)
    .await?;
    Ok(Head {
        seal: row.number.zip(row.through_seq).zip(row.digest).map(|((n, t), d)| (n, t, d)),
        end: row.end_seq,
        turns: row.turns,
    })
}

/// Adds a seal to the end of the chain. False: somebody else did.
pub async fn add(
    db: impl PgExecutor<'_>,
    id: SessionId,
    seal: &Seal,
    digests: &[Digest],
    ends_turn: bool,
) -> Result<bool> {
    let added = sqlx::query_scalar!(
        r#"select session.add_seal($1, $2, $3, $4, $5, $6, $7, $8) as "added!""#,
        id as _,
        seal.number,
        seal.first_sequence,
        seal.through_sequence,
        seal.previous,
        seal.digest,
        digests.concat(),
        ends_turn,
    )
    .fetch_one(db)
    .await?;
    Ok(added)
}

pub async fn mark(db: impl PgExecutor<'_>, id: SessionId, turns: &[TurnId]) -> Result<()> {
    sqlx::query!(
        "update session.turn set sealed = true where session_id = $1 and id = any($2)",
        id as _,
        turns as _,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// The seals after a number, in order.
pub async fn after(
    db: impl PgExecutor<'_>,
    id: SessionId,
    number: i32,
    limit: i64,
) -> Result<Vec<Seal>> {
    let rows = sqlx::query!(
        r#"
        select number, first_seq, through_seq, previous, digest, digests, replaced as "replaced: Json<Vec<Replaced>>"
        from session.seal
        where session_id = $1 and number > $2
        order by number
        limit $3
        "#,
        id as _,
        number,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Seal {
            session_id: id.to_string(),
            number: row.number,
            first_sequence: row.first_seq,
            through_sequence: row.through_seq,
            previous: row.previous,
            digests: row.digests.map(|bytes| bytes.chunks(32).map(hex).collect()),
            digest: row.digest,
            replaced: row.replaced.0,
        })
        .collect())
}

/// The number of the first seal that covers something from this sequence on.
pub async fn covering(
    db: impl PgExecutor<'_>,
    id: SessionId,
    sequence: i64,
) -> Result<Option<i32>> {
    let number = sqlx::query_scalar!(
        r#"
        select number from session.seal
        where session_id = $1 and through_seq >= $2
        order by number
        limit 1
        "#,
        id as _,
        sequence,
    )
    .fetch_optional(db)
    .await?;
    Ok(number)
}

/// The sequence with which a log begins.
pub async fn first_sequence(db: impl PgExecutor<'_>, id: SessionId) -> Result<i64> {
    let first =
        sqlx::query_scalar!("select first_seq from session.log where session_id = $1", id as _)
            .fetch_optional(db)
            .await?;
    Ok(first.unwrap_or(1))
}

/// The first sequence after `after` and up to `last` that no event has.
pub async fn missing(
    db: impl PgExecutor<'_>,
    id: SessionId,
    after: i64,
    last: i64,
) -> Result<Option<i64>> {
    let missing = sqlx::query_scalar!(
        r#"
        select e.before + 1 as "missing!"
        from (
            select seq, lag(seq, 1, $2) over (order by seq) as before
            from (
                select seq from session.event where session_id = $1 and seq > $2 and seq <= $3
                union all select $3 + 1
            ) e
        ) e
        where e.seq <> e.before + 1
        order by e.seq
        limit 1
        "#,
        id as _,
        after,
        last,
    )
    .fetch_optional(db)
    .await?;
    Ok(missing)
}

/// A seal whose deltas are old enough to be joined.
#[derive(Debug)]
pub struct Whole {
    pub session_id: SessionId,
    pub number: i32,
    pub first_seq: i64,
    pub through_seq: i64,
}

pub async fn whole(db: impl PgExecutor<'_>, before: Timestamp, limit: i64) -> Result<Vec<Whole>> {
    let seals = sqlx::query_as!(
        Whole,
        r#"
        select s.session_id as "session_id: _", s.number, s.first_seq, s.through_seq
        from session.seal s
        where not s.compacted and s.sealed_at < $1
        order by s.sealed_at
        limit $2
        "#,
        Time::from(before) as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(seals)
}

/// One event that is left of several.
#[derive(Debug, Serialize)]
pub struct Joined {
    pub first: i64,
    pub through: i64,
    pub payload: Value,
    pub refs: Value,
    pub digest: String,
}

/// Joins deltas of a seal, unless somebody did before.
pub async fn join(
    db: impl PgExecutor<'_>,
    id: SessionId,
    number: i32,
    joined: &[Joined],
) -> Result<()> {
    sqlx::query_scalar!(
        "select session.join_deltas($1, $2, $3)",
        id as _,
        number,
        Json(joined) as _,
    )
    .fetch_one(db)
    .await?;
    Ok(())
}

/// Sessions whose logs begin before `before`.
pub async fn old(db: impl PgExecutor<'_>, before: Timestamp, limit: i64) -> Result<Vec<SessionId>> {
    let ids = sqlx::query_scalar!(
        r#"
        select distinct session_id as "id!: SessionId"
        from (
            select session_id from session.seal
            where digests is not null and sealed_at < $1
            order by sealed_at
            limit $2
        ) s
        "#,
        Time::from(before) as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(ids)
}

/// Removes a piece of the beginning of a log that is from before `before`; returns where the
/// log begins then, or that there is nothing more to remove.
pub async fn expire(
    db: impl PgExecutor<'_>,
    id: SessionId,
    before: Timestamp,
) -> Result<Option<i64>> {
    let first =
        sqlx::query_scalar!("select session.expire_log($1, $2)", id as _, Time::from(before) as _,)
            .fetch_one(db)
            .await?;
    Ok(first)
}
