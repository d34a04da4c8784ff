use chassis::Auth;
use clap::Parser as _;
use sqlx::{ConnectOptions as _, PgPool};
use tokio::time::timeout;
use tokio_util::sync::DropGuard;

use super::*;
use crate::{bus::Bus, config::Config, flusher::Flusher, store::turns, testing::World};

/// What drives the turns of this world's replica. Nobody but Postgres is there.
async fn host(world: &World) -> (Arc<Host>, DropGuard) {
    let database = world.db.connect_options().to_url_lossy().to_string();
    let secret = "a secret that only tests know about";
    // Nobody listens there, and nobody can.
    let (redis, tools) = ("redis://127.0.0.1:1", "http://127.0.0.1:1");
    let config = Config::parse_from([
        "session",
        "--database-url",
        &database,
        "--auth-internal-secret",
        secret,
        "--redis-url",
        redis,
        "--tools-url",
        tools,
    ]);
    let config = config.serve;
    let (replica, stop) = (world.replica, CancellationToken::new());
    let redis = chassis::Redis::new(&config.chassis.redis).unwrap();
    let auth = Auth::new("session", &config.chassis.auth, world.db.clone()).await.unwrap();
    let bus = Bus::start(redis, replica, stop.clone());
    let silence = Duration::from_secs(20);
    let flusher = Flusher::start(&world.db, &bus, replica, 1, silence, &stop);
    let host = Host::new(replica, world.db.clone(), bus, flusher, &config, &auth).unwrap();
    (Arc::new(host), stop.drop_guard())
}

/// A turn that was claimed just now, of a session that cannot be read any more.
async fn unreadable(world: &World) -> (Claim, Context) {
    let id = world.session().await;
    world.submit(id, "hello").await;
    world.submit(id, "second").await;
    let claimed = turns::claim(&world.db, world.replica, &[id]).await.unwrap().remove(0);
    let hide = "alter table session.chat_parts rename to hidden_parts";
    sqlx::query(hide).execute(&world.db).await.unwrap();
    claimed
}

async fn driven(host: &Arc<Host>, claim: &Claim, context: Context, start: Start) {
    let run = run(host.clone(), claim.clone(), context, None, start, CancellationToken::new());
    timeout(Duration::from_secs(30), run).await.unwrap();
}

async fn reason(world: &World, claim: &Claim) -> String {
    sqlx::query_scalar(
        "select concat_ws(' ', payload ->> 'status', payload ->> 'reason', payload ->> 'message')
         from session.event where session_id = $1 and type = 'turn.failed'",
    )
    .bind(claim.session_id)
    .fetch_one(&world.db)
    .await
    .unwrap()
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_that_ended_its_workers_is_given_up_before_it_is_loaded(db: PgPool) {
    for (start, most) in [(Start::Claimed, 3), (Start::Orphaned, 6)] {
        let world = World::new(db.clone()).await;
        let (host, _stop) = host(&world).await;
        let id = world.session().await;
        world.submit(id, "hello").await;
        let claimed = turns::claim(&world.db, world.replica, &[id]).await.unwrap();
        let (mut claim, context) = claimed.into_iter().next().unwrap();
        claim.attempts = most + 1;
        driven(&host, &claim, context, start).await;
        let given_up =
            format!("failed internal the turn ended its worker {most} times and is given up");
        assert_eq!(reason(&world, &claim).await, given_up);
        assert_eq!(world.state(id).await.status, "error");
        assert_eq!(world.turn_status(id, claim.turn_id).await, "failed");
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_that_cannot_be_read_is_given_up(db: PgPool) {
    let world = World::new(db).await;
    let (host, _stop) = host(&world).await;
    let (claim, context) = unreadable(&world).await;
    driven(&host, &claim, context, Start::Claimed).await;
    assert_eq!(reason(&world, &claim).await, "failed internal database failed");
    let state = world.state(claim.session_id).await;
    assert_eq!((state.status.as_str(), state.queued), ("error", 1));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_that_cannot_be_read_can_be_stopped(db: PgPool) {
    let world = World::new(db).await;
    let (host, _stop) = host(&world).await;
    let (claim, mut context) = unreadable(&world).await;
    let interrupt = Interrupt {
        turn_id: claim.turn_id,
        subject: "bob".to_owned(),
        reason: "enough".to_owned(),
    };
    context.interrupt = Some(interrupt);
    driven(&host, &claim, context, Start::Claimed).await;
    assert_eq!(reason(&world, &claim).await, "cancelled interrupted enough");
    assert_eq!(world.turn_status(claim.session_id, claim.turn_id).await, "cancelled");
    assert_eq!(world.state(claim.session_id).await.status, "ready");
}
