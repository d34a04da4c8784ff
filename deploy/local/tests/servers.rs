//! What the private servers promise to those who test on them.

use std::{fs::Permissions, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use local::Servers;
use redis::AsyncCommands;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::{
    process::Command,
    time::{sleep, timeout},
};

#[tokio::test]
async fn a_killed_postgres_comes_back_with_its_data() {
    let mut servers = Servers::private().await.unwrap();
    let url = servers.database_url().to_owned();
    let mut db = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("create table note (body text); insert into note values ('kept')")
        .execute(&mut db)
        .await
        .unwrap();

    let postgres = servers.postgres().unwrap();
    let pid = postgres.pid();
    postgres.kill().await.unwrap();
    assert_eq!(postgres.pid(), None);
    assert!(PgConnection::connect(&url).await.is_err());

    postgres.restart().await.unwrap();
    assert_ne!(postgres.pid(), pid);
    let mut db = PgConnection::connect(&url).await.unwrap();
    let body: String =
        sqlx::query_scalar("select body from note").fetch_one(&mut db).await.unwrap();
    assert_eq!(body, "kept");
}

#[tokio::test]
async fn a_killed_redis_comes_back_and_has_forgotten_everything() {
    let mut servers = Servers::private().await.unwrap();
    let client = redis::Client::open(servers.redis_url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    connection.set::<_, _, ()>("note", "lost").await.unwrap();

    let server = servers.redis().unwrap();
    server.kill().await.unwrap();
    assert!(client.get_multiplexed_async_connection().await.is_err());

    server.restart().await.unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    assert_eq!(connection.get::<_, Option<String>>("note").await.unwrap(), None);
}

#[tokio::test]
async fn servers_started_in_parallel_do_not_meet() {
    let (one, two) = tokio::join!(Servers::private(), Servers::private());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.database_url(), two.database_url());
    assert_ne!(one.redis_url(), two.redis_url());
}

#[tokio::test]
async fn a_directory_can_be_used_again() {
    let dir = scratch();
    let urls = async || {
        let output = with_servers(dir.path(), "echo $DATABASE_URL $REDIS_URL").output().await;
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let (first, second) = (urls().await, urls().await);
    assert!(first.starts_with("postgres://"));
    assert_eq!(first, second);
}

#[tokio::test]
async fn with_servers_passes_the_exit_code_on() {
    let dir = scratch();
    for code in [0, 7] {
        let status = with_servers(dir.path(), &format!("exit {code}")).status().await.unwrap();
        assert_eq!(status.code(), Some(code));
    }
}

#[tokio::test]
async fn servers_die_with_the_one_who_started_them() {
    // The command kills its parent, `with-servers`, in the rudest way there is.
    let dir = scratch();
    let rude = "echo $DATABASE_URL; kill -9 $PPID";
    let output = with_servers(dir.path(), rude).output().await.unwrap();
    assert!(!output.status.success());
    let url = String::from_utf8(output.stdout).unwrap();

    let gone = async {
        while PgConnection::connect(url.trim()).await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), gone).await.unwrap();
}

/// `with-servers` as a stranger to the servers of the run that this test is part of.
fn with_servers(dir: &Path, script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_with-servers"));
    command.env_remove("DATABASE_URL").env_remove("REDIS_URL");
    command.arg("--dir").arg(dir).args(["--", "sh", "-c", script]);
    command
}

/// A directory that the user Postgres runs as can walk through.
fn scratch() -> TempDir {
    tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o711))
        .tempdir()
        .expect("a directory")
}
