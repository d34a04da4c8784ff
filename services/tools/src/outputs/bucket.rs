//! A bucket of an S3-compatible store, by configuration.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, RetryConfig, aws::AmazonS3Builder, path::Path,
    prefix::PrefixStore,
};
use url::Url;

/// A call waits for its output to be kept, so nobody is asked for ever.
const PATIENCE: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(5);
const RETRIES: usize = 6;

#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// Bucket of an S3-compatible store that outputs are kept in: `s3://bucket/prefix`. Unset: OUTPUTS_DIR.
    #[arg(long, env)]
    pub outputs_url: Option<Url>,

    /// Where the store is, for those that are not Amazon's: `https://storage.example.com`.
    #[arg(long, env, requires = "outputs_url")]
    pub outputs_endpoint: Option<Url>,

    /// The region that requests are signed for. Unset: AWS_REGION, or else us-east-1.
    #[arg(long, env, requires = "outputs_url")]
    pub outputs_region: Option<String>,

    /// File with `aws_access_key_id = …` and `aws_secret_access_key = …`. Unset: what the environment
    /// says (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, or a pod's identity).
    #[arg(long, env, requires = "outputs_url")]
    pub outputs_credentials_file: Option<PathBuf>,
}

impl Args {
    /// The bucket, if there is one. Nobody is asked yet.
    pub fn bucket(&self) -> anyhow::Result<Option<Arc<dyn ObjectStore>>> {
        let Some(url) = &self.outputs_url else { return Ok(None) };
        // Whoever signs a request to https needs it.
        chassis::tls::install_default();
        let bucket = url.host_str().unwrap_or_default();
        ensure!(
            url.scheme() == "s3" && !bucket.is_empty(),
            "OUTPUTS_URL {url} is not like s3://bucket/prefix"
        );
        let options = ClientOptions::new()
            .with_connect_timeout(CONNECT)
            .with_timeout(PATIENCE)
            .with_allow_http(
                self.outputs_endpoint.as_ref().is_some_and(|url| url.scheme() == "http"),
            );
        let retry = RetryConfig {
            max_retries: RETRIES,
            retry_timeout: PATIENCE,
            backoff: BackoffConfig::default(),
        };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(options)
            .with_retry(retry)
            // Not every store knows the call that removes many.
            .with_disable_bulk_delete(true);
        if let Some(region) = &self.outputs_region {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = &self.outputs_endpoint {
            builder = builder.with_endpoint(endpoint.as_str().trim_end_matches('/'));
        }
        if let Some(path) = &self.outputs_credentials_file {
            let text = fs::read_to_string(path).with_context(|| {
                format!("cannot read OUTPUTS_CREDENTIALS_FILE {}", path.display())
            })?;
            let (id, secret) = credentials(&text).with_context(|| {
                format!("OUTPUTS_CREDENTIALS_FILE {} is not understood", path.display())
            })?;
            builder = builder.with_access_key_id(id).with_secret_access_key(secret);
        }
        let store = builder.build().context("OUTPUTS_URL cannot be used")?;
        let prefix = Path::parse(url.path()).context("the prefix in OUTPUTS_URL is no path")?;
        Ok(Some(match prefix.as_ref().is_empty() {
            true => Arc::new(store),
            false => Arc::new(PrefixStore::new(store, prefix)),
        }))
    }
}

/// The id and the secret in a file as other tools for S3 have it. Errors repeat nothing of it.
fn credentials(text: &str) -> anyhow::Result<(String, String)> {
    let (mut id, mut secret) = (None, None);
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', ';', '[']) {
            continue;
        }
        let (name, value) = line.split_once('=').context("a line has no `=`")?;
        let target = match name.trim() {
            "aws_access_key_id" => &mut id,
            "aws_secret_access_key" => &mut secret,
            _ => continue,
        };
        if target.replace(value.trim().to_owned()).is_some() {
            bail!("it has more than one account");
        }
    }
    let id = id.context("it has no aws_access_key_id")?;
    Ok((id, secret.context("it has no aws_secret_access_key")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_url(url: &str) -> anyhow::Result<Option<Arc<dyn ObjectStore>>> {
        Args { outputs_url: Some(url.parse().unwrap()), ..Args::default() }.bucket()
    }

    #[test]
    fn only_a_bucket_is_a_bucket() {
        assert!(Args::default().bucket().unwrap().is_none());
        for url in ["http://bucket/prefix", "s3:///prefix", "file:///tmp"] {
            let error = with_url(url).unwrap_err().to_string();
            assert!(error.contains("is not like s3://bucket/prefix"), "{error}");
        }
    }

    #[test]
    fn a_file_of_credentials_is_read_and_never_repeated() {
        let text = "[default]\n# comment\naws_access_key_id = id\naws_secret_access_key=sec=ret\n";
        assert_eq!(credentials(text).unwrap(), ("id".into(), "sec=ret".into()));
        for text in ["", "aws_access_key_id = id", "hush", &text.repeat(2)] {
            let error = format!("{:?}", credentials(text).unwrap_err());
            assert!(!error.contains("hush") && !error.contains("sec=ret"), "{error}");
        }
    }
}
