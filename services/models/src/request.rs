//! A row of the request log, which is also the ledger.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    facts::ModelRequestId,
    limit::{BudgetId, Measure, Subject, Window, Worst},
    usage::Usage,
};

chassis::id!(
    /// A running process of this service.
    ReplicaId,
    "mrep"
);

/// Everything that is known of one call of a provider. The names are those of the table's columns,
/// and a row travels to Postgres and through Redis as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub id: ModelRequestId,
    pub tenant_id: String,
    pub subject: String,
    pub session_id: String,
    pub root_session_id: String,
    pub turn_id: String,
    pub step_id: String,
    pub provider: String,
    pub model: String,
    pub budget_id: Option<BudgetId>,
    pub replica_id: ReplicaId,
    pub status: Status,
    pub error_kind: String,
    pub basis: Basis,
    pub reserved_input: i32,
    pub reserved_output: i32,
    pub reserved_micros: i64,
    pub input: i32,
    pub output: i32,
    pub reasoning: i32,
    pub cache_read: i32,
    pub cache_write: i32,
    pub cost_micros: i64,
    pub currency: String,
    pub started_at: Timestamp,
    pub first_token_ms: i32,
    pub duration_ms: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Running,
    Completed,
    Failed,
    Cancelled,
}

/// Where the counts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// There are none yet.
    #[serde(rename = "")]
    None,
    Exact,
    Estimated,
    WorstCase,
}

/// What is on record of a tenant, as far as limits look back.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Past {
    pub minute: Vec<Sum>,
    pub day: Vec<Sum>,
    pub month: Vec<Sum>,
    pub running: Vec<Row>,
    pub budgets: Vec<Spent>,
}

/// What calls that are over took together.
#[derive(Debug, Clone, PartialEq)]
pub struct Sum {
    pub subject: Subject,
    /// When they began, where it matters.
    pub second: i64,
    pub calls: i64,
    pub tokens: i64,
    pub micros: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Spent {
    pub id: BudgetId,
    pub spent_micros: i64,
}

impl Row {
    pub fn subject(&self) -> Subject {
        Subject {
            subject: self.subject.clone(),
            root_session_id: self.root_session_id.clone(),
            provider: self.provider.clone(),
            model: format!("{}/{}", self.provider, self.model),
        }
    }

    pub fn worst(&self) -> Worst {
        let tokens = i64::from(self.reserved_input) + i64::from(self.reserved_output);
        Worst { tokens, micros: self.reserved_micros }
    }

    /// What it took in the end.
    pub fn taken(&self) -> Worst {
        let tokens = [self.input, self.output, self.cache_read, self.cache_write];
        Worst { tokens: tokens.map(i64::from).iter().sum(), micros: self.cost_micros }
    }

    pub fn consume(&mut self, usage: Usage, cost_micros: i64, basis: Basis) {
        let Usage { input, output, reasoning, cache_read, cache_write } = usage;
        (self.input, self.output, self.reasoning) = (input, output, reasoning);
        (self.cache_read, self.cache_write) = (cache_read, cache_write);
        (self.cost_micros, self.basis) = (cost_micros, basis);
    }

    /// The end of a request whose process died: nobody knows how far it came.
    pub fn abandon(&mut self) {
        let usage =
            Usage { input: self.reserved_input, output: self.reserved_output, ..Usage::default() };
        self.consume(usage, self.reserved_micros, Basis::WorstCase);
        self.status = Status::Cancelled;
    }
}

impl Past {
    pub fn sums(&self) -> impl Iterator<Item = (Window, &Sum)> {
        let windows = [
            (Window::Minute, &self.minute),
            (Window::Day, &self.day),
            (Window::Month, &self.month),
        ];
        windows.into_iter().flat_map(|(window, sums)| sums.iter().map(move |sum| (window, sum)))
    }
}

impl Sum {
    pub fn amount(&self, measure: Measure) -> i64 {
        match measure {
            Measure::Calls => self.calls,
            Measure::Tokens => self.tokens,
            Measure::Micros => self.micros,
        }
    }
}
