use proto::{
    event::v1::{Payload, Usage},
    models::v1::{ListModelsRequest, QueryUsageRequest},
    session::v1::message::Role,
};
use tests::{Client, World};

use crate::what_dies::soon;

const COUNTS: &str =
    "say Done.\nusage input=1200 output=64 reasoning=10 cache_read=1000 cache_write=5";

#[tokio::test]
async fn usage_and_cost() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let models = client.models().list_models(ListModelsRequest::default()).await.unwrap();
    let models = models.into_inner().models;
    let price = models.iter().find(|model| model.model == "scripted/demo").unwrap();
    let price = price.price.clone().unwrap();
    let usage = Usage { input: 1200, output: 64, reasoning: 10, cache_read: 1000, cache_write: 5 };
    let micros = 1200 * price.input_micros
        + 64 * price.output_micros
        + 1000 * price.cache_read_micros
        + 5 * price.cache_write_micros;
    let cost = (micros + 999_999) / 1_000_000;

    // Per answer, and the turn says what all of its answers came to.
    let tool = "call bash {\"command\": \"true\"}\nusage input=10 output=2\n---\n";
    let seen = session.run(&format!("{tool}{COUNTS}")).await;
    let answers = session.messages().await.into_iter();
    let answers: Vec<_> = answers.filter(|message| message.role() == Role::Assistant).collect();
    let first = Usage { input: 10, output: 2, ..Usage::default() };
    assert_eq!((answers[0].usage, answers[1].usage), (Some(first), Some(usage)));
    assert_eq!(answers[1].cost_micros, cost);
    let first_cost = answers[0].cost_micros;
    match &seen.last().unwrap().payload {
        Some(Payload::TurnCompleted(completed)) => {
            assert_eq!(completed.usage.unwrap(), Usage { input: 1210, output: 66, ..usage });
            assert_eq!(completed.cost_micros, cost + first_cost);
        }
        other => panic!("{other:?}"),
    }

    // The session adds up everything it ever read, wrote and paid, whatever became of it.
    session.run(&format!("{COUNTS}\n---\nsay no")).await;
    session.run("fail auth").await;
    session.compact().await;
    let messages = session.messages().await;
    let sum = |of: fn(&Usage) -> i32| {
        let usages = messages.iter().filter_map(|message| message.usage.as_ref());
        usages.map(|usage| i64::from(of(usage))).sum::<i64>()
    };
    let shown = session.get().await;
    assert_eq!(shown.input_tokens, sum(|one| one.input + one.cache_read + one.cache_write));
    assert_eq!(shown.output_tokens, sum(|one| one.output));
    assert_eq!(shown.cost_micros, messages.iter().map(|message| message.cost_micros).sum::<i64>());
    assert!(shown.cost_micros > 2 * cost);
    let snapshot = session.snapshot().await.snapshot.unwrap();
    let state = snapshot.threads[0].cost_state.clone().unwrap();
    assert_eq!((state.cost_micros, state.model_calls), (shown.cost_micros, 4));

    // The ledger has the same, each request once.
    let (mut billed, mut asked) = (0, 0);
    let same = async {
        while billed != shown.cost_micros {
            (billed, asked) = billed_for(&client, &session.id).await;
        }
    };
    soon("the ledger says what the session says", same).await;
    assert!(asked >= 5, "{asked} requests");

    // Going back in history gives no money back.
    session.rewind(&messages[0].message_id).await.unwrap();
    assert!(session.messages().await.is_empty());
    let rewound = session.get().await;
    assert_eq!(rewound.cost_micros, shown.cost_micros);
    assert_eq!(
        (rewound.input_tokens, rewound.output_tokens),
        (shown.input_tokens, shown.output_tokens)
    );
}

/// What a session tree cost by the ledger, and how many requests that was.
pub async fn billed_for(client: &Client, session_id: &str) -> (i64, i64) {
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let request = QueryUsageRequest {
        start_time: Some(at(now - 3600)),
        end_time: Some(at(now + 3600)),
        root_session_id: session_id.into(),
        ..QueryUsageRequest::default()
    };
    let rows = client.usage().query_usage(request).await.unwrap().into_inner().rows;
    rows.first().map(|row| (row.cost_micros, row.requests)).unwrap_or_default()
}

fn at(seconds: i64) -> pbjson_types::Timestamp {
    pbjson_types::Timestamp { seconds, nanos: 0 }
}
