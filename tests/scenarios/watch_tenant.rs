use std::time::Duration;

use local::{Fleet, Servers, Service};
use proto::session::v1::{WatchTenantRequest, WatchTenantResponse, watch_tenant_response::Kind};
use tests::{Client, Proxy, Session, World};
use tokio::time::timeout;
use tonic::Streaming;

#[tokio::test]
async fn a_tenant_is_watched_across_replicas() {
    let plan = Fleet::plan().replicas(Service::Session, 2);
    let mut world = World::planned(plan).await;
    // Tenants of its own: news has no database, and other tests share the Redis.
    let one = world.client("watched").await;
    let other = one.at(&mut world.fleet, 1);
    let stranger = world.client("unwatched").await;
    let mut watchers = [watch(&one).await, watch(&other).await];
    let mut strange = watch(&stranger).await;

    // Told by whichever replica runs them, to both.
    let here = one.create_session().await;
    let there = Session { client: other.clone(), ..other.create_session().await };
    let mut turns = Vec::new();
    for (session, script, end) in [
        (&here, "say One.", Kind::TurnCompleted),
        (&there, "say Two.", Kind::TurnCompleted),
        (&here, "fail auth", Kind::TurnFailed),
    ] {
        let events = session.run(script).await;
        let turn_id = events.last().unwrap().turn_id.clone();
        turns.push((session.id.clone(), turn_id, end));
    }
    // Replicas tell independently, so only what happens in one turn has an order.
    for watcher in &mut watchers {
        let mut heard = Vec::new();
        for _ in 0..turns.len() * 2 {
            let news = next(watcher).await;
            assert!(news.time.is_some());
            let kind = news.kind();
            heard.push((news.session_id, news.turn_id, kind));
        }
        for (session_id, turn_id, end) in &turns {
            let of_turn = heard.iter().filter(|(_, of, _)| of == turn_id).cloned();
            let told = |kind| (session_id.clone(), turn_id.clone(), kind);
            assert_eq!(of_turn.collect::<Vec<_>>(), [told(Kind::TurnStarted), told(*end)]);
        }
    }
    let started = here.log().await;
    let started = started.iter().find(|event| event.r#type == "turn.started").unwrap();
    assert_eq!(started.turn_id, turns[0].1);

    // Of others nobody hears.
    let foreign = stranger.create_session().await;
    foreign.run("say Mine.").await;
    assert_eq!(next(&mut strange).await.session_id, foreign.id);

    // A server that stops says so.
    world.fleet.replica(Service::Session, 1).terminate().await.unwrap();
    let ended = timeout(PATIENCE, watchers[1].message()).await.unwrap().unwrap_err();
    assert_eq!(tests::reason(&ended), "REASON_STOPPING");
}

/// A Redis that was parted from us leaves its connections open and says nothing on them.
#[tokio::test]
async fn a_watcher_hears_of_turns_while_redis_is_silent() {
    let servers = Servers::throwaway().await.unwrap();
    let wire = Proxy::to_url(servers.redis_url()).await;
    let plan = Fleet::plan().replicas(Service::Session, 2);
    let plan = plan.detour(Service::Session, 1, "REDIS_URL", wire.address());
    let mut world = World::on(servers, plan).await;
    let client = world.client("silent").await;
    let mut watcher = watch(&client.at(&mut world.fleet, 1)).await;
    let session = client.create_session().await;
    for silent in [false, true, false] {
        match silent {
            true => wire.hold(),
            false => wire.resume(),
        }
        session.run("say Hello.").await;
        for kind in [Kind::TurnStarted, Kind::TurnCompleted] {
            let news = next(&mut watcher).await;
            assert_eq!((news.session_id.as_str(), news.kind()), (session.id.as_str(), kind));
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

async fn watch(client: &Client) -> Streaming<WatchTenantResponse> {
    client.streams().watch_tenant(WatchTenantRequest {}).await.unwrap().into_inner()
}

async fn next(watcher: &mut Streaming<WatchTenantResponse>) -> WatchTenantResponse {
    timeout(PATIENCE, watcher.message()).await.expect("nothing happens").unwrap().unwrap()
}
