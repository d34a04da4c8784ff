use proto::{
    event::v1::{Event, Payload},
    tools::v1::{ReadOutputRequest, output_service_client::OutputServiceClient},
};
use sha2::{Digest as _, Sha256};
use tests::{Client, World, reason};

/// What a model may see of one output.
const PREVIEW: usize = 32 * 1024;

#[tokio::test]
async fn tool_call_with_large_result() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let script = "call bash {\"command\": \"seq 1 750000\"}\n---\nsay It said {{tool_result}}";
    let seen = session.run(script).await;
    assert_eq!(seen.last().unwrap().r#type, "turn.completed");
    let printed: String = (1..=750_000).map(|number| format!("{number}\n")).collect();
    assert!(printed.len() > 5_000_000);

    // The stream has a bounded part of it.
    let size = |event: &Event| match &event.payload {
        Some(Payload::ToolProgress(progress)) => progress.text.len(),
        Some(Payload::ToolResult(result)) => result.data_json.len(),
        Some(Payload::ModelDelta(delta)) => delta.text.len(),
        _ => 0,
    };
    assert!(seen.iter().map(size).sum::<usize>() < 4 * PREVIEW);

    // It says where the rest is.
    let spilled = seen.iter().find(|event| event.r#type == "output.spilled").unwrap();
    let Some(Payload::OutputSpilled(stored)) = &spilled.payload else { panic!("{spilled:?}") };
    let total = printed.len() as i64;
    assert_eq!((stored.total_bytes, stored.kept_bytes), (total, total));
    let result = seen.iter().find_map(|event| match &event.payload {
        Some(Payload::ToolResult(result)) => result.metadata.clone(),
        _ => None,
    });
    let metadata = result.unwrap();
    assert_eq!((metadata.truncated, metadata.output_bytes), (true, total));
    assert_eq!(metadata.output_ref, spilled.output_ref);
    assert_eq!(metadata.output_path, stored.output_path);
    assert!(!seen.iter().any(|event| event.r#type == "output.truncated"));
    let turn = session.snapshot().await.snapshot.unwrap().threads.remove(0).turns.remove(0);
    assert_eq!(turn.output_refs[0].output_ref, metadata.output_ref);

    // Which is all of it, byte for byte, in pieces of any size.
    let (mut whole, mut limit) = (Vec::new(), 1_000_000);
    loop {
        let piece = read(&client, &metadata.output_ref, whole.len(), limit).await.unwrap();
        if piece.is_empty() {
            break;
        }
        whole.extend(piece);
        limit = limit / 2 + 1_000;
    }
    assert!(whole == printed.as_bytes(), "{} of {} bytes", whole.len(), printed.len());
    assert_eq!(stored.digest, format!("sha256:{:x}", Sha256::digest(&whole)));

    let other = world.client("other").await;
    let stolen = read(&other, &metadata.output_ref, 0, 10).await.unwrap_err();
    assert_eq!(reason(&stolen), "REASON_OUTPUT_NOT_FOUND");
}

async fn read(
    client: &Client,
    output_ref: &str,
    offset: usize,
    limit: i32,
) -> Result<Vec<u8>, tonic::Status> {
    let mut outputs = OutputServiceClient::new(client.to(local::Service::Tools));
    let request =
        ReadOutputRequest { output_ref: output_ref.to_owned(), offset: offset as i64, limit };
    Ok(outputs.read_output(request).await?.into_inner().data)
}
