//! What senders prove themselves with.

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::Timestamp as Time;
use sqlx::PgExecutor;

use crate::{
    error::Result,
    ids::{SecretId, TriggerId},
};

/// A secret as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    Sealed(Vec<u8>),
    Sha256(Vec<u8>),
}

/// The secrets of a trigger that work, and until when.
pub async fn live(
    db: impl PgExecutor<'_>,
    id: TriggerId,
) -> Result<Vec<(Kept, Option<Timestamp>)>> {
    let rows = sqlx::query!(
        r#"
        select sealed, sha256, expires_at as "expires_at: Time" from triggers.secret
        where trigger_id = $1 and (expires_at is null or expires_at > clock_timestamp())
        order by id desc limit 20
        "#,
        id as _,
    )
    .fetch_all(db)
    .await?;
    let kept = rows.into_iter().filter_map(|row| {
        let kept = match (row.sealed, row.sha256) {
            (Some(sealed), _) => Kept::Sealed(sealed),
            (None, Some(sha256)) => Kept::Sha256(sha256),
            // A constraint of the table keeps one of them there.
            (None, None) => return None,
        };
        Some((kept, row.expires_at.map(Time::to_jiff)))
    });
    Ok(kept.collect())
}

/// Gives a trigger a secret in place of those it has, which go on for `grace`.
pub async fn put(
    db: impl PgExecutor<'_>,
    id: TriggerId,
    kept: Kept,
    grace: Duration,
) -> Result<()> {
    let (sealed, sha256) = match kept {
        Kept::Sealed(sealed) => (Some(sealed), None),
        Kept::Sha256(sha256) => (None, Some(sha256)),
    };
    sqlx::query!(
        r#"
        with old as (
            update triggers.secret
            set expires_at =
                least(expires_at, clock_timestamp() + make_interval(secs => $5))
            where trigger_id = $2 and (expires_at is null or expires_at > clock_timestamp())
        ), gone as (
            delete from triggers.secret where trigger_id = $2 and expires_at <= clock_timestamp()
        )
        insert into triggers.secret (id, trigger_id, sealed, sha256) values ($1, $2, $3, $4)
        "#,
        SecretId::new() as _,
        id as _,
        sealed,
        sha256,
        grace.as_secs_f64(),
    )
    .execute(db)
    .await?;
    Ok(())
}
