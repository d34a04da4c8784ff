//! The way to Postgres, with a deadline on every wait.

mod migrate;

use std::{str::FromStr as _, time::Duration};

use anyhow::Context as _;
use secrecy::{ExposeSecret as _, SecretString};
use sqlx::{
    Connection as _, PgConnection, PgPool, Postgres, Transaction,
    migrate::Migrator,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::time::{Instant, timeout};
use tracing::debug;

pub use migrate::migrate;

use crate::args::seconds;

/// The schema `auth`, which every service reads.
pub static MIGRATIONS: Migrator = sqlx::migrate!();

#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Postgres database that holds everything.
    #[arg(long, env, hide_env_values = true)]
    pub database_url: SecretString,

    /// How many connections to Postgres one process may open.
    #[arg(long, env, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub database_connections: u32,

    /// Seconds after which Postgres gives up on a statement.
    #[arg(long, env, default_value = "15", value_parser = seconds)]
    pub database_statement_timeout: Duration,
}

/// How long a call waits for a free connection before it fails as unavailable.
const ACQUIRE: Duration = Duration::from_secs(5);

/// How long connections may take to end that a Postgres which is away does not answer on.
const GOODBYE: Duration = Duration::from_secs(1);

/// Opens a pool. Postgres shows `application_name` beside each of its connections.
pub async fn connect(args: &Args, application_name: &str) -> anyhow::Result<PgPool> {
    let statement_timeout = args.database_statement_timeout.as_millis().to_string();
    let options = PgConnectOptions::from_str(args.database_url.expose_secret())
        .context("DATABASE_URL is not a Postgres URL")?
        .application_name(application_name)
        .options([
            ("statement_timeout", statement_timeout.as_str()),
            ("lock_timeout", "5s"),
            // A transaction never waits for anything but Postgres; one that does is stuck.
            ("idle_in_transaction_session_timeout", "1s"),
            // Statements look for a few rows by their keys. So a plan is made once and not for every
            // value, it is the one for large tables also while they are small and nobody has counted
            // them, and it is not worth compiling.
            ("plan_cache_mode", "force_generic_plan"),
            ("enable_seqscan", "off"),
            ("jit", "off"),
        ]);
    // The pool asks a connection whether it lives before it hands it out. That is a round trip, and
    // what turns a Postgres that has gone silent into an error within `ACQUIRE`.
    PgPoolOptions::new()
        .max_connections(args.database_connections)
        .acquire_timeout(ACQUIRE)
        .connect_with(options)
        .await
        .context("cannot reach Postgres")
}

/// Ends the pool of a service that has served. Metrics hold on to it for as long as the process lives,
/// and Postgres should not have to find out that nobody is here.
pub async fn close(db: &PgPool) {
    if timeout(GOODBYE, db.close()).await.is_err() {
        debug!("Postgres did not say goodbye within {GOODBYE:?}");
    }
}

/// Begins a transaction that nobody is left in.
///
/// A call ends wherever it is when its caller hangs up, and sqlx forgets a transaction whose
/// beginning ends like that: its connection goes back to the pool inside of it, and what others write
/// there is acknowledged and never committed. So it begins in a task, which ends by itself.
pub async fn begin(
    db: &PgPool,
    statement: &'static str,
) -> sqlx::Result<Transaction<'static, Postgres>> {
    let db = db.clone();
    let beginning = tokio::spawn(async move { db.begin_with(statement).await });
    beginning.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

/// A connection that one task keeps for as long as it works. The pool would ask it whether it lives
/// before each statement and after it; here it is asked when it has rested, and given up when a
/// statement fails or takes too long.
pub struct Own {
    db: PgPool,
    silence: Duration,
    connection: Option<(PgConnection, Instant)>,
}

/// Whoever was fine so recently still is.
const FRESH: Duration = Duration::from_secs(1);

impl Own {
    /// To the same database as the pool, beside it. Postgres itself gives up on statements before
    /// `silence`, which is for a connection on which nothing comes any more.
    pub fn new(db: PgPool, silence: Duration) -> Own {
        Own { db, silence, connection: None }
    }

    pub async fn run<T, E: From<sqlx::Error>>(
        &mut self,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut connection = match self.rested().await {
            Some(connection) => connection,
            None => self.db.acquire().await?.detach(),
        };
        let answer = timeout(self.silence, statement(&mut connection)).await;
        let answer = answer.map_err(|elapsed| sqlx::Error::Io(elapsed.into()))??;
        self.connection = Some((connection, Instant::now()));
        Ok(answer)
    }

    /// The one from before, if it still lives.
    async fn rested(&mut self) -> Option<PgConnection> {
        let (mut connection, used) = self.connection.take()?;
        if used.elapsed() > FRESH {
            // What its largest statement took would be held for ever.
            connection.shrink_buffers();
            timeout(ACQUIRE, connection.ping()).await.ok()?.ok()?;
        }
        Some(connection)
    }
}

/// How long to wait for a statement before its connection is given up.
pub fn silence(args: &Args) -> Duration {
    args.database_statement_timeout + ACQUIRE
}

#[cfg(test)]
mod tests {
    use sqlx::{ConnectOptions as _, Executor as _};

    use super::*;

    pub fn args(db: &PgPool) -> Args {
        Args {
            database_url: db.connect_options().to_url_lossy().to_string().into(),
            database_connections: 2,
            database_statement_timeout: Duration::from_millis(1500),
        }
    }

    #[sqlx::test(migrations = false)]
    async fn every_wait_has_a_deadline(test: PgPool) {
        let db = connect(&args(&test), "models").await.unwrap();
        let setting = async |name: &str| -> String {
            let show = sqlx::query_scalar("select current_setting($1)");
            show.bind(name.to_owned()).fetch_one(&db).await.unwrap()
        };
        assert_eq!(setting("statement_timeout").await, "1500ms");
        assert_eq!(setting("lock_timeout").await, "5s");
        assert_eq!(setting("idle_in_transaction_session_timeout").await, "1s");
        assert_eq!(setting("application_name").await, "models");
    }

    #[sqlx::test(migrations = false)]
    async fn a_transaction_whose_beginning_is_given_up_swallows_nothing(test: PgPool) {
        let mut args = args(&test);
        args.database_connections = 1;
        let db = connect(&args, "session").await.unwrap();
        db.execute("create table kept (number int)").await.unwrap();
        for number in 0..50 {
            // Given up a little later each time: before, while and after Postgres hears of it.
            let given_up = Duration::from_micros(50 * number);
            let _ = tokio::time::timeout(given_up, begin(&db, "begin")).await;
            let insert = sqlx::query("insert into kept values ($1)").bind(number as i32);
            insert.execute(&db).await.unwrap();
            let kept: i64 =
                sqlx::query_scalar("select count(*) from kept").fetch_one(&test).await.unwrap();
            assert_eq!(kept, number as i64 + 1, "an insert was swallowed");
        }
    }

    async fn process(db: &mut PgConnection) -> sqlx::Result<i32> {
        sqlx::query_scalar("select pg_backend_pid()").fetch_one(db).await
    }

    #[sqlx::test(migrations = false)]
    async fn a_connection_of_ones_own_is_kept_until_it_fails(test: PgPool) {
        let db = connect(&args(&test), "triggers").await.unwrap();
        let mut own = Own::new(db, Duration::from_secs(5));
        let first = own.run(process).await.unwrap();
        assert_eq!(own.run(process).await.unwrap(), first);

        let end = sqlx::query("select pg_terminate_backend($1, 5000)").bind(first);
        end.execute(&test).await.unwrap();
        own.run(process).await.unwrap_err();
        assert_ne!(own.run(process).await.unwrap(), first);
    }

    #[sqlx::test(migrations = false)]
    async fn a_connection_of_ones_own_that_rested_is_asked_whether_it_lives(test: PgPool) {
        let db = connect(&args(&test), "triggers").await.unwrap();
        let mut own = Own::new(db, Duration::from_secs(5));
        let first = own.run(process).await.unwrap();
        let end = sqlx::query("select pg_terminate_backend($1, 5000)").bind(first);
        end.execute(&test).await.unwrap();

        tokio::time::sleep(FRESH + Duration::from_millis(100)).await;
        assert_ne!(own.run(process).await.unwrap(), first, "nobody notices");
    }

    #[sqlx::test(migrations = false)]
    async fn a_text_that_cannot_be_stored_is_the_callers_mistake(db: PgPool) {
        for (query, text) in [("select $1::text", "a\0b"), ("select $1::jsonb", r#""a\u0000b""#)] {
            let refused = sqlx::query(query).bind(text).execute(&db).await.unwrap_err();
            let code = crate::database_error(&refused).code();
            assert_eq!(code, tonic::Code::InvalidArgument, "{query}: {refused}");
        }
    }

    #[tokio::test]
    async fn a_proxy_that_hangs_up_says_that_postgres_is_away() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://user:secret@{}/db", listener.local_addr().unwrap());
        let proxy = async {
            loop {
                // Heard and not answered, so that it is an end and no reset.
                let (mut client, _) = listener.accept().await.unwrap();
                let mut request = [0; 8];
                tokio::io::AsyncReadExt::read_exact(&mut client, &mut request).await.unwrap();
            }
        };
        let options = PgConnectOptions::from_str(&url).unwrap();
        let error = tokio::select! {
            connected = options.connect() => connected.unwrap_err(),
            () = proxy => unreachable!("it never ends"),
        };
        assert_eq!(crate::database_error(&error).code(), tonic::Code::Unavailable, "{error}");
    }

    #[tokio::test]
    async fn a_postgres_that_is_not_there_is_an_error_without_its_password() {
        let args = Args {
            database_url: "postgres://user:secret@127.0.0.1:1/db".into(),
            database_connections: 1,
            database_statement_timeout: Duration::from_secs(1),
        };
        let error = connect(&args, "models").await.unwrap_err();
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
}
