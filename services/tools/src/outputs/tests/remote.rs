//! Everything that holds for a directory holds for a bucket, and a store that falters is asked
//! again.

use axum::http::Method;

use super::{
    s3::{Fault, ID, S3, SECRET},
    *,
};

/// Outputs in a bucket, with a directory that is only for what is being printed.
fn remote(store: &S3, db: &PgPool, retention: Duration) -> (Outputs, tempfile::TempDir) {
    signing_with(SECRET, store, db, retention)
}

fn signing_with(
    secret: &str,
    store: &S3,
    db: &PgPool,
    retention: Duration,
) -> (Outputs, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    let text = format!("aws_access_key_id = {ID}\naws_secret_access_key = {secret}\n");
    fs::write(&file, text).unwrap();
    let args = Args {
        outputs_url: Some("s3://bucket/some/prefix".parse().unwrap()),
        outputs_endpoint: Some(store.endpoint().parse().unwrap()),
        outputs_region: Some("here".into()),
        outputs_credentials_file: Some(file),
    };
    let bucket = args.bucket().unwrap().unwrap();
    let most = 100 << 20;
    (Outputs::remote(db.clone(), bucket, folder.path(), most, retention).unwrap(), folder)
}

const DAY: Duration = Duration::from_secs(86_400);

/// More than fits into one part.
fn long() -> String {
    (0..2_000_000).map(|number| format!("line {number}\n")).collect()
}

#[sqlx::test]
async fn a_bucket_has_each_content_once_per_tenant(db: PgPool) {
    let store = S3::start().await;
    let (outputs, folder) = remote(&store, &db, DAY);
    let (acme, other) = (call("acme"), call("other"));
    let first = keep(&outputs, &acme, "a long text").await;
    keep(&outputs, &acme, "a long text").await;
    let puts = store.requests().iter().filter(|line| line.starts_with("PUT")).count();
    assert_eq!((store.objects().len(), puts), (1, 1));
    keep(&outputs, &other, "a long text").await;
    let digest = &first.digest;
    let expected = ["acme", "other"]
        .map(|tenant| format!("/bucket/some/prefix/{tenant}/{}/{digest}", &digest[..2]));
    assert_eq!(store.objects().into_keys().collect::<Vec<_>>(), expected);
    assert!(!folder.path().join("kept").exists());

    let (piece, stored) = outputs.read(&acme.tenant, first.output_ref, 2, 4).await.unwrap();
    assert_eq!((piece.as_slice(), stored.bytes), (&b"long"[..], 11));
    let (piece, _) = outputs.read(&acme.tenant, first.output_ref, 11, 4).await.unwrap();
    assert!(piece.is_empty());
    let stolen = outputs.read(&other.tenant, first.output_ref, 0, 4).await.unwrap_err();
    assert!(matches!(stolen, Error::OutputNotFound(_)));
}

#[sqlx::test]
async fn what_has_expired_leaves_the_bucket_unless_somebody_else_has_it(db: PgPool) {
    let store = S3::start().await;
    let (short, _folder) = remote(&store, &db, Duration::ZERO);
    let (long, _folder) = remote(&store, &db, DAY);
    let acme = call("acme");
    keep(&short, &acme, "only here").await;
    keep(&short, &acme, "in two places").await;
    let kept = keep(&long, &acme, "in two places").await;
    assert_eq!(store.objects().len(), 2);
    long.expire().await.unwrap();
    assert_eq!(store.objects().len(), 1);
    let (piece, _) = long.read(&acme.tenant, kept.output_ref, 0, 100).await.unwrap();
    assert_eq!(piece, b"in two places");
}

#[sqlx::test]
async fn a_long_output_goes_in_parts_and_is_read_whole(db: PgPool) {
    let store = S3::start().await;
    let (outputs, _folder) = remote(&store, &db, DAY);
    let (acme, text) = (call("acme"), long());
    store.fail(Method::PUT, &[Fault::Busy, Fault::Lost]);
    let kept = keep(&outputs, &acme, &text).await;
    assert_eq!(store.unfinished(), 0);
    let object = store.objects().into_values().next().unwrap();
    assert!(object == text.as_bytes(), "{} bytes of {}", object.len(), text.len());

    // A body that breaks off is asked for again.
    store.fail(Method::GET, &[Fault::Busy, Fault::Cut]);
    let (copy, bytes) = outputs.copy(&acme, kept.output_ref).await.unwrap();
    assert_eq!(bytes, text.len() as u64);
    assert!(crate::files::read_at(&copy, 0, text.len()).unwrap() == text.as_bytes());
    let (start, end) = (9_000_000, 9_000_040);
    let (piece, _) = outputs.read(&acme.tenant, kept.output_ref, start, 40).await.unwrap();
    assert_eq!(piece, &text.as_bytes()[start as usize..end]);
}

#[sqlx::test]
async fn a_store_that_is_gone_keeps_nothing_and_promises_nothing(db: PgPool) {
    let store = S3::start().await;
    let (outputs, _folder) = remote(&store, &db, DAY);
    let acme = call("acme");
    store.fail(Method::PUT, &[Fault::Busy; 50]);
    let mut spool = outputs.spool(4);
    spool.push(long().as_bytes()).await.unwrap();
    outputs.keep(&acme, spool.finish().await.unwrap()).await.unwrap_err();
    assert_eq!((store.objects().len(), store.unfinished()), (0, 0));
    let stored = sqlx::query_scalar::<_, i64>("select count(*) from tools.output where stored");
    assert_eq!(stored.fetch_one(&db).await.unwrap(), 0);
}

#[sqlx::test]
async fn what_was_damaged_in_the_store_is_not_passed_on(db: PgPool) {
    let store = S3::start().await;
    let (outputs, _folder) = remote(&store, &db, DAY);
    let acme = call("acme");
    let kept = keep(&outputs, &acme, "a long text").await;
    store.replace("a wrong text");
    let error = outputs.copy(&acme, kept.output_ref).await.unwrap_err();
    assert!(format!("{error:?}").contains("is damaged"), "{error:?}");
}

#[sqlx::test]
async fn who_cannot_sign_stores_nothing(db: PgPool) {
    let store = S3::start().await;
    let (outputs, _folder) = signing_with("another secret", &store, &db, DAY);
    let mut spool = outputs.spool(4);
    spool.push(b"a long text").await.unwrap();
    outputs.keep(&call("acme"), spool.finish().await.unwrap()).await.unwrap_err();
    assert!(store.objects().is_empty());
}
