use chassis::Tenant;
use jiff::Timestamp;
use jiff_sqlx::{Timestamp as Time, ToSqlx as _};
use sqlx::{PgConnection, PgExecutor, PgTransaction, types::Json};

use crate::{
    error::{Error, Result},
    ids::TriggerId,
    schedule::Due,
    trigger::{Definition, Source, Status, TargetSession, Trigger},
};

/// A trigger with what people want to know about it.
#[derive(Debug, Clone)]
pub struct Shown {
    pub trigger: Trigger,
    pub next_fire: Option<Timestamp>,
    pub last_fire: Option<Timestamp>,
}

/// A trigger that is to be stored.
pub struct NewTrigger<'a> {
    pub trigger: &'a Trigger,
    pub request_id: &'a str,
    pub request_digest: &'a str,
    pub due: Option<Due>,
}

/// What creating a trigger came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Created {
    Now,
    /// The same request was answered before.
    Before(TriggerId),
}

/// Stores a trigger, once for each request id.
pub async fn create(db: &mut PgConnection, new: &NewTrigger<'_>) -> Result<Created> {
    // Who finds neither the row nor a place for it came while somebody else stored it: the next
    // statement sees it.
    for _ in 0..3 {
        if let Some(created) = try_create(db, new).await? {
            return Ok(created);
        }
    }
    Err(Error::Corrupt("a trigger that is neither there nor not there"))
}

async fn try_create(db: &mut PgConnection, new: &NewTrigger<'_>) -> Result<Option<Created>> {
    let NewTrigger { trigger, request_id, request_digest, due } = new;
    let created = trigger.created_at.to_sqlx();
    let row = sqlx::query!(
        r#"
        with new as (
            insert into triggers.trigger (id, tenant_id, subject, request_id, request_digest, source,
                definition, session_id, status, expires_at, created_at, updated_at)
            values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11)
            on conflict (tenant_id, request_id) do nothing
            returning id
        ), due as (
            insert into triggers.due (trigger_id, fire_at)
            select id, $12::timestamptz from new where $12::timestamptz is not null
        )
        select id as "id!: TriggerId", true as "new!", '' as "digest!" from new
        union all
        select id, false, request_digest from triggers.trigger where tenant_id = $2 and request_id = $4
        "#,
        trigger.id as _,
        &trigger.tenant as _,
        trigger.subject,
        request_id,
        request_digest,
        trigger.source as _,
        Json(&trigger.definition) as _,
        session_id(&trigger.definition),
        trigger.status as _,
        trigger.expires_at.map(|time| time.to_sqlx()) as _,
        created as _,
        due.map(|due| due.at.to_sqlx()) as _,
    )
    .fetch_optional(db)
    .await?;
    match row {
        Some(row) if row.new => Ok(Some(Created::Now)),
        Some(row) if row.digest == *request_digest => Ok(Some(Created::Before(row.id))),
        Some(_) => Err(Error::RequestIdReused((*request_id).to_owned())),
        None => Ok(None),
    }
}

fn session_id(definition: &Definition) -> Option<&str> {
    match &definition.target.session {
        TargetSession::Id(id) => Some(id),
        TargetSession::New | TargetSession::Key(_) => None,
    }
}

struct Row {
    id: TriggerId,
    tenant: Tenant,
    subject: String,
    source: Source,
    definition: Json<Definition>,
    status: Status,
    created_at: Time,
    expires_at: Option<Time>,
    next_fire: Option<Time>,
    last_fire: Option<Time>,
}

impl From<Row> for Shown {
    fn from(row: Row) -> Shown {
        Shown {
            trigger: Trigger {
                id: row.id,
                tenant: row.tenant,
                subject: row.subject,
                source: row.source,
                definition: row.definition.0,
                status: row.status,
                created_at: row.created_at.to_jiff(),
                expires_at: row.expires_at.map(Time::to_jiff),
            },
            next_fire: row.next_fire.map(Time::to_jiff),
            last_fire: row.last_fire.map(Time::to_jiff),
        }
    }
}

/// A trigger of the tenant.
pub async fn get(db: impl PgExecutor<'_>, tenant: &Tenant, id: TriggerId) -> Result<Shown> {
    let row = sqlx::query_as!(
        Row,
        r#"
        select t.id as "id: _", t.tenant_id as "tenant: _", t.subject, t.source as "source: _",
            t.definition as "definition: _", t.status as "status: _", t.created_at as "created_at: _",
            t.expires_at as "expires_at: _", d.fire_at as "next_fire?: _",
            (select f.fired_at from triggers.firing f
             where f.trigger_id = t.id and f.status <> 'dropped' order by f.id desc limit 1) as "last_fire?: _"
        from triggers.trigger t left join triggers.due d on d.trigger_id = t.id
        where t.id = $1 and t.tenant_id = $2
        "#,
        id as _,
        tenant as _,
    )
    .fetch_optional(db)
    .await?;
    row.map(Shown::from).ok_or_else(|| Error::TriggerNotFound(id.to_string()))
}

/// A trigger whoever it belongs to, for those who know it by its address.
pub async fn find(db: impl PgExecutor<'_>, id: TriggerId) -> Result<Option<Trigger>> {
    let row = sqlx::query_as!(
        Row,
        r#"
        select id as "id: _", tenant_id as "tenant: _", subject, source as "source: _",
            definition as "definition: _", status as "status: _", created_at as "created_at: _",
            expires_at as "expires_at: _", null::timestamptz as "next_fire?: _", null::timestamptz as "last_fire?: _"
        from triggers.trigger where id = $1
        "#,
        id as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|row| Shown::from(row).trigger))
}

/// A tenant's triggers, newest first.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: Option<&str>,
    before: Option<TriggerId>,
    limit: i64,
) -> Result<Vec<Shown>> {
    let rows = sqlx::query_as!(
        Row,
        r#"
        select t.id as "id: _", t.tenant_id as "tenant: _", t.subject, t.source as "source: _",
            t.definition as "definition: _", t.status as "status: _", t.created_at as "created_at: _",
            t.expires_at as "expires_at: _", d.fire_at as "next_fire?: _",
            (select f.fired_at from triggers.firing f
             where f.trigger_id = t.id and f.status <> 'dropped' order by f.id desc limit 1) as "last_fire?: _"
        from triggers.trigger t left join triggers.due d on d.trigger_id = t.id
        where t.tenant_id = $1 and ($2::text is null or t.session_id = $2) and ($3::text is null or t.id < $3)
        order by t.id desc limit $4
        "#,
        tenant as _,
        session_id,
        before as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(Shown::from).collect())
}

/// A trigger that nobody fires or changes meanwhile, and when it is due or was when it was paused.
pub async fn lock(
    db: &mut PgTransaction<'_>,
    tenant: &Tenant,
    id: TriggerId,
) -> Result<(Trigger, Option<Timestamp>)> {
    // The row of what is due first, see the table.
    let due = sqlx::query_scalar!(
        r#"
        select d.fire_at as "fire_at: Time" from triggers.due d
        where d.trigger_id = $1
            and exists (select from triggers.trigger t where t.id = d.trigger_id and t.tenant_id = $2)
        for update of d
        "#,
        id as _,
        tenant as _,
    )
    .fetch_optional(&mut **db)
    .await?;
    let row = sqlx::query_as!(
        Row,
        r#"
        select id as "id: _", tenant_id as "tenant: _", subject, source as "source: _",
            definition as "definition: _", status as "status: _", created_at as "created_at: _",
            expires_at as "expires_at: _", held_at as "next_fire?: _", null::timestamptz as "last_fire?: _"
        from triggers.trigger where id = $1 and tenant_id = $2 for update
        "#,
        id as _,
        tenant as _,
    )
    .fetch_optional(&mut **db)
    .await?;
    let shown = row.map(Shown::from).ok_or_else(|| Error::TriggerNotFound(id.to_string()))?;
    Ok((shown.trigger, due.map(Time::to_jiff).or(shown.next_fire)))
}

/// Replaces what is stored of a locked trigger. `due` is when it fires next, or, if it is paused,
/// what it would have fired.
pub async fn replace(
    db: &mut PgTransaction<'_>,
    trigger: &Trigger,
    due: Option<Timestamp>,
    now: Timestamp,
) -> Result<()> {
    let paused = trigger.status == Status::Paused;
    let fire_at = due.filter(|_| trigger.status == Status::Active);
    sqlx::query!(
        r#"
        update triggers.trigger
        set subject = $8, definition = $2, session_id = $3, status = $4, expires_at = $5, held_at = $6, updated_at = $7
        where id = $1
        "#,
        trigger.id as _,
        Json(&trigger.definition) as _,
        session_id(&trigger.definition),
        trigger.status as _,
        trigger.expires_at.map(|time| time.to_sqlx()) as _,
        due.filter(|_| paused).map(|time| time.to_sqlx()) as _,
        now.to_sqlx() as _,
        trigger.subject,
    )
    .execute(&mut **db)
    .await?;
    match fire_at {
        Some(fire_at) => {
            sqlx::query!(
                r#"
                insert into triggers.due (trigger_id, fire_at) values ($1, $2)
                on conflict (trigger_id) do update set fire_at = excluded.fire_at
                "#,
                trigger.id as _,
                fire_at.to_sqlx() as _,
            )
            .execute(&mut **db)
            .await?;
        }
        None => {
            sqlx::query!("delete from triggers.due where trigger_id = $1", trigger.id as _)
                .execute(&mut **db)
                .await?;
        }
    }
    Ok(())
}

/// Deletes a locked trigger. What it fired stays on record.
pub async fn delete(db: &mut PgTransaction<'_>, id: TriggerId) -> Result<()> {
    sqlx::query!(
        r#"
        with throttle as (delete from triggers.throttle where trigger_id = $1),
            keys as (delete from triggers.session_key where trigger_id = $1)
        delete from triggers.trigger where id = $1
        "#,
        id as _,
    )
    .execute(&mut **db)
    .await?;
    Ok(())
}
