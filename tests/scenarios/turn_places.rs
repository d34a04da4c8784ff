use local::{Fleet, Service};
use proto::session::v1::session::Status;
use tests::{World, text_of};

/// Two seconds.
const SLOW: &str = "pace 200ms\nrepeat 10 word";

/// A process with four places, of which a tenant may have three.
#[tokio::test]
async fn nobody_waits_for_the_turns_of_another() {
    let plan = Fleet::plan().env_of(Service::Session, "MAX_TURNS", "4");
    let mut world = World::planned(plan).await;
    let (client, other) = (world.client("acme").await, world.client("umbrella").await);
    let mut sessions = Vec::new();
    for _ in 0..9 {
        let session = client.create_session().await;
        session.submit(SLOW).await;
        sessions.push(session);
    }
    let events = other.create_session().await.run("say At once.").await;
    assert_eq!(text_of(&events), "At once.");
    let mut waiting = 0;
    for session in &sessions {
        waiting += usize::from(session.get().await.status() != Status::Idle);
    }
    assert!(waiting > 3, "all but {waiting} were done before");

    // And each of those has its turn.
    for session in &sessions {
        session
            .eventually(async || (session.get().await.status() == Status::Idle).then_some(()))
            .await;
    }
}
