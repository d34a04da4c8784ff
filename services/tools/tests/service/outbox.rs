//! What happened outside of a call, on its way to the session service.

use proto::{
    event::v1::{Event, Payload},
    tools::v1::{
        AcknowledgeFactsRequest, Fact, TakeFactsRequest, acknowledge_facts_request::Through,
        fact_service_client::FactServiceClient,
    },
};
use sqlx::PgPool;

use crate::{
    processes::Shell,
    world::{World, explain},
};

async fn take(world: &World, limit: i32, wait_ms: i32) -> Vec<Fact> {
    let mut client = FactServiceClient::new(world.peer.channel());
    let request = world.peer.request(&world.caller, TakeFactsRequest { limit, wait_ms });
    client.take_facts(request).await.unwrap().into_inner().facts
}

async fn acknowledge(world: &World, session_id: &str, number: i64) {
    let mut client = FactServiceClient::new(world.peer.channel());
    let tenant_id = world.caller.tenant.to_string();
    let through = Through { tenant_id, session_id: session_id.into(), number };
    let request = AcknowledgeFactsRequest { sessions: vec![through] };
    client.acknowledge_facts(world.peer.request(&world.caller, request)).await.unwrap();
}

/// Lets what was taken be taken again, as if its time were over.
async fn expire_leases(db: &PgPool) {
    sqlx::query("update tools.fact set leased_until = now()").execute(db).await.unwrap();
}

fn names(facts: &[Fact]) -> Vec<&str> {
    facts.iter().map(|fact| fact.event.as_ref().unwrap().r#type.as_str()).collect()
}

#[sqlx::test(migrations = false)]
async fn facts_come_in_order_and_until_they_are_acknowledged(db: PgPool) {
    let world = World::start(db.clone()).await;
    let shell = Shell::new(&world);
    let process = shell.start("echo hello").await;
    shell.finish(&process.process_id).await;
    let expected = ["sandbox.applied", "process.started", "process.output", "process.completed"];

    let first = take(&world, 2, 10_000).await;
    assert_eq!(names(&first), expected[..2]);
    // Nothing of this session is for anybody else meanwhile.
    assert_eq!(names(&take(&world, 10, 0).await), [""; 0]);
    expire_leases(&db).await;
    let again = take(&world, 10, 0).await;
    assert_eq!(names(&again), expected);
    assert_eq!(again.iter().map(|fact| fact.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
    for fact in &again {
        let event = fact.event.as_ref().unwrap();
        assert_eq!(
            (&event.session_id, &event.process_id),
            (&shell.session_id, &process.process_id)
        );
        assert_eq!(fact.tenant_id, "acme");
    }

    // Late and repeated acknowledgements harm nobody.
    acknowledge(&world, &shell.session_id, 3).await;
    acknowledge(&world, &shell.session_id, 2).await;
    expire_leases(&db).await;
    assert_eq!(names(&take(&world, 10, 0).await), expected[3..]);
    acknowledge(&world, &shell.session_id, 4).await;
    expire_leases(&db).await;
    assert_eq!(names(&take(&world, 10, 0).await), [""; 0]);
}

#[sqlx::test(migrations = false)]
async fn whoever_waits_is_told(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::new(&world);
    let (facts, process) = tokio::join!(take(&world, 10, 30_000), shell.start("sleep 1000"));
    assert_eq!(names(&facts), ["sandbox.applied", "process.started"]);
    let Some(Event { payload: Some(Payload::ProcessStarted(started)), .. }) = &facts[1].event
    else {
        panic!("{facts:?}")
    };
    assert_eq!((started.command.as_str(), started.pty), ("sleep 1000", false));
    assert_eq!(started.workspace_id, process.workspace_id);
}

#[sqlx::test(migrations = false)]
async fn bad_requests_are_refused(db: PgPool) {
    let world = World::start(db).await;
    let mut client = FactServiceClient::new(world.peer.channel());
    for (limit, wait_ms) in [(-1, 0), (501, 0), (0, -1), (0, 30_001)] {
        let request = world.peer.request(&world.caller, TakeFactsRequest { limit, wait_ms });
        let refusal = explain(&client.take_facts(request).await.unwrap_err());
        assert!(refusal.starts_with("InvalidArgument REASON_INVALID_FIELD"), "{refusal}");
    }
}
