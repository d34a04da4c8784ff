use futures::future::try_join_all;
use proto::session::v1::Manifest;
use sqlx::PgPool;

use crate::{
    agent,
    store::agents::{get, put},
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
