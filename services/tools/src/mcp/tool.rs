//! A tool of a server, as one of ours.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use proto::event::v1::Payload;
use rmcp::{
    RoleClient, ServiceError,
    model::{CallToolRequestParams, CallToolResponse},
    service::Peer,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    LONGEST_DETAIL,
    activity::Activity,
    connect::Common,
    content::{self, Answer},
    describe::{Described, clean},
};
use crate::{
    catalog::{About, Entry, Place, Run, Tool},
    facts,
    outcome::{Failure, Kind, Metadata, Outcome},
    printed::Printed,
    text::shorten,
};

/// What a call may take if the caller does not say.
const USUAL_TIMEOUT: Duration = Duration::from_secs(120);

/// How much output a model gets to see.
const PREVIEW_BYTES: usize = 32 * 1024;

/// What a failure may have left behind.
const MAYBE: &str = "it may have had effects";

/// One tool, over one connection: if that breaks, the next call finds another.
pub struct Remote {
    about: About,
    original: String,
    peer: Peer<RoleClient>,
    common: Arc<Common>,
    activity: Arc<Activity>,
}

/// A tool that was described, as an entry of the catalogue.
pub fn entry(
    described: Described,
    peer: &Peer<RoleClient>,
    common: &Arc<Common>,
    activity: &Arc<Activity>,
) -> Entry {
    let Described { original, about, validator } = described;
    let id = common.id.clone();
    let place = match common.confined {
        Some(_) => Place::Server(id),
        None => Place::Remote(id),
    };
    let tool = Remote {
        about: about.clone(),
        original,
        peer: peer.clone(),
        common: common.clone(),
        activity: activity.clone(),
    };
    Entry { about, place, tool: Some(Box::new(tool)), validator }
}

impl Tool for Remote {
    fn about(&self) -> About {
        self.about.clone()
    }

    /// Dropping it tells the server that nobody waits any more.
    fn run<'a>(&'a self, input: Value, run: Run<'a>) -> BoxFuture<'a, Outcome> {
        self.call(input, run).boxed()
    }
}

impl Remote {
    async fn call(&self, input: Value, run: Run<'_>) -> Outcome {
        let _busy = self.activity.begin();
        let limit = run.patience.unwrap_or(USUAL_TIMEOUT);
        if let Some((report, profile)) = &self.common.confined {
            let applied = facts::sandbox_applied(report, profile, &[], limit, PREVIEW_BYTES);
            run.facts.note(Payload::SandboxApplied(applied)).await;
        }
        let Value::Object(arguments) = input else {
            return Failure::new(Kind::Schema, "expected an object").into();
        };
        if self.peer.is_transport_closed() {
            let text = format!("the MCP server {} is gone; nothing was done", self.common.id);
            return Failure::new(Kind::Failed, text).into();
        }
        let params = CallToolRequestParams::new(self.original.clone()).with_arguments(arguments);
        let answered = timeout(limit, self.peer.call_tool_once(params)).await;
        let result = match answered {
            Ok(Ok(CallToolResponse::Complete(result))) => result,
            Ok(Ok(_)) => {
                let text = "the server wants more than a call has to give: an answer of a \
                    person, or time to finish later";
                return Failure::new(Kind::Failed, text).into();
            }
            Ok(Err(error)) => {
                return Failure::new(Kind::Failed, self.explain(&error).await).into();
            }
            Err(_) => {
                let text = format!("no answer after {} ms; {MAYBE}", limit.as_millis());
                return Failure::new(Kind::Timeout, text).into();
            }
        };
        let Answer { text, structured, is_error } = content::answer(result);
        let run = Run { redactor: &self.common.redactor, ..run };
        let mut printed = Printed::new(&run, PREVIEW_BYTES);
        printed.push(text.as_bytes()).await;
        let (output, kept) = printed.finish().await;
        let metadata = Metadata {
            truncated: output.truncated(),
            output_bytes: output.total(),
            kept,
            ..Metadata::default()
        };
        let text = output.preview();
        let result = match is_error {
            true => Err(Failure::new(Kind::Failed, text)),
            false => Ok(self.data(text, structured)),
        };
        Outcome { result, metadata }
    }

    fn data(&self, text: String, structured: Option<Value>) -> Value {
        let mut data = json!({ "content": text });
        // A secret may be anywhere in it.
        let structured = structured.map(|value| self.common.redactor.text(&value.to_string()));
        if let Some(value) = structured.and_then(|json| serde_json::from_str::<Value>(&json).ok()) {
            data["structured_content"] = value;
        }
        data
    }

    /// What an error means for whoever called.
    async fn explain(&self, error: &ServiceError) -> String {
        if let ServiceError::McpError(refusal) = error {
            let text = self.common.redactor.text(&refusal.message);
            return format!("the server refused: {}", shorten(&clean(&text), LONGEST_DETAIL));
        }
        // Whoever comes next is to find another connection.
        self.common.fault.end();
        let detail = self.common.explain(error).await;
        format!("the server is gone or did not answer: {detail}; {MAYBE}")
    }
}
