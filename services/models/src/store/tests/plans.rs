//! A month of requests answers what it cost from its indexes.

use jiff::{Timestamp, ToSpan as _};
use sqlx::{PgPool, postgres::PgPoolOptions};

use crate::store::{
    requests,
    usage::{self, Question},
};

/// Requests of a month, over many sessions, people and models, of two tenants.
const FILL: &str = "
    insert into models.request
    select 'mreq_' || lpad(n::text, 25, '0') || '0', case when n % 10 = 0 then 'other' else 'acme' end,
        'user-' || n % 50, 'ses_' || n % 2000, 'ses_' || n % 1000, 'turn_' || n, 'step_' || n, 'scripted',
        'model-' || n % 5, null, 'mrep_' || repeat('0', 26), 'completed', '', 'exact', 0, 0, 0, 100, 10, 5, 1, 2, n % 100, 'USD',
        now() - n * interval '20 seconds', 5, 50
    from generate_series(1, 120000) n";

#[sqlx::test(migrator = "crate::MIGRATIONS")]
async fn a_month_is_summed_from_an_index(db: PgPool) {
    let options = (*db.connect_options()).clone();
    let db = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    sqlx::query(FILL).execute(&db).await.unwrap();
    // As the service's connections are.
    for setting in [
        "vacuum analyze models.request",
        "set enable_seqscan = off",
        "set plan_cache_mode = force_generic_plan",
    ] {
        sqlx::query(setting).execute(&db).await.unwrap();
    }
    let tenant = "acme".parse().unwrap();
    let end = Timestamp::now();
    let month = Question {
        start: end - (30 * 24).hours(),
        end,
        by: [false; 6],
        root_session_id: String::new(),
    };
    let before = reads(&db).await;

    // The tenant, by everything that can be asked for.
    let all = usage::sums(&db, &tenant, &month, None, 10).await.unwrap();
    let count = 120_000 * 9 / 10;
    assert_eq!((all.len(), all[0].requests), (1, count));
    for dimension in 0..6 {
        let mut by = [false; 6];
        by[dimension] = true;
        let sums = usage::sums(&db, &tenant, &Question { by, ..month.clone() }, None, 10_000)
            .await
            .unwrap();
        let total = |of: fn(&usage::Usage) -> i64| sums.iter().map(of).sum::<i64>();
        assert_eq!(total(|sum| sum.cost_micros), all[0].cost_micros);
        assert_eq!(total(|sum| sum.requests), count);
    }
    // One tree, a page of groups, and the log itself.
    let tree = Question { root_session_id: "ses_7".to_owned(), ..month.clone() };
    assert_eq!(usage::sums(&db, &tenant, &tree, None, 10).await.unwrap()[0].requests, 120);
    let by_model = Question { by: [false, false, false, false, true, false], ..month.clone() };
    let first = usage::sums(&db, &tenant, &by_model, None, 2).await.unwrap();
    let rest = usage::sums(&db, &tenant, &by_model, Some(&first[1].group), 10).await.unwrap();
    assert_eq!((first.len(), rest.len()), (2, 3));
    for (session, turn) in [("", ""), ("ses_7", ""), ("", "turn_7"), ("ses_7", "turn_7")] {
        assert!(!requests::list(&db, &tenant, session, turn, None, 10).await.unwrap().is_empty());
    }

    let after = reads(&db).await;
    assert_eq!(after.0, before.0, "rows were read one after the other");
    // Sums come from the index; only the pages of the log look at rows.
    assert!(after.1 - before.1 < 200, "{} rows were fetched", after.1 - before.1);
    sqlx::query("select sum(duration_ms) from models.request").execute(&db).await.unwrap();
    assert_ne!(reads(&db).await.0, before.0, "a scan would not have been seen");
}

/// Rows that were read by scanning, and rows that an index led to.
async fn reads(db: &PgPool) -> (i64, i64) {
    for settle in ["select pg_stat_force_next_flush()", "select pg_stat_clear_snapshot()"] {
        sqlx::query(settle).execute(db).await.unwrap();
    }
    sqlx::query_as(
        "select seq_tup_read, coalesce(idx_tup_fetch, 0) from pg_stat_user_tables
         where schemaname = 'models' and relname = 'request'",
    )
    .fetch_one(db)
    .await
    .unwrap()
}
