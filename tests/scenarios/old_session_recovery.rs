use std::collections::BTreeMap;

use local::Service;
use proto::session::v1::{
    ListMessagesRequest, ListMessagesResponse, SubscribeRequest, subscribe_request::From,
    subscribe_response::Item,
};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection, Row as _};
use tests::{Client, Session, World, request_id};

const MANY: usize = 20_000;
const FEW: usize = 20;

#[tokio::test]
async fn old_session_recovery() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let small = grown(&client, FEW).await;
    let large = grown(&client, MANY).await;

    // The shell and a recent window come first, older history by cursor.
    assert_eq!(open(&large).await, 20);
    let mut page = list(&large, "").await;
    assert_eq!(page.messages.len(), 50);
    let mut ids: Vec<_> = page.messages.iter().map(|message| message.message_id.clone()).collect();
    while !page.next_page_token.is_empty() {
        page = list(&large, &page.next_page_token).await;
        let older = page.messages.iter().map(|message| message.message_id.clone());
        ids.splice(..0, older);
    }
    assert_eq!(ids.len(), MANY);
    assert!(ids.is_sorted(), "out of order, or there twice");
    ids.dedup();
    assert_eq!(ids.len(), MANY);

    // Opening it reads as many rows as opening a small one. The server's statistics are complete
    // once the connections are closed.
    let mut costs = Vec::new();
    for session in [&small, &large] {
        let before = rows_read(&mut world).await;
        assert_eq!(open(session).await, 20);
        list(session, "").await;
        let after = rows_read(&mut world).await;
        let cost = after.iter().map(|(table, rows)| (table.clone(), rows - before[table]));
        costs.push(cost.collect::<BTreeMap<_, _>>());
    }
    for (table, rows) in &costs[0] {
        let (small, large) = (*rows, costs[1][table]);
        // The last page of the small one ends with it, the large one goes on to the 50th.
        assert!(
            large <= small + 200,
            "{table}: {small} rows of a small session, {large} of a large one"
        );
    }

    // And it goes on.
    let events = large.run("say Still here.").await;
    assert_eq!(events.last().unwrap().r#type, "turn.completed");
}

/// A session with so many messages, imported.
async fn grown(client: &Client, messages: usize) -> Session {
    let seed = client.create_session().await;
    seed.run("say Hello.").await;
    let lines = seed.export(false).await;
    let [session, question, answer] = &lines[..] else { panic!("{lines:?}") };
    let mut grown = vec![session.clone()];
    for pair in 0..messages / 2 {
        for (line, half) in [(question, 0), (answer, 1)] {
            let mut line: Value = serde_json::from_str(line).unwrap();
            let message = &mut line["message"];
            let turn_id = numbered(message["turnId"].as_str().unwrap(), 2 * pair);
            message["messageId"] =
                numbered(message["messageId"].as_str().unwrap(), 2 * pair + half).into();
            message["turnId"] = turn_id.clone().into();
            if message["turn"].is_object() {
                message["turn"]["turnId"] = turn_id.into();
            }
            grown.push(line.to_string());
        }
    }
    client.import(&request_id(), &grown).await.unwrap()
}

/// An id of the same kind, in the order of `number`.
fn numbered(id: &str, number: usize) -> String {
    const SYMBOLS: &[u8] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let digit = |place: u32| SYMBOLS[number / 32_usize.pow(place) % 32] as char;
    let digits: String = (0..4).rev().map(digit).collect();
    let prefix = id.find('_').unwrap() + 1;
    // The same letters for all, so that they sort by number; the last one has fewer bits.
    format!("{}{}{digits}0", &id[..prefix], "0".repeat(21))
}

/// What a client does first; returns how many messages it sees at once.
async fn open(session: &Session) -> usize {
    let request = SubscribeRequest {
        session_id: session.id.clone(),
        from: Some(From::Live(true)),
        messages: 20,
        ..SubscribeRequest::default()
    };
    let mut stream = session.client.streams().subscribe(request).await.unwrap().into_inner();
    match stream.message().await.unwrap().unwrap().item {
        Some(Item::Snapshot(first)) => {
            assert!(first.snapshot.unwrap().threads[0].turns.len() <= 20);
            first.messages.len()
        }
        other => panic!("{other:?}"),
    }
}

async fn list(session: &Session, page_token: &str) -> ListMessagesResponse {
    let request = ListMessagesRequest {
        session_id: session.id.clone(),
        page_token: page_token.to_owned(),
        ..ListMessagesRequest::default()
    };
    session.client.sessions().list_messages(request).await.unwrap().into_inner()
}

/// How many rows of each table were read so far.
async fn rows_read(world: &mut World) -> BTreeMap<String, i64> {
    world.fleet.get(Service::Session).restart().await.unwrap();
    let mut db = PgConnection::connect(world.fleet.database_url()).await.unwrap();
    let rows = sqlx::query(
        "select relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) as rows
         from pg_stat_user_tables
         where schemaname = 'session' and relname in ('chat_messages', 'chat_parts', 'event', 'turn')",
    )
    .fetch_all(&mut db)
    .await
    .unwrap();
    db.close().await.unwrap();
    rows.iter().map(|row| (row.get("relname"), row.get("rows"))).collect()
}
