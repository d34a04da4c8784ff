//! A catalogue that is given, that changes, and that is wrong.

use std::time::Duration;

use proto::models::v1 as pb;
use sqlx::PgPool;
use tokio::time::{Instant, sleep};

use crate::world::{World, script};

const CATALOGUE: &str = include_str!("../../catalogue.json");

#[sqlx::test(migrations = false)]
async fn a_catalogue_that_changes_is_taken_without_a_restart(db: PgPool) {
    let mut world = World::with_catalogue(db, |_, _| CATALOGUE.to_owned()).await;
    let directory = world.directory().to_owned();
    let write = |text: String| {
        // As Kubernetes does it: nobody sees half a file.
        std::fs::write(directory.join("next"), text).unwrap();
        std::fs::rename(directory.join("next"), directory.join("catalogue.json")).unwrap();
    };
    // An answer that is under way keeps the catalogue that it began with.
    let mut answer = world.begin(script("say Hello\ndelay 300ms\nsay again")).await;
    world.until_text(&mut answer).await;

    write(CATALOGUE.replace("\"small\"", "\"tiny\""));
    wait_for(&mut world, "scripted/tiny").await;
    assert!(World::rest(answer).await.contains("finished stop scripted/demo"));

    write("{".to_owned());
    sleep(Duration::from_secs(3)).await;
    assert!(has(&mut world, "scripted/tiny").await, "a wrong file changed something");
    write(CATALOGUE.to_owned());
    wait_for(&mut world, "scripted/small").await;
}

async fn wait_for(world: &mut World, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !has(world, name).await {
        assert!(Instant::now() < deadline, "{name} never came");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn has(world: &mut World, name: &str) -> bool {
    world.models().await.iter().any(|model| model.model == name)
}

#[sqlx::test(migrations = false)]
async fn a_tenant_sees_and_uses_what_its_policy_permits(db: PgPool) {
    let mut world = World::with_catalogue(db, |_, tenant| {
        let denied = r#"{"deny": ["scripted/demo"]}"#;
        let tenants = format!(r#""tenants": {{"{tenant}": {denied}}}, "models""#);
        CATALOGUE.replacen("\"models\"", &tenants, 1)
    })
    .await;
    let models = world.models().await;
    assert_eq!(models.iter().map(|model| &*model.model).collect::<Vec<_>>(), ["scripted/small"]);
    let answer = world.play("say hi").await;
    assert!(answer.contains("\"reason\":\"policy\""), "{answer}");
    assert!(answer.contains("error FailedPrecondition REASON_ROUTING_NOT_POSSIBLE"), "{answer}");
    let target = pb::Target { profile: "chat".to_owned(), ..pb::Target::default() };
    let request = pb::GenerateRequest { target: Some(target), ..script("say hi") };
    let answer = world.generate(request).await;
    assert!(answer.contains("routing.single_candidate"), "{answer}");
    assert!(answer.contains("finished stop scripted/small"), "{answer}");
}
