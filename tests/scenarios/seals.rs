use local::{Fleet, Service};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tests::World;

#[tokio::test]
async fn seals_verify_and_what_is_altered_is_found() {
    let plan = Fleet::plan().env_of(Service::Session, "SWEEP", "0.2").replicas(Service::Session, 2);
    let mut world = World::planned(plan).await;
    let session = world.client("acme").await.create_session().await;
    let script = "think Hm.\nsay One.\ncall bash {\"command\": \"echo two\"}\n---\nsay Three.";
    // Each turn gets a seal of its own.
    let first = session.run(script).await.last().unwrap().sequence;
    session.sealed(first).await;
    let last = session.run("fail auth").await.last().unwrap().sequence;
    let verified = session.sealed(last).await;
    assert!(verified.intact, "{verified:?}");
    assert_eq!((verified.broken_at_sequence, verified.problem.as_str()), (0, ""));
    assert_eq!((verified.first_sequence, verified.joined_events), (1, 0));

    let log = session.log().await;
    let delta = log.iter().find(|event| event.r#type == "model.delta").unwrap().sequence;
    let id = &session.id;
    let alter = |text: &str| {
        format!(
            "update session.event set payload = payload || '{{\"text\": \"{text}\"}}'
             where session_id = '{id}' and seq = {delta}"
        )
    };
    sql(&world, &alter("Onf.")).await;
    let verified = session.verify().await;
    assert!(!verified.intact);
    assert_eq!(verified.broken_at_sequence, delta);
    assert_eq!(verified.problem, format!("event {delta} was altered"));
    sql(&world, &alter("One.")).await;
    assert!(session.verify().await.intact);

    let move_it = |from: i64, to: i64| {
        format!("update session.event set seq = {to} where session_id = '{id}' and seq = {from}")
    };
    sql(&world, &move_it(delta, -1)).await;
    let verified = session.verify().await;
    assert_eq!((verified.intact, verified.broken_at_sequence), (false, delta));
    sql(&world, &move_it(-1, delta)).await;

    // A chain from which a seal was taken, and one that was forged over another log.
    let forge = format!(
        "update session.seal set previous = repeat('0', 64) where session_id = '{id}' and number = 2"
    );
    sql(&world, &forge).await;
    assert!(!session.verify().await.intact);
    sql(&world, &format!("delete from session.seal where session_id = '{id}' and number = 1"))
        .await;
    let verified = session.verify().await;
    assert_eq!((verified.intact, verified.broken_at_sequence), (false, 1));
}

/// Does what nobody can do through the API.
pub async fn sql(world: &World, statement: &str) {
    let mut db = PgConnection::connect(world.fleet.database_url()).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut db).await.unwrap();
    db.close().await.unwrap();
}
