use std::{fs, path::Path};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tests::World;

/// What operators are told to type at night is about tables and columns that are there.
#[tokio::test]
async fn every_query_of_the_runbook_runs() {
    let world = World::start().await;
    let mut database = PgConnection::connect(world.fleet.database_url()).await.unwrap();
    let blocks = blocks(&document("runbook.md"), "sql");
    assert!(blocks.len() > 5, "{blocks:?}");
    for block in blocks {
        let ran = sqlx::raw_sql(AssertSqlSafe(block.clone())).fetch_all(&mut database).await;
        assert!(ran.is_ok(), "{ran:?}\n{block}");
    }
}

/// One of the documents for operators.
pub fn document(name: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    fs::read_to_string(docs.join(name)).unwrap()
}

/// What a document has in this language.
pub fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let begun = text.split(&fence).skip(1);
    begun.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}
