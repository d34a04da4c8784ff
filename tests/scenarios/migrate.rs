use futures::future::join_all;
use local::Service;
use proto::session::v1::subscribe_request::From;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tests::{World, text_of};
use tokio::process::Command;

/// What a pod does before it starts: on an empty database, and again while others serve.
#[tokio::test]
async fn every_service_migrates_and_exits_while_others_serve() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    let serving = world.fleet.database_url().to_owned();
    let (server, name) = serving.rsplit_once('/').unwrap();
    let empty = format!("{server}/{name}_empty");
    let mut connection = PgConnection::connect(&serving).await.unwrap();
    let create = format!("create database {name}_empty template template0");
    connection.execute(AssertSqlSafe(create)).await.unwrap();

    for url in [&empty, &serving] {
        join_all(Service::ALL.map(|service| migrate(service, url))).await;
    }
    let mut fresh = PgConnection::connect(&empty).await.unwrap();
    let found: Vec<String> = sqlx::query_scalar(
        "select schema_name::text from information_schema.schemata where schema_name = any ($1) order by 1",
    )
    .bind(["auth", "models", "session", "tools", "triggers"])
    .fetch_all(&mut fresh)
    .await
    .unwrap();
    assert_eq!(found, ["auth", "models", "session", "tools", "triggers"]);
    fresh.close().await.unwrap();
    let drop = format!("drop database {name}_empty");
    connection.execute(AssertSqlSafe(drop)).await.unwrap();

    let mut events = session.subscribe(From::Live(true)).await;
    let turn = session.submit("say Still here.").await;
    let seen = events.until_ended(&turn.turn_id).await;
    assert_eq!(seen.last().unwrap().r#type, "turn.completed");
}

/// A deployment that is rolled back runs on the schema of the version that it came from.
#[tokio::test]
async fn every_service_starts_on_the_schema_of_a_later_version() {
    let mut world = World::start().await;
    let mut connection = PgConnection::connect(world.fleet.database_url()).await.unwrap();
    for schema in ["auth", "models", "session", "tools", "triggers"] {
        let later = format!(
            "insert into {schema}._migrations values (9999, 'of later', now(), true, '', 0)"
        );
        connection.execute(AssertSqlSafe(later)).await.unwrap();
    }
    let url = world.fleet.database_url().to_owned();
    join_all(Service::ALL.map(|service| migrate(service, &url))).await;
    for service in Service::ALL {
        world.fleet.get(service).restart().await.unwrap();
    }
    let client = world.client("acme").await;
    let seen = client.create_session().await.run("say An old one.").await;
    assert_eq!(text_of(&seen), "An old one.");
}

async fn migrate(service: Service, database_url: &str) {
    let output = Command::new(service.binary().unwrap())
        .arg("migrate")
        .env("DATABASE_URL", database_url)
        .env("REDIS_URL", "redis://127.0.0.1:1")
        .env("AUTH_INTERNAL_SECRET", "not used, but asked for by all services")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{service} cannot migrate: {said}");
}
