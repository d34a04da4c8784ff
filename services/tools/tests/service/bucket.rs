//! Outputs in a store that speaks S3.

#[expect(dead_code, reason = "what fails is for the tests of the store alone")]
#[path = "../../src/outputs/tests/s3.rs"]
mod s3;

use std::fs;

use proto::{
    event::v1::Payload,
    tools::v1::{ReadOutputRequest, output_service_client::OutputServiceClient},
};
use sqlx::PgPool;

use self::s3::{ID, S3, SECRET};
use crate::world::World;

#[sqlx::test(migrations = false)]
async fn what_a_command_prints_is_kept_in_a_bucket_without_secrets(db: PgPool) {
    let store = S3::start().await;
    let folder = tempfile::tempdir().unwrap();
    let [credentials, secrets] = ["credentials", "secrets"].map(|name| folder.path().join(name));
    let text = format!("[default]\naws_access_key_id={ID}\naws_secret_access_key={SECRET}\n");
    fs::write(&credentials, text).unwrap();
    fs::write(&secrets, "correct-horse\n").unwrap();
    let endpoint = store.endpoint();
    let flags = [
        "--outputs-url",
        "s3://bucket/outputs",
        "--outputs-endpoint",
        &endpoint,
        "--outputs-credentials-file",
        credentials.to_str().unwrap(),
        "--redact-file",
        secrets.to_str().unwrap(),
    ];
    let world = World::with(db, &flags).await;
    let command = "seq 1 300000; echo correct-horse; seq 1 300000";
    let ended = world.execute(world.bash(command)).await.unwrap();
    let numbers: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    let expected = format!("{numbers}[redacted]\n{numbers}");

    let object = store.objects().into_iter().next().expect("something is in the bucket");
    assert!(object.0.starts_with("/bucket/outputs/acme/"), "{}", object.0);
    assert!(object.1 == expected.as_bytes(), "{} bytes", object.1.len());
    let spilled = ended.facts.iter().find(|fact| fact.r#type == "output.spilled").unwrap();
    let Some(Payload::OutputSpilled(stored)) = &spilled.payload else { panic!("{spilled:?}") };
    assert_eq!(stored.kept_bytes, expected.len() as i64);

    let mut outputs = OutputServiceClient::new(world.peer.channel());
    let (offset, limit) = (numbers.len() as i64, 10);
    let output_ref = spilled.output_ref.clone();
    let request = ReadOutputRequest { output_ref, offset, limit };
    let request = world.peer.request(&world.caller, request);
    let piece = outputs.read_output(request).await.unwrap().into_inner();
    assert_eq!(piece.data, b"[redacted]");
    assert_eq!(piece.total_bytes, expected.len() as i64);
}
