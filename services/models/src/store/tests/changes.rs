//! Who changed what is kept, as far as anybody will ask.

use sqlx::PgPool;

use crate::{
    limit::{Limit, Name, Scope, Terms},
    store::{budgets, changes, rules},
};

fn limit(value: i64) -> Limit {
    let terms = Terms { value, queue_ms: 0 };
    Limit { name: Name::TokensPerDay, scope: Scope::Subject, key: "bob".to_owned(), terms }
}

async fn told(db: &PgPool) -> Vec<(String, String, i64, i64)> {
    let mut connection = db.acquire().await.unwrap();
    let changes = changes::all(&mut connection, &"acme".parse().unwrap()).await.unwrap();
    let told = changes.into_iter().map(|one| (one.name, one.subject, one.before, one.after));
    told.collect()
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn only_what_changed_is_a_change(db: PgPool) {
    let (tenant, stranger) = ("acme".parse().unwrap(), "another".parse().unwrap());
    assert!(rules::set(&db, &stranger, "eve", &limit(7)).await.unwrap());
    for value in [0, 5, 5, 9, 0, 0] {
        assert!(rules::set(&db, &tenant, "ada", &limit(value)).await.unwrap());
    }
    for request in ["r", "r"] {
        budgets::create(&db, &tenant, "ada", request, "default", 100).await.unwrap();
    }
    let (id, _) = budgets::create(&db, &tenant, "ada", "r", "other", 0).await.unwrap().unwrap();
    for amount in [100, 50] {
        assert!(budgets::set_amount(&db, &tenant, "bob", id, amount).await.unwrap());
    }
    assert!(!budgets::set_amount(&db, &stranger, "eve", id, 1).await.unwrap());
    let expected = [
        ("tokens_per_day", "ada", 0, 5),
        ("tokens_per_day", "ada", 5, 9),
        ("tokens_per_day", "ada", 9, 0),
        ("budget", "ada", 0, 100),
        ("budget", "bob", 100, 50),
    ];
    let expected = expected.map(|(name, who, then, now)| (name.into(), who.into(), then, now));
    assert_eq!(told(&db).await, expected);
}

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn the_newest_changes_are_kept(db: PgPool) {
    let tenant = "acme".parse().unwrap();
    for value in 1..=60 {
        rules::set(&db, &tenant, "ada", &limit(value)).await.unwrap();
    }
    let kept = told(&db).await;
    assert_eq!(kept.len(), 50);
    assert_eq!(kept.last().map(|(_, _, before, after)| (*before, *after)), Some((59, 60)));
}
