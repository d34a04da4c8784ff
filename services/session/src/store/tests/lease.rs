use sqlx::PgPool;

use crate::{
    ids::SessionId,
    pending::Owner,
    store::{
        replicas::{self, Adopted},
        turns,
    },
    testing::{World, pending, started},
};

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn of_two_replicas_that_claim_one_wins(db: PgPool) {
    let world = World::new(db).await;
    let other = world.another_replica().await;
    for round in 1..=10 {
        let id = world.session().await;
        world.submit(id, "hello").await;
        let ids = [id];
        let (a, b) = tokio::join!(
            turns::claim(&world.db, world.replica, &ids),
            turns::claim(&world.db, other, &ids),
        );
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!(a.len() + b.len(), 1, "round {round}");
        let owner = if b.is_empty() { world.replica } else { other };
        assert_eq!(world.state(id).await.owner, Some(owner));
    }
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn only_what_is_ready_is_claimed(db: PgPool) {
    let world = World::new(db).await;
    let (idle, busy, ready) =
        (world.session().await, world.claimed().await.session_id, world.session().await);
    world.submit(ready, "hello").await;
    assert_eq!(
        turns::ready(&world.db, None, &[], 10).await.unwrap(),
        [(world.tenant.clone(), ready)]
    );
    let ids = [idle, busy, ready, ready, SessionId::new()];
    let claims = turns::claim(&world.db, world.replica, &ids).await.unwrap();
    assert_eq!(claims.iter().map(|(claim, _)| claim.session_id).collect::<Vec<_>>(), [ready]);
    assert_eq!((claims[0].0.epoch, claims[0].0.attempts), (1, 1));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn nobodys_sessions_wait_behind_those_of_another(db: PgPool) {
    let world = World::new(db.clone()).await;
    let other = World { db, tenant: "other".parse().unwrap(), replica: world.replica };
    for _ in 0..9 {
        world.submit(world.session().await, "hello").await;
    }
    let id = other.session().await;
    other.submit(id, "hello").await;
    let (theirs, full) = ((other.tenant.clone(), id), [world.tenant.clone()]);
    let ready = turns::ready(&world.db, None, &[], 4).await.unwrap();
    assert!(ready.len() == 4 && ready.contains(&theirs), "{ready:?}");
    // Whoever was met the last time is met behind the others.
    let again = turns::ready(&world.db, Some(&other.tenant), &[], 4).await.unwrap();
    assert!(again.len() == 4 && again.contains(&theirs), "{again:?}");
    assert_eq!(turns::ready(&world.db, None, &full, 4).await.unwrap(), [theirs]);
    let full = [other.tenant];
    assert_eq!(turns::ready(&world.db, full.first(), &full, 9).await.unwrap().len(), 9);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_dead_replica_neither_counts_nor_claims_nor_adopts(db: PgPool) {
    let world = World::new(db).await;
    let id = world.session().await;
    world.submit(id, "hello").await;
    let orphan = world.claimed().await.session_id;
    let judge = world.another_replica().await;
    assert!(replicas::beat(&world.db, judge).await.unwrap().is_some());

    replicas::leave(&world.db, judge).await.unwrap();
    assert!(replicas::beat(&world.db, judge).await.unwrap().is_none());
    assert!(turns::claim(&world.db, judge, &[id]).await.unwrap().is_empty());
    let adopted = replicas::adopt(&world.db, judge, orphan, world.replica).await.unwrap();
    assert!(matches!(adopted, Adopted::Gone));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn who_has_counted_since_is_not_buried(db: PgPool) {
    let world = World::new(db).await;
    let other = world.another_replica().await;
    let seen = replicas::beat(&world.db, world.replica).await.unwrap().unwrap().remove(0);
    assert_eq!((seen.id, seen.owns, seen.dead), (other, false, false));
    replicas::beat(&world.db, other).await.unwrap();
    assert!(!replicas::bury(&world.db, other, seen.counter).await.unwrap());
    assert!(replicas::bury(&world.db, other, seen.counter + 1).await.unwrap());
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn what_somebody_claims_while_it_is_buried_is_found_by_the_next_heartbeat(db: PgPool) {
    let world = World::new(db).await;
    let judge = world.another_replica().await;
    let id = world.session().await;
    world.submit(id, "hello").await;

    let mut burial = world.db.begin().await.unwrap();
    replicas::leave(&mut *burial, world.replica).await.unwrap();
    world.claim(id).await;
    burial.commit().await.unwrap();
    assert!(turns::claim(&world.db, world.replica, &[id]).await.unwrap().is_empty());

    let peers = replicas::beat(&world.db, judge).await.unwrap().unwrap();
    let buried = peers.iter().find(|peer| peer.id == world.replica).unwrap();
    assert!(buried.dead && buried.owns);
    let adopted = replicas::adopt(&world.db, judge, id, world.replica).await;
    assert!(matches!(adopted.unwrap(), Adopted::Ready));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_that_had_not_begun_goes_back(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let judge = world.another_replica().await;
    replicas::leave(&world.db, world.replica).await.unwrap();
    let adopted = replicas::adopt(&world.db, judge, claim.session_id, world.replica).await;
    assert!(matches!(adopted.unwrap(), Adopted::Ready));

    let state = world.state(claim.session_id).await;
    assert_eq!((state.status.as_str(), state.owner, state.epoch), ("ready", None, 2));
    let (again, _) = turns::claim(&world.db, judge, &[claim.session_id]).await.unwrap().remove(0);
    assert_eq!((again.epoch, again.attempts, again.turn_id), (3, 2, claim.turn_id));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_turn_that_had_begun_is_the_judges_and_its_old_owner_is_refused(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let id = claim.session_id;
    let mut owner = Owner::from(&claim);
    let begin = pending(|pending, now| {
        pending.append(started(), now);
        pending.save_turn(claim.turn_id, &Default::default());
    });
    world.flush(&owner, &begin).await.unwrap();
    owner.flush_no += 1;

    let judge = world.another_replica().await;
    replicas::leave(&world.db, world.replica).await.unwrap();
    let orphans = replicas::orphans(&world.db, world.replica).await.unwrap();
    assert_eq!(orphans.iter().map(|orphan| orphan.session_id).collect::<Vec<_>>(), [id]);
    let Adopted::Begun(adopted, _) =
        replicas::adopt(&world.db, judge, id, world.replica).await.unwrap()
    else {
        panic!("the turn had begun");
    };
    assert_eq!((adopted.epoch, adopted.flush_no), (claim.epoch + 1, owner.flush_no));
    assert_eq!(adopted.attempts, claim.attempts + 1, "whoever dies of it does so for ever");

    let log = world.log(id).await;
    assert!(world.flush(&owner, &begin).await.is_none());
    assert_eq!(world.log(id).await, log);
    let written = world.flush_as(judge, &[(&Owner::from(&adopted), &begin)]).await;
    assert_eq!(written.len(), 1);

    // A second judge comes too late.
    let gone = replicas::adopt(&world.db, judge, id, world.replica).await.unwrap();
    assert!(matches!(gone, Adopted::Gone));
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn nothing_is_adopted_from_the_living(db: PgPool) {
    let world = World::new(db).await;
    let claim = world.claimed().await;
    let judge = world.another_replica().await;
    let adopted = replicas::adopt(&world.db, judge, claim.session_id, world.replica).await.unwrap();
    assert!(matches!(adopted, Adopted::Gone));
    assert_eq!(world.state(claim.session_id).await.owner, Some(world.replica));
}

/// Returns when some statement in this database waits for a lock.
pub async fn waits_for_a_lock(db: &PgPool) {
    let waiting = "select count(*) from pg_stat_activity \
                   where datname = current_database() and wait_event_type = 'Lock'";
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(db).await.unwrap() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
