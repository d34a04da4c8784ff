use futures::future::try_join_all;
use proto::session::v1::Manifest;
use sqlx::PgPool;

use crate::{
    agent,
    store::agents::{delete, get, list, put},
};

fn manifest(prompt: &str) -> Manifest {
    Manifest { prompt: prompt.to_owned(), ..Manifest::default() }
}

#[sqlx::test]
async fn the_same_manifest_again_is_no_new_version(db: PgPool) {
    let (tenant, manifest) = ("acme".parse().unwrap(), manifest("be brief"));
    for _ in 0..2 {
        let stored = put(&db, &tenant, "plan", &manifest, &agent::digest(&manifest)).await.unwrap();
        assert_eq!((stored.agent.version, &stored.agent.manifest), (1, &manifest));
    }
    let other = "other".parse().unwrap();
    assert!(get(&db, &other, "plan", 0).await.unwrap().is_none());
}

#[sqlx::test]
async fn manifests_that_are_stored_at_once_get_a_version_each(db: PgPool) {
    let tenant = "acme".parse().unwrap();
    let manifests: Vec<_> = (0..8).map(|number| manifest(&number.to_string())).collect();
    let puts = manifests.iter().map(|manifest| {
        let (db, tenant, digest) = (&db, &tenant, agent::digest(manifest));
        async move { put(db, tenant, "plan", manifest, &digest).await }
    });
    let stored = try_join_all(puts).await.unwrap();
    let mut versions: Vec<_> = stored.iter().map(|stored| stored.agent.version).collect();
    versions.sort_unstable();
    assert_eq!(versions, (1..=8).collect::<Vec<_>>());
}

#[sqlx::test]
async fn a_deleted_agent_is_found_by_its_number_alone(db: PgPool) {
    let tenant = "acme".parse().unwrap();
    for (id, prompt) in [("b", "one"), ("a", "two"), ("b", "three"), ("c", "four")] {
        let manifest = manifest(prompt);
        put(&db, &tenant, id, &manifest, &agent::digest(&manifest)).await.unwrap();
    }
    let listed = async |after: &str, limit| {
        let listed = list(&db, &tenant, after, limit).await.unwrap().into_iter();
        listed.map(|stored| (stored.agent.id, stored.agent.version)).collect::<Vec<_>>()
    };
    let entry = |id: &str, version| (id.to_owned(), version);
    assert_eq!(listed("", 10).await, [entry("a", 1), entry("b", 2), entry("c", 1)]);
    assert_eq!(listed("a", 1).await, [entry("b", 2)]);

    for _ in 0..2 {
        assert!(delete(&db, &tenant, "b").await.unwrap());
    }
    assert!(!delete(&db, &tenant, "d").await.unwrap());
    assert!(!delete(&db, &"other".parse().unwrap(), "a").await.unwrap());
    assert_eq!(listed("", 10).await, [entry("a", 1), entry("c", 1)]);
    assert!(get(&db, &tenant, "b", 0).await.unwrap().is_none());
    assert_eq!(get(&db, &tenant, "b", 2).await.unwrap().unwrap().agent.manifest.prompt, "three");

    // Stored again it is a new version, also when it says the same.
    let manifest = manifest("three");
    let stored = put(&db, &tenant, "b", &manifest, &agent::digest(&manifest)).await.unwrap();
    assert_eq!(stored.agent.version, 3);
}
