//! Brings schemas up to date while others use them.
//!
//! Not with sqlx's own loop: it refuses a schema that a later version has migrated, on which an
//! older one has to run while a deployment is rolled back, and it waits for locks in one go, with
//! everybody who wants the same table in a queue behind it.

use std::time::Duration;

use anyhow::Context as _;
use sqlx::{
    Connection as _, Executor as _, PgConnection, PgPool,
    migrate::{Migrate as _, MigrateError, Migration, Migrator},
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
    connection.execute("set statement_timeout = '10min'").await?;
    connection.execute(TURN).await?;
    let begun = Instant::now();
    while let Err(error) = connection.lock().await {
        let waited = rest(&mut connection, error, begun, BREATH).await;
        waited.context("cannot migrate, because somebody else does and does not end")?;
    }
    for migrations in [&MIGRATIONS, migrations] {
        bring_up_to_date(&mut connection, migrations).await.context("cannot migrate")?;
    }
    connection.unlock().await?;
    Ok(())
}

/// Applies what was not applied. Whatever a later version has applied besides is its own business:
/// it only added, see "a migration" in CONTRIBUTING.md.
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
    let last = migrations.iter().map(|migration| migration.version).max().unwrap_or_default();
    let unknown = |version: i64| version <= last && !migrations.version_exists(version);
    if let Some(one) = applied.iter().find(|one| unknown(one.version)) {
        return Err(MigrateError::VersionMissing(one.version));
    }
    for migration in migrations.iter() {
        match applied.iter().find(|one| one.version == migration.version) {
            Some(one) if one.checksum != migration.checksum => {
                return Err(MigrateError::VersionMismatch(migration.version));
            }
            Some(_) => {}
            None => apply(connection, table, migration).await?,
        }
    }
    Ok(())
}

async fn apply(
    connection: &mut PgConnection,
    table: &str,
    migration: &Migration,
) -> Result<(), MigrateError> {
    // What is no transaction leaves a half behind when it fails, and takes no lock that keeps
    // others from reading and writing. So it waits once, for as long as it takes.
    if migration.no_tx {
        connection.execute("set lock_timeout = '10min'").await?;
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
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else {
        return false;
    };
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code == "55P03" || code == "40P01")
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use sqlx::{AssertSqlSafe, SqlSafeStr as _, migrate::MigrationType};

    use super::*;
    use crate::database::{connect, tests::args};

    /// A service with a table, and a column that it got later.
    fn service() -> Migrator {
        let migrations = ["create table thing (id int)", "alter table thing add column name text"];
        let migration = |(index, sql): (usize, &'static str)| {
            let (version, name) = (index as i64 + 1, Cow::Borrowed("thing"));
            Migration::new(version, name, MigrationType::Simple, sql.into_sql_str(), false)
        };
        Migrator::with_migrations(migrations.into_iter().enumerate().map(migration).collect())
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
}
