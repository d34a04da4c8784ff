//! Limits under fire: many callers at two processes of the service, callers that hang up, and a
//! Redis that forgets. How many calls were made is counted by the one who is called. It counts for
//! the whole process, so that there is one test here and no other.

#![allow(clippy::unwrap_used, reason = "a test that is surprised fails")]

mod restart;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use chassis::{Auth, Caller, Peer};
use clap::Parser as _;
use models::Config;
use proto::models::v1::{
    self as pb, generate_response::Item, limit_service_client::LimitServiceClient,
    model_service_client::ModelServiceClient,
};
use serde_json::Value;
use sqlx::{ConnectOptions as _, PgPool};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

/// The scripted model counts for the whole process, so tests take turns.
static TURN: Mutex<()> = Mutex::const_new(());

const CLIENTS: usize = 64;
const CALLS: usize = 5;
const LIMIT: i64 = 5;

/// One process of the service, as its callers see it.
#[derive(Clone)]
struct Replica {
    peer: Peer,
    caller: Caller,
    health: String,
}

impl Replica {
    async fn start(db: &PgPool, tenant: &str, stop: &CancellationToken) -> Replica {
        Replica::with(db, tenant, &std::env::var("REDIS_URL").unwrap(), stop).await
    }

    async fn with(db: &PgPool, tenant: &str, redis: &str, stop: &CancellationToken) -> Replica {
        let database = db.connect_options().to_url_lossy().to_string();
        let health =
            TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
        let config = Config::parse_from([
            "models",
            "--database-url",
            &database,
            "--redis-url",
            redis,
            "--auth-internal-secret",
            "a secret that only tests know about",
            "--lease",
            "3",
            "--metrics-listen",
            &health,
        ]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let auth = Auth::new("tests", &config.chassis.auth, db.clone()).await.unwrap();
        let peer = Peer::new("models", &url, &config.chassis.tls, &auth).unwrap();
        let caller = Caller::service(tenant.parse().unwrap(), "ada");
        tokio::spawn(models::serve(config, listener, stop.clone()));
        Replica { peer, caller, health }
    }

    async fn generate(&self, text: &str) -> Result<Streaming<pb::GenerateResponse>, Status> {
        let kind = Some(pb::content::Kind::Text(format!("#!script\n{text}")));
        let role = pb::message::Role::User.into();
        let message = pb::Message { role, content: vec![pb::Content { kind }] };
        let request = pb::GenerateRequest {
            session_id: "ses_1".into(),
            prompt: Some(pb::Prompt { messages: vec![message], ..pb::Prompt::default() }),
            target: Some(pb::Target { model: "scripted/demo".into(), ..pb::Target::default() }),
            attempt: 1,
            ..pb::GenerateRequest::default()
        };
        let mut client = ModelServiceClient::new(self.peer.channel());
        Ok(client.generate(self.peer.request(&self.caller, request)).await?.into_inner())
    }

    async fn put_limit(&self, value: i64, queue_ms: i32) {
        self.put_limit_of("concurrent_streams", value, queue_ms).await;
    }

    async fn put_limit_of(&self, limit: &str, value: i64, queue_ms: i32) {
        let limit = pb::Limit {
            limit: limit.into(),
            scope: "tenant".into(),
            value,
            queue_ms,
            ..pb::Limit::default()
        };
        let request = pb::PutLimitRequest { limit: Some(limit) };
        let mut client = LimitServiceClient::new(self.peer.channel());
        client.put_limit(self.peer.request(&self.caller, request)).await.unwrap();
    }

    async fn used(&self) -> i64 {
        let request = self.peer.request(&self.caller, pb::ListLimitsRequest::default());
        let mut client = LimitServiceClient::new(self.peer.channel());
        client.list_limits(request).await.unwrap().into_inner().limits[0].used
    }

    /// What `/health` says.
    async fn health(&self) -> Value {
        let mut stream = TcpStream::connect(&self.health).await.unwrap();
        let request =
            format!("GET /health HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.health);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let body = &answer[answer.find('{').unwrap()..=answer.rfind('}').unwrap()];
        serde_json::from_str(body).unwrap()
    }
}

#[sqlx::test(migrations = false)]
async fn no_call_too_many_is_made_and_none_is_held_for_ever(db: PgPool) {
    let _turn = TURN.lock().await;
    chassis::database::MIGRATIONS.run(&db).await.unwrap();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let tenant = format!("fire-{}", std::process::id());
    let replicas =
        [Replica::start(&db, &tenant, &stop).await, Replica::start(&db, &tenant, &stop).await];
    replicas[0].put_limit(LIMIT, 30_000).await;

    let left = Arc::new(AtomicUsize::new(CLIENTS * CALLS));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (replica, left) = (replicas[client % 2].clone(), left.clone());
        clients.spawn(async move {
            for call in 0..CALLS {
                // Every third hangs up: before it is admitted, or in the middle of the answer.
                let patience = match (client + call) % 6 {
                    0 => Some(Duration::from_millis(40)),
                    3 => Some(Duration::from_millis(400)),
                    _ => None,
                };
                match patience {
                    Some(patience) => drop(timeout(patience, complete(&replica)).await),
                    None => complete(&replica).await,
                }
                left.fetch_sub(1, SeqCst);
            }
        });
    }
    // Redis forgets again and again, and everything goes on.
    let mut forgotten = 0;
    while left.load(SeqCst) > CLIENTS {
        sleep(Duration::from_millis(700)).await;
        forget(&tenant).await;
        forgotten += 1;
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    assert!(forgotten >= 2, "it went too fast to forget anything");

    let seen = replicas[0].health().await;
    assert_eq!(seen["details"]["scripted"]["peak"], LIMIT, "{seen}");
    assert!(
        seen["details"]["scripted"]["asked"].as_i64().unwrap() >= (CLIENTS * CALLS / 2) as i64,
        "{seen}"
    );

    // Nothing is left over: in the ledger, in Redis, or in the processes.
    eventually(async || replicas[0].used().await == 0).await;
    eventually(async || held(&tenant).await.is_empty()).await;
    for replica in &replicas {
        eventually(async || replica.health().await["details"]["limits"]["in_use"] == 0).await;
    }

    // And there is room for exactly as many as before.
    replicas[0].put_limit(LIMIT, 0).await;
    let mut open = Vec::new();
    for call in 0..LIMIT as usize {
        let mut answer = replicas[call % 2].generate("say hi\nhang").await.unwrap();
        until_text(&mut answer).await.unwrap();
        open.push(answer);
    }
    for replica in &replicas {
        let mut answer = replica.generate("say hi").await.unwrap();
        assert_eq!(until_text(&mut answer).await.unwrap_err().code(), Code::ResourceExhausted);
    }

    // What Redis forgot is settled also where nobody calls any more.
    forget(&tenant).await;
    drop(open);
    for replica in &replicas {
        eventually(async || replica.health().await["details"]["limits"]["in_use"] == 0).await;
    }
    eventually(async || held(&tenant).await.is_empty()).await;
}

/// The books are bounded, so what stays in them for nothing would be in everybody's way some day.
#[sqlx::test(migrations = false)]
async fn without_redis_the_books_have_what_runs_and_nothing_else(db: PgPool) {
    let _turn = TURN.lock().await;
    chassis::database::MIGRATIONS.run(&db).await.unwrap();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let tenant = format!("away-{}", std::process::id());
    // Nobody listens there, and nobody can.
    let away = Replica::with(&db, &tenant, "redis://127.0.0.1:1", &stop).await;
    let in_use = async || away.health().await["details"]["limits"]["in_use"].as_i64();

    // Nothing governs this one.
    let mut open = away.generate("say hi\nhang").await.unwrap();
    until_text(&mut open).await.unwrap();
    assert_eq!(in_use().await, Some(1));
    drop(open);
    eventually(async || in_use().await == Some(0)).await;

    Replica::start(&db, &tenant, &stop).await.put_limit(LIMIT, 0).await;
    eventually(async || {
        let mut answer = away.generate("say hi").await.unwrap();
        until_text(&mut answer).await.is_err_and(|status| status.code() == Code::Unavailable)
    })
    .await;
    eventually(async || in_use().await == Some(0)).await;
}

/// Counting takes as long as it takes, and whoever does it keeps it.
#[sqlx::test(migrations = false)]
async fn a_ledger_that_is_slow_to_read_is_read_all_the_same(db: PgPool) {
    let _turn = TURN.lock().await;
    chassis::database::MIGRATIONS.run(&db).await.unwrap();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let tenant = format!("slow-{}", std::process::id());
    let replica = Replica::start(&db, &tenant, &stop).await;
    complete(&replica).await;
    // Longer than a builder may be silent.
    let slow = "alter table models.rule rename to quick_rule; \
        create function models.slow_rule() returns setof models.quick_rule language plpgsql as \
        'begin perform pg_sleep(6); return query select * from models.quick_rule; end'; \
        create view models.rule as select * from models.slow_rule()";
    sqlx::raw_sql(slow).execute(&db).await.unwrap();
    forget(&tenant).await;
    timeout(Duration::from_secs(15), complete(&replica)).await.unwrap();
}

/// Asks until there is a whole answer.
async fn complete(replica: &Replica) {
    loop {
        let answer = async {
            let mut answer = replica.generate("pace 4ms\nrepeat 10 word").await?;
            while answer.message().await?.is_some() {}
            Ok::<_, Status>(())
        };
        match answer.await {
            Ok(()) => return,
            // Its turn did not come, or the counters are being counted.
            Err(status) if matches!(status.code(), Code::ResourceExhausted | Code::Unavailable) => {
                sleep(Duration::from_millis(50)).await;
            }
            Err(status) => panic!("{status:?}"),
        }
    }
}

async fn until_text(answer: &mut Streaming<pb::GenerateResponse>) -> Result<(), Status> {
    while !matches!(answer.message().await?.unwrap().item, Some(Item::Text(_))) {}
    Ok(())
}

async fn redis() -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(std::env::var("REDIS_URL").unwrap()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// Everything of a tenant at once, as a Redis that lost everything would have it.
async fn forget(tenant: &str) {
    let script = "for _, key in ipairs(redis.call('keys', ARGV[1])) do redis.call('del', key) end";
    let pattern = format!("windlass:models:{{{tenant}}}:*");
    let script = redis::Script::new(script);
    let _: () = script.arg(pattern).invoke_async(&mut redis().await).await.unwrap();
}

async fn held(tenant: &str) -> HashMap<String, String> {
    let key = format!("windlass:models:{{{tenant}}}:held");
    redis::cmd("HGETALL").arg(key).query_async(&mut redis().await).await.unwrap()
}

async fn eventually(condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !condition().await {
        assert!(Instant::now() < deadline, "it never happened");
        sleep(Duration::from_millis(50)).await;
    }
}
