//! Brings schemas up to date while others use them.
//!
//! Not with sqlx's own loop: it refuses a schema that a later version has migrated, on which an
//! older one has to run while a deployment is rolled back, and it waits for locks in one go, with
//! everybody who wants the same table in a queue behind it.

use std::{borrow::Cow, time::Duration};

use anyhow::Context as _;
use sqlx::{
    Connection as _, Executor as _, PgConnection, PgPool,
    migrate::{AppliedMigration, Migrate as _, MigrateError, Migration, Migrator},
};
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::MIGRATIONS;

/// How long all of the waiting for one lock may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long a migration waits for a table before it lets those behind it pass, and how long they
/// have for that.
const LOCK: &str = "set lock_timeout = '2s'";
const REST: Duration = Duration::from_secs(3);

/// The same for one's turn. Whoever builds an index concurrently waits for all who wait in a
/// statement, and would wait for ever for somebody who waits for it; so nobody does for as long as
/// it takes Postgres to call that a deadlock, which is a second.
const TURN: &str = "set lock_timeout = '500ms'";
const BREATH: Duration = Duration::from_millis(100);

/// Brings the chassis' own schema and then the service's up to date. Replicas
/// that start together take turns.
pub async fn migrate(db: &PgPool, migrations: &Migrator) -> anyhow::Result<()> {
    // Changing a table may take longer than any call should, so migrations have a connection of
    // their own that is then thrown away.
    let mut connection = db.acquire().await?.detach();
    let ours = [&MIGRATIONS, migrations];
    // All services of a database share one turn, and whoever has it may build an index for minutes.
    // So nobody asks for it who has nothing to do with it.
    if is_up_to_date(&mut connection, ours).await.context("cannot migrate")? {
        return Ok(());
    }
    connection.execute("set statement_timeout = '10min'").await?;
    connection.execute(TURN).await?;
    let begun = Instant::now();
    while let Err(error) = connection.lock().await {
        let waited = rest(&mut connection, error, begun, BREATH).await;
        waited.context("cannot migrate, because somebody else does and does not end")?;
    }
    for migrations in ours {
        bring_up_to_date(&mut connection, migrations).await.context("cannot migrate")?;
    }
    connection.unlock().await?;
    Ok(())
}

async fn is_up_to_date(
    connection: &mut PgConnection,
    ours: [&Migrator; 2],
) -> Result<bool, MigrateError> {
    for migrations in ours {
        let table = &*migrations.table_name;
        let there = sqlx::query_scalar("select to_regclass($1) is not null").bind(table);
        if !there.fetch_one(&mut *connection).await? {
            return Ok(false);
        }
        let applied = connection.list_applied_migrations(table).await?;
        if !missing(migrations, &applied)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Applies what was not applied, which may have changed while we waited for our turn.
async fn bring_up_to_date(
    connection: &mut PgConnection,
    migrations: &Migrator,
) -> Result<(), MigrateError> {
    for schema in migrations.create_schemas.iter() {
        connection.create_schema_if_not_exists(schema).await?;
    }
    let table = &migrations.table_name;
    connection.ensure_migrations_table(table).await?;
    let applied = connection.list_applied_migrations(table).await?;
    for migration in missing(migrations, &applied)? {
        let before = migrations.iter().rfind(|one| one.version < migration.version);
        apply(connection, table, migration, before).await?;
    }
    Ok(())
}

/// What was not applied. Whatever a later version has applied besides is its own business: it only
/// added, see "a migration" in CONTRIBUTING.md.
fn missing<'a>(
    migrations: &'a Migrator,
    applied: &[AppliedMigration],
) -> Result<Vec<&'a Migration>, MigrateError> {
    let last = migrations.iter().map(|migration| migration.version).max().unwrap_or_default();
    let unknown = |version: i64| version <= last && !migrations.version_exists(version);
    if let Some(one) = applied.iter().find(|one| unknown(one.version)) {
        return Err(MigrateError::VersionMissing(one.version));
    }
    let mut missing = Vec::new();
    for migration in migrations.iter() {
        match applied.iter().find(|one| one.version == migration.version) {
            Some(one) if one.checksum != migration.checksum => {
                return Err(MigrateError::VersionMismatch(migration.version));
            }
            Some(_) => {}
            None => missing.push(migration),
        }
    }
    Ok(missing)
}

async fn apply(
    connection: &mut PgConnection,
    table: &str,
    migration: &Migration,
    before: Option<&Migration>,
) -> Result<(), MigrateError> {
    // What is no transaction leaves a half behind when it fails, and takes no lock that keeps
    // others from reading and writing. So it waits once, for as long as it takes.
    if migration.no_tx {
        connection.execute("set lock_timeout = '10min'").await?;
        let Err(error) = connection.apply(table, migration).await else {
            return Ok(());
        };
        // An attempt before this one may have left its index, not valid or not yet noted. The file
        // before drops it, and counts as applied since then; so it is run once more.
        let drops = before.filter(|before| before.no_tx && is_there_already(&error));
        let Some(before) = drops else {
            return Err(error);
        };
        warn!(%error, "somebody began this migration and did not end it, trying again");
        let dropped = connection.execute(before.sql.clone()).await;
        dropped.map_err(|error| MigrateError::ExecuteMigration(error, before.version))?;
        return connection.apply(table, migration).await.map(drop);
    }
    connection.execute(LOCK).await?;
    let begun = Instant::now();
    while let Err(error) = connection.apply(table, migration).await {
        rest(connection, error, begun, REST).await?;
    }
    Ok(())
}

/// Rests where others kept a lock for longer than `lock_timeout`, for the same to be tried again.
/// Every other error is the end.
async fn rest(
    connection: &mut PgConnection,
    error: MigrateError,
    begun: Instant,
    pause: Duration,
) -> Result<(), MigrateError> {
    if !is_locked(&error) || begun.elapsed() > PATIENCE {
        return Err(error);
    }
    warn!(%error, "somebody else holds a lock that a migration needs, trying again");
    // What failed is rolled back with the next statement, and not by sleeping.
    connection.ping().await?;
    sleep(pause).await;
    Ok(())
}

/// Whether Postgres gave up waiting for a lock: `lock_not_available`, or `deadlock_detected`, which is
/// looked for sooner.
fn is_locked(error: &MigrateError) -> bool {
    code(error).is_some_and(|code| code == "55P03" || code == "40P01")
}

/// Whether there is a table or an index of the name that a new one should get: `duplicate_table`.
fn is_there_already(error: &MigrateError) -> bool {
    code(error).is_some_and(|code| code == "42P07")
}

/// What Postgres calls an error.
fn code(error: &MigrateError) -> Option<Cow<'_, str>> {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else {
        return None;
    };
    error.as_database_error()?.code()
}

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, SqlSafeStr as _, migrate::MigrationType};

    use super::*;
    use crate::database::{connect, tests::args};

    /// A service with a table, and a column that it got later.
    fn service() -> Migrator {
        migrator(&["create table thing (id int)", "alter table thing add column name text"])
    }

    /// The same before it got the column.
    fn older() -> Migrator {
        migrator(&["create table thing (id int)"])
    }

    /// A service with a table that got an index later, and then another one.
    fn indexed() -> Migrator {
        migrator(&[
            "create table thing (id int)",
            "-- no-transaction\ndrop index concurrently if exists thing_id",
            "-- no-transaction\ncreate unique index concurrently thing_id on thing (id)",
            "-- no-transaction\ndrop index concurrently if exists thing_id_down",
            "-- no-transaction\ncreate index concurrently thing_id_down on thing (id desc)",
        ])
    }

    fn migrator(migrations: &[&'static str]) -> Migrator {
        let migration = |(index, sql): (usize, &&'static str)| {
            let (version, name) = (index as i64 + 1, Cow::Borrowed("thing"));
            let no_tx = sql.starts_with("-- no-transaction");
            Migration::new(version, name, MigrationType::Simple, sql.into_sql_str(), no_tx)
        };
        Migrator::with_migrations(migrations.iter().enumerate().map(migration).collect())
    }

    /// The indexes that are valid, by name.
    async fn indexes(db: &PgPool) -> Vec<String> {
        let valid = "select indexrelid::regclass::text from pg_index \
                     where indrelid = 'thing'::regclass and indisvalid order by 1";
        sqlx::query_scalar(valid).fetch_all(db).await.unwrap()
    }

    #[sqlx::test(migrations = false)]
    async fn replicas_that_start_together_migrate_once(test: PgPool) {
        test.execute("drop schema if exists auth cascade").await.unwrap();
        let replica = async || {
            let db = connect(&args(&test), "replica").await.unwrap();
            migrate(&db, &service()).await.unwrap();
        };
        tokio::join!(replica(), replica(), replica(), replica());
        let mut connection = test.acquire().await.unwrap();
        for migrations in [&MIGRATIONS, &service()] {
            let applied = connection.list_applied_migrations(&migrations.table_name).await.unwrap();
            assert_eq!(applied.len(), migrations.iter().count());
        }
    }

    #[sqlx::test(migrations = false)]
    async fn who_lacks_nothing_waits_for_nobody(test: PgPool) {
        let db = connect(&args(&test), "replica").await.unwrap();
        let (older, newer) = (older(), service());
        migrate(&db, &older).await.unwrap();

        let mut other = test.acquire().await.unwrap();
        other.lock().await.unwrap();
        let up_to_date = tokio::time::timeout(Duration::from_secs(10), migrate(&db, &older));
        up_to_date.await.expect("it waits for what it has no need of").unwrap();

        let behind = migrate(&db, &newer);
        tokio::pin!(behind);
        tokio::time::timeout(Duration::from_secs(1), &mut behind).await.expect_err("not its turn");
        other.unlock().await.unwrap();
        behind.await.unwrap();
        test.execute("select name from thing").await.unwrap();
    }

    #[sqlx::test(migrations = false)]
    async fn an_older_version_starts_on_what_a_newer_one_migrated(test: PgPool) {
        let db = connect(&args(&test), "replica").await.unwrap();
        migrate(&db, &service()).await.unwrap();
        let table = service().table_name;
        let note = |version: i64| {
            let note = format!("insert into {table} values ({version}, '', now(), true, '', 0)");
            db.execute(AssertSqlSafe(note))
        };
        note(9999).await.unwrap();
        migrate(&db, &service()).await.unwrap();
        // What it should know and does not is another matter.
        note(0).await.unwrap();
        let refused = migrate(&db, &service()).await.unwrap_err();
        assert!(format!("{refused:#}").contains("migration 0 "), "{refused:#}");
    }

    #[sqlx::test(migrations = false)]
    async fn a_migration_that_waits_lets_others_pass(test: PgPool) {
        let db = connect(&args(&test), "replica").await.unwrap();
        test.execute("create table thing (id int)").await.unwrap();
        let mut migrations = service().migrations.into_owned();
        migrations.remove(0);
        let migrations = Migrator::with_migrations(migrations);

        // As a dump does, for as long as it takes.
        let mut dump = test.begin().await.unwrap();
        dump.execute("lock table thing in access share mode").await.unwrap();
        let waiting = async { migrate(&db, &migrations).await.unwrap() };
        let others = async {
            let wait =
                "select count(*) from pg_locks where relation = 'thing'::regclass and not granted";
            while sqlx::query_scalar::<_, i64>(wait).fetch_one(&test).await.unwrap() == 0 {
                sleep(Duration::from_millis(20)).await;
            }
            let read = tokio::time::timeout(Duration::from_secs(10), test.execute("table thing"));
            read.await.expect("nobody can read while a migration waits").unwrap();
            dump.rollback().await.unwrap();
        };
        tokio::join!(waiting, others);
        test.execute("select name from thing").await.unwrap();
    }

    #[sqlx::test(migrations = false)]
    async fn an_index_that_failed_is_made_when_it_can_be(test: PgPool) {
        let db = connect(&args(&test), "replica").await.unwrap();
        migrate(&db, &older()).await.unwrap();
        test.execute("insert into thing values (1), (1)").await.unwrap();
        for _ in 0..2 {
            let refused = migrate(&db, &indexed()).await.unwrap_err();
            assert!(
                format!("{refused:#}").contains("could not create unique index"),
                "{refused:#}"
            );
            assert!(indexes(&test).await.is_empty());
        }
        test.execute("delete from thing").await.unwrap();
        migrate(&db, &indexed()).await.unwrap();
        assert_eq!(indexes(&test).await, ["thing_id", "thing_id_down"]);
    }

    #[sqlx::test(migrations = false)]
    async fn an_index_that_nobody_noted_is_made_again(test: PgPool) {
        let db = connect(&args(&test), "replica").await.unwrap();
        migrate(&db, &indexed()).await.unwrap();
        let forget = format!("delete from {} where version in (3, 5)", indexed().table_name);
        test.execute(AssertSqlSafe(forget)).await.unwrap();
        migrate(&db, &indexed()).await.unwrap();
        assert_eq!(indexes(&test).await, ["thing_id", "thing_id_down"]);
    }
}
