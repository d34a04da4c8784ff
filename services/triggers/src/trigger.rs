//! What starts a turn when no person does. No I/O.

use chassis::Tenant;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    ids::TriggerId,
    schedule::{Plan, Problem, Schedule},
    words::words,
};

/// A trigger as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigger {
    pub id: TriggerId,
    pub tenant: Tenant,

    /// Who made it, and in whose name its turns are submitted.
    pub subject: String,
    pub source: Source,
    pub definition: Definition,
    pub status: Status,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

/// What its creator decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    pub name: String,
    pub kind: Kind,
    pub target: Target,
    pub template: String,

    /// Nothing: the server's default.
    pub max_per_minute: Option<i32>,
    pub mode: Option<Mode>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Schedule(Schedule),
    Webhook(Webhook),
    Api,
    McpEvent(McpEvent),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Webhook {
    pub provider: String,
    pub filter: String,

    /// Of generic senders; empty: the usual ones.
    pub signature_header: String,
    pub delivery_header: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct McpEvent {
    pub mcp_server_id: String,
    pub subscription: String,
    pub project: String,
}

/// Where the turns go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    pub session: TargetSession,

    /// Of sessions that are made; empty: the server's default.
    pub agent: String,
    pub workspace_id: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetSession {
    /// Always this one.
    Id(String),

    /// A new one for every firing.
    New,

    /// One for each value of this template.
    Key(String),
}

/// What a turn may do less than its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Plan,
    NeverAsk,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Plan => "plan",
            Mode::NeverAsk => "never_ask",
        }
    }
}

words! {
    /// What fires it.
    Source {
        Schedule = "schedule",
        Webhook = "webhook",
        Api = "api",
        SelfSchedule = "self_schedule",
        McpEvent = "mcp_event",
    }
}

words! {
    Status {
        Active = "active",
        Paused = "paused",
        Expired = "expired",
        Finished = "finished",
    }
}

impl Trigger {
    /// When it is due, if it is a schedule.
    pub fn plan(&self) -> Result<Option<Plan>, Problem> {
        match &self.definition.kind {
            Kind::Schedule(schedule) => {
                Plan::new(schedule, self.created_at, self.expires_at, Some(self.id)).map(Some)
            }
            Kind::Webhook(_) | Kind::Api | Kind::McpEvent(_) => Ok(None),
        }
    }
}
