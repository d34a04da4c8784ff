//! Tools that run here, in the session service, because what they touch is kept here.
//!
//! They are in the catalogue of the tools service like every other, and are evaluated
//! there; only their execution comes back. Whatever happens, the answer is the uniform
//! envelope: a tool never fails a turn.

mod memories;
mod wakeups;
mod work;

use chassis::Caller;
use proto::{
    event::v1::ToolMetadata,
    tools::v1::{Call, Tool},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    error::Error,
    host::{Catalogue, Host},
    offer,
    turn::Outcome,
};

/// What the catalogue says of a tool that runs here.
const HERE: &str = "session";

/// Why a call came to nothing: `ToolFailed.kind` and what the model reads.
pub struct Refusal {
    pub kind: &'static str,
    pub text: String,
}

type Answer = Result<Value, Refusal>;

/// Whether a tool runs here.
pub async fn hosts(host: &Host, caller: &Caller, tool: &str) -> bool {
    let here = |catalogue: std::sync::Arc<Catalogue>| is_here(&catalogue.tools, tool);
    host.catalogue(caller).await.is_ok_and(here)
}

/// The same, of tools that are at hand.
pub fn is_here(tools: &[Tool], tool: &str) -> bool {
    tools.iter().any(|known| known.name == tool && known.host == HERE)
}

/// Runs a call that was allowed.
pub async fn execute(host: &Host, caller: &Caller, call: &Call) -> Outcome {
    let started = Instant::now();
    let answer = match call.tool.as_str() {
        "memory_write" => memories::write(host, caller, call).await,
        "memory_read" => memories::read(host, caller, call).await,
        "memory_list" => memories::list(host, caller, call).await,
        "memory_delete" => memories::delete(host, caller, call).await,
        "request_wakeup" => wakeups::request(host, caller, call).await,
        "cancel_wakeup" => wakeups::cancel(host, caller, call).await,
        "todo" => work::todo(call),
        "skill" => work::skill(host, caller, call).await,
        offer::TOOL_SEARCH => work::tool_search(host, caller, call).await,
        tool => Err(refused("unknown_tool", format!("this version cannot run the tool {tool}"))),
    };
    let duration_ms = i32::try_from(started.elapsed().as_millis()).unwrap_or(i32::MAX);
    let metadata = ToolMetadata { duration_ms, ..ToolMetadata::default() };
    match answer {
        Ok(data) => Outcome::Result { data_json: data.to_string(), metadata },
        Err(Refusal { kind, text }) => Outcome::Error { text, kind: kind.to_owned(), metadata },
    }
}

pub fn refused(kind: &'static str, text: impl Into<String>) -> Refusal {
    Refusal { kind, text: text.into() }
}

/// The input as the tool's schema describes it. It was checked when the call was
/// evaluated, so this fails only where catalogue and code are of different versions.
fn input<T: DeserializeOwned>(call: &Call) -> Result<T, Refusal> {
    serde_json::from_str(&call.input_json)
        .map_err(|error| refused("schema", format!("invalid input: {error}")))
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        match error {
            Error::Database(cause) => {
                tracing::warn!(error = %cause, "a tool of ours could not reach the database");
                refused("unavailable", "the database does not answer, try again later")
            }
            error => refused("failed", error.to_string()),
        }
    }
}
