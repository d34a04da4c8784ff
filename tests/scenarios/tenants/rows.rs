//! What the database has of a tenant.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::sleep;

/// The rows of each table, as JSON.
pub type Rows = BTreeMap<String, BTreeSet<String>>;

/// Waits until nothing changes any more.
pub async fn settled(database_url: &str, tenant: &str) -> Rows {
    let mut rows = of(database_url, tenant).await;
    for _ in 0..30 {
        sleep(Duration::from_secs(1)).await;
        let now = of(database_url, tenant).await;
        if now == rows {
            return now;
        }
        rows = now;
    }
    panic!("something of {tenant} changes all the time")
}

/// Every row of every table that has the tenant's name, or is about what such a row names.
pub async fn of(database_url: &str, tenant: &str) -> Rows {
    let mut db = PgConnection::connect(database_url).await.unwrap();
    let tables: Vec<(String, bool)> = sqlx::query_as(
        "select format('%I.%I', t.table_schema, t.table_name),
                exists (select from information_schema.columns c
                        where c.table_schema = t.table_schema and c.table_name = t.table_name
                          and c.column_name = 'tenant_id')
         from information_schema.tables t
         where t.table_schema in ('auth', 'session', 'tools', 'models', 'triggers')
           and t.table_type = 'BASE TABLE' and t.table_name not like '%migrations%'
           -- What processes say of themselves all the time.
           and t.table_name not in ('replica', 'process_host')",
    )
    .fetch_all(&mut db)
    .await
    .unwrap();
    assert!(tables.len() > 30, "{tables:?}");

    let (mut rows, mut ids, mut others) = (Rows::new(), BTreeSet::new(), Vec::new());
    for (table, is_named) in tables {
        let select = AssertSqlSafe(format!("select to_jsonb(t) from {table} t"));
        let all: Vec<(Value,)> = sqlx::query_as(select).fetch_all(&mut db).await.unwrap();
        if !is_named {
            others.push((table, all));
            continue;
        }
        let own = all.into_iter().map(|(row,)| row).filter(|row| row["tenant_id"] == tenant);
        let own: Vec<Value> = own.collect();
        own.iter().for_each(|row| collect_ids(row, &mut ids));
        rows.insert(table, own.iter().map(Value::to_string).collect());
    }
    // What has no tenant belongs to whom it names first: a session, or whatever else it is part of.
    let owns = |value: &Value| value.as_str().is_some_and(|id| ids.contains(id));
    for (table, all) in others {
        let own = all.into_iter().map(|(row,)| row).filter(|row| match row.get("session_id") {
            Some(session_id) => owns(session_id),
            None => row.as_object().is_some_and(|row| row.values().any(owns)),
        });
        rows.insert(table, own.map(|row| row.to_string()).collect());
    }
    db.close().await.unwrap();
    rows
}

/// Ids among the values of a row: a prefix, and 26 letters and digits.
fn collect_ids(value: &Value, ids: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            let is_id = text.rsplit_once('_').is_some_and(|(prefix, id)| {
                prefix.len() < 10
                    && id.len() == 26
                    && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
            });
            if is_id {
                ids.insert(text.clone());
            }
        }
        Value::Object(fields) => fields.values().for_each(|value| collect_ids(value, ids)),
        _ => (),
    }
}

/// Fails with what differs.
pub fn compare(before: &Rows, after: &Rows) {
    let mut changes = Vec::new();
    for (table, rows) in before {
        let now = &after[table];
        changes.extend(rows.difference(now).map(|row| format!("{table} had {row}")));
        changes.extend(now.difference(rows).map(|row| format!("{table} has {row}")));
    }
    assert_eq!(changes, [""; 0]);
}
