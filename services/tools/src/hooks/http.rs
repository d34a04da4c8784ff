use std::{error::Error as _, time::Duration};

use jiff::Timestamp;
use reqwest::{
    Client, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
    redirect::Policy,
};
use url::Url;

use super::{Place, Signer};
use crate::{
    egress::Outward,
    hook::{Answer, Hook, LARGEST_ANSWER, understand},
};

/// How long it may take until somebody takes the call.
const CONNECT: Duration = Duration::from_secs(5);

/// Posts events to URLs.
pub struct Http {
    outward: Outward,
    client: Client,
    pub signer: Option<Signer>,
}

impl Http {
    pub fn new(outward: Outward, signer: Option<Signer>) -> anyhow::Result<Http> {
        let client = outward
            .builder()
            .redirect(Policy::none())
            .connect_timeout(CONNECT)
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Http { outward, client, signer })
    }

    /// Why a URL can never be reached, if that can be told by looking at it.
    pub fn check(&self, url: &str) -> Result<(), String> {
        let url = Url::parse(url).map_err(|_| "it is no URL".to_owned())?;
        self.outward.check(&url).map(|_| ()).map_err(|refusal| refusal.to_string())
    }

    pub async fn ask(
        &self,
        hook: &Hook,
        place: &Place,
        url: &str,
        body: String,
    ) -> Result<Answer, String> {
        self.check(url)?;
        let (id, timestamp) = (delivery(hook, place), Timestamp::now().as_second().to_string());
        let mut request = self
            .client
            .post(url)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header("webhook-id", &id)
            .header("webhook-timestamp", &timestamp);
        if let Some(signer) = &self.signer {
            let signature = signer.sign(&place.tenant, hook, &id, &timestamp, &body);
            request = request.header("webhook-signature", signature);
        }
        let mut response = request.body(body).send().await.map_err(explain)?;
        let status = response.status();
        if !status.is_success() {
            return Err(match status {
                status if status.is_redirection() => {
                    format!("it answered {status}, and redirects are not followed")
                }
                status => format!("it answered {status}"),
            });
        }
        if status == StatusCode::NO_CONTENT {
            return understand(hook.event, b"");
        }
        let mut answer = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(explain)? {
            if answer.len() + piece.len() > LARGEST_ANSWER {
                return Err("its answer is larger than 1 MiB".to_owned());
            }
            answer.extend_from_slice(&piece);
        }
        understand(hook.event, &answer)
    }
}

/// The same for the same event, so that a receiver can tell a repetition.
fn delivery(hook: &Hook, place: &Place) -> String {
    let what = match place.tool_call_id.as_str() {
        "" => place.turn_id.clone(),
        id => id.to_owned(),
    };
    let project = if hook.project.is_empty() { "tenant" } else { "project" };
    format!("{what}:{}:{project}:{}:{}", hook.event, hook.id, place.repeats)
}

/// An error and its causes in one sentence, without the URL, which may hold a secret.
fn explain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    format!("it cannot be reached: {text}")
}
