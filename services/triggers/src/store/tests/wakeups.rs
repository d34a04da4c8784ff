use tokio::time::timeout;

use super::*;
use crate::store::wakeups;

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn wakeups_belong_to_their_session(db: PgPool) {
    let (one, other) = (trigger(Source::SelfSchedule), trigger(Source::SelfSchedule));
    put(&db, &one, now()).await;
    put(&db, &other, now()).await;
    record(&db, &[candidate(&one, "a", now()), candidate(&other, "a", now())], now()).await;
    assert_eq!(throttles(&db).await, 2);
    let elsewhere = SESSION.replace('m', "n");
    let stranger = "beta".parse().unwrap();
    let cancel = async |tenant: &Tenant, session: &str| {
        wakeups::cancel(&db, tenant, session, one.id).await.unwrap()
    };
    assert!(!cancel(&stranger, SESSION).await);
    assert!(!cancel(&tenant(), &elsewhere).await);
    assert!(cancel(&tenant(), SESSION).await);
    assert!(!cancel(&tenant(), SESSION).await);
    assert_eq!(throttles(&db).await, 1);
    assert_eq!(wakeups::cancel_all(&db, &stranger, SESSION).await.unwrap(), 0);
    assert_eq!(wakeups::cancel_all(&db, &tenant(), SESSION).await.unwrap(), 1);
    assert_eq!(due::next(&db).await.unwrap(), None);
    assert_eq!(throttles(&db).await, 0);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_stranger_touches_nothing_of_a_wakeup(db: PgPool) {
    let wakeup = trigger(Source::SelfSchedule);
    put(&db, &wakeup, now()).await;
    // As somebody has it who fires it.
    let mut firing = db.begin().await.unwrap();
    let lock = "select from triggers.due for update";
    sqlx::query(lock).execute(&mut *firing).await.unwrap();
    let stranger = "beta".parse().unwrap();
    let cancelled = wakeups::cancel(&db, &stranger, SESSION, wakeup.id);
    let cancelled = timeout(Duration::from_secs(5), cancelled).await.expect("it waited for a row");
    assert!(!cancelled.unwrap());
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_minute_that_is_over_is_forgotten(db: PgPool) {
    let (over, now) = (now(), now() + SignedDuration::from_hours(25));
    for at in [over, now] {
        record(&db, &[candidate(&trigger(Source::Webhook), "a", at)], at).await;
    }
    let before = now - SignedDuration::from_hours(24);
    assert!(!history::forget_minutes(&db, before).await.unwrap());
    assert_eq!(throttles(&db).await, 1);
}

async fn throttles(db: &PgPool) -> i64 {
    let count = "select count(*) from triggers.throttle";
    sqlx::query_scalar(count).fetch_one(db).await.unwrap()
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn wakeups_that_are_over_are_forgotten_with_all_that_they_had(db: PgPool) {
    let (over, live) = (trigger(Source::SelfSchedule), trigger(Source::SelfSchedule));
    for wakeup in [&over, &live] {
        put(&db, wakeup, now()).await;
        record(&db, &[candidate(wakeup, "a", now())], now()).await;
    }
    due::advance(&db, &[(over.id, Err(TriggerStatus::Finished))], now()).await.unwrap();
    assert!(!history::forget(&db, now() + SignedDuration::from_hours(24)).await.unwrap());
    assert!(triggers::find(&db, over.id).await.unwrap().is_none());
    assert!(triggers::find(&db, live.id).await.unwrap().is_some());
    assert_eq!(throttles(&db).await, 1);
}

#[test]
fn an_agents_own_words_are_no_template() {
    let mut wakeup = trigger(Source::SelfSchedule);
    wakeup.definition.template = "Look at {{ this }}.".into();
    let occasion = Occasion::now(now(), "a", Value::Null);
    let candidate = Candidate::new(&wakeup, FiringId::at(now()), occasion, 60);
    assert_eq!(candidate.drop, None);
    let envelope = candidate.envelope.unwrap();
    let text = String::from_utf8_lossy(&envelope);
    assert!(text.contains("Look at {{ this }}."), "{text}");
}
