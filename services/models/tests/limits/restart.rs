//! A Redis that keeps a file comes back with what it had when that was written.

use std::process::Stdio;

use tokio::process::{Child, Command};

use super::*;

/// A Redis of the test's own, with a file.
struct Keeper {
    port: u16,
    directory: tempfile::TempDir,
    process: Child,
}

impl Keeper {
    async fn start() -> Keeper {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let directory = tempfile::tempdir().unwrap();
        let process = Keeper::process(port, &directory);
        let keeper = Keeper { port, directory, process };
        keeper.ready().await;
        keeper
    }

    async fn restart(&mut self) {
        self.kill().await;
        self.start_again().await;
    }

    async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    async fn start_again(&mut self) {
        self.process = Keeper::process(self.port, &self.directory);
        self.ready().await;
    }

    fn process(port: u16, directory: &tempfile::TempDir) -> Child {
        Command::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1", "--dir"])
            .arg(directory.path())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    async fn ready(&self) {
        eventually(async || self.tell("PING").await.is_ok()).await;
    }

    async fn tell(&self, command: &str) -> redis::RedisResult<()> {
        self.ask(redis::cmd(command)).await
    }

    async fn ask<T: redis::FromRedisValue>(&self, command: redis::Cmd) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        command.query_async(&mut connection).await
    }
}

#[sqlx::test(migrations = false)]
async fn counters_that_a_restarted_redis_remembers_are_not_believed(db: PgPool) {
    let _turn = TURN.lock().await;
    chassis::database::MIGRATIONS.run(&db).await.unwrap();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let mut keeper = Keeper::start().await;
    let replica = Replica::with(&db, "keeper", &keeper.url(), &stop).await;
    replica.put_limit(LIMIT, 0).await;
    complete(&replica).await;
    eventually(async || replica.health().await["details"]["limits"]["in_use"] == 0).await;
    // From here on it remembers that nothing is under way.
    keeper.tell("SAVE").await.unwrap();

    let mut open = Vec::new();
    for _ in 0..LIMIT {
        let mut answer = replica.generate("say hi\nhang").await.unwrap();
        until_text(&mut answer).await.unwrap();
        open.push(answer);
    }
    keeper.restart().await;

    eventually(async || {
        let mut answer = replica.generate("say hi").await.unwrap();
        let refused = until_text(&mut answer).await.expect_err("there was no room for it");
        // It is away for a moment, and then it is counted anew.
        assert!(matches!(refused.code(), Code::Unavailable | Code::ResourceExhausted), "{refused}");
        refused.code() == Code::ResourceExhausted
    })
    .await;
    assert_eq!(replica.used().await, LIMIT);
    drop(open);
    eventually(async || replica.health().await["details"]["limits"]["in_use"] == 0).await;
    assert_eq!(replica.used().await, 0);
}

/// A call that was admitted without Redis, and that Redis has counted since, is one of its own.
#[sqlx::test(migrations = false)]
async fn a_call_that_redis_has_counted_since_is_settled_there(db: PgPool) {
    let _turn = TURN.lock().await;
    chassis::database::MIGRATIONS.run(&db).await.unwrap();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let mut keeper = Keeper::start().await;
    let replica = Replica::with(&db, "keeper", &keeper.url(), &stop).await;
    let sees_redis = async || replica.health().await["details"]["limits"]["redis"] == true;
    complete(&replica).await;

    keeper.kill().await;
    eventually(async || !sees_redis().await).await;
    // Nothing governs it yet.
    let mut open = replica.generate("say hi\nhang").await.unwrap();
    until_text(&mut open).await.unwrap();
    keeper.start_again().await;
    eventually(sees_redis).await;
    replica.put_limit_of("tokens_per_day", 1_000_000, 0).await;
    complete(&replica).await;

    // It is away once more, and nobody calls meanwhile.
    let mut pause = redis::cmd("CLIENT");
    pause.arg("PAUSE").arg(9_000);
    let () = keeper.ask(pause).await.unwrap();
    eventually(async || !sees_redis().await).await;
    drop(open);
    eventually(sees_redis).await;
    eventually(async || replica.health().await["details"]["limits"]["in_use"] == 0).await;

    let mut held = redis::cmd("HLEN");
    held.arg("windlass:models:{keeper}:held");
    let held: i64 = keeper.ask(held).await.unwrap();
    assert_eq!(held, 0);
    let day = jiff::Timestamp::now().strftime("%Y%m%d").to_string();
    let mut counters = redis::cmd("HVALS");
    counters.arg(format!("windlass:models:{{keeper}}:day:{day}"));
    let counted: Vec<i64> = keeper.ask(counters).await.unwrap();
    assert_eq!(counted, [replica.used().await]);
}
