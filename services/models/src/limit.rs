//! Limits and budgets: which of them govern a call, and what it takes from each. No I/O.

use std::{collections::BTreeMap, fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

chassis::id!(
    /// Money for calls.
    BudgetId,
    "bud"
);

/// The budget that pays for calls that name none.
pub const DEFAULT_BUDGET: &str = "default";

/// What a budget is called where others have the name of a limit.
pub const BUDGET: &str = "budget";

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Name {
    RequestsPerMinute,
    TokensPerMinute,
    ConcurrentStreams,
    TokensPerDay,
    CostMicrosPerDay,
    CostMicrosPerMonth,
}

/// Of whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Tenant,
    Subject,
    SessionTree,
    Provider,
    Model,
}

/// How long something counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// While the stream is open.
    Live,
    /// For 60 seconds, which are rounded up to whole ones.
    Minute,
    /// Until midnight, UTC.
    Day,
    /// Until the first of the month, UTC.
    Month,
    /// For ever.
    Budget,
}

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    Calls,
    Tokens,
    Micros,
}

/// What a limit says about whom it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    pub value: i64,
    pub queue_ms: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub name: Name,
    pub scope: Scope,
    /// Empty: each one that has no limit of its own.
    pub key: String,
    pub terms: Terms,
}

/// A budget as far as deciding goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purse {
    pub id: BudgetId,
    pub name: String,
    pub amount_micros: i64,
}

/// What somebody changed: a limit, or a budget, whose scope is its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Grows.
    pub id: i64,
    pub name: String,
    pub scope: String,
    pub key: String,
    pub before: i64,
    pub after: i64,
    /// Who did it.
    pub subject: String,
    pub changed_at: Timestamp,
}

/// What a tenant has set, as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    pub limits: Vec<Limit>,
    pub budgets: Vec<Purse>,
    /// The newest changes, oldest first.
    // Processes of an earlier build leave rules without them in Redis.
    #[serde(default)]
    pub changes: Vec<Change>,
}

/// The same as it is looked up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Governance {
    limits: BTreeMap<(Name, Scope), BTreeMap<String, Terms>>,
    budgets: BTreeMap<BudgetId, i64>,
    default_budget: Option<BudgetId>,
    changes: Vec<Change>,
}

/// A call as limits see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    pub subject: String,
    pub root_session_id: String,
    pub provider: String,
    /// `provider/model`.
    pub model: String,
}

/// The most a call can take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worst {
    pub tokens: i64,
    pub micros: i64,
}

/// One counter a call must fit under, and what it takes from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    pub window: Window,
    pub counter: String,
    pub measure: Measure,
    pub need: i64,
    pub limit: i64,
    /// How long a call may stand in line for it.
    pub queue_ms: i64,
    /// What is left of that.
    pub wait_ms: i64,
}

impl Governance {
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.budgets.is_empty()
    }

    pub fn has(&self, window: Window) -> bool {
        self.limits.keys().any(|(name, _)| name.window() == window)
    }

    /// The budget that pays for a call that names `named`.
    pub fn budget(&self, named: Option<BudgetId>) -> Result<Option<(BudgetId, i64)>, BudgetId> {
        match named {
            Some(id) => match self.budgets.get(&id) {
                Some(amount) => Ok(Some((id, *amount))),
                None => Err(id),
            },
            None => Ok(self.default_budget.and_then(|id| Some((id, *self.budgets.get(&id)?)))),
        }
    }

    /// The limits that count this call. One for its very key takes the place of one for each.
    pub fn governing<'a>(
        &'a self,
        call: &'a Subject,
    ) -> impl Iterator<Item = (Name, Scope, &'a str, Terms)> {
        self.limits.iter().filter_map(|((name, scope), keys)| {
            let key = call.key(*scope);
            let terms = keys.get(key).or_else(|| keys.get(""))?;
            Some((*name, *scope, key, *terms))
        })
    }

    /// The newest change, whomever it is about.
    pub fn newest_change(&self) -> Option<&Change> {
        self.changes.last()
    }

    /// What was changed of what governs this call.
    pub fn changes<'a>(
        &'a self,
        call: &'a Subject,
        budget: Option<BudgetId>,
    ) -> impl Iterator<Item = &'a Change> {
        let budget = budget.map(|id| id.to_string());
        self.changes.iter().filter(move |change| {
            let Change { name, scope, key, .. } = change;
            let (Ok(name), Ok(scope)) = (name.parse(), scope.parse()) else {
                return name == BUDGET && budget.as_ref() == Some(scope);
            };
            // A limit for each is not for who has one of its own.
            let own = call.key(scope);
            let has_own = || self.limits.get(&(name, scope)).is_some_and(|l| l.contains_key(own));
            key == own || key.is_empty() && !has_own()
        })
    }

    /// Every counter this call must fit under.
    pub fn checks(
        &self,
        call: &Subject,
        worst: Worst,
        budget: Option<(BudgetId, i64)>,
    ) -> Vec<Check> {
        let governing = self.governing(call).map(|(name, scope, key, terms)| {
            let need = worst.of(name.measure());
            Check {
                window: name.window(),
                counter: counter(name, scope, key),
                measure: name.measure(),
                // What no minute could hold waits for one that is empty, or it could never be served.
                need: if name == Name::TokensPerMinute { need.min(terms.value) } else { need },
                limit: terms.value,
                queue_ms: i64::from(terms.queue_ms),
                wait_ms: i64::from(terms.queue_ms),
            }
        });
        let mut checks: Vec<_> = governing.collect();
        checks.extend(budget.map(|(id, amount)| Check {
            window: Window::Budget,
            counter: id.to_string(),
            measure: Measure::Micros,
            need: worst.micros,
            limit: amount,
            queue_ms: 0,
            wait_ms: 0,
        }));
        checks
    }
}

impl From<&Rules> for Governance {
    fn from(rules: &Rules) -> Governance {
        let mut limits: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for Limit { name, scope, key, terms } in &rules.limits {
            limits.entry((*name, *scope)).or_default().insert(key.clone(), *terms);
        }
        let default = rules.budgets.iter().find(|budget| budget.name == DEFAULT_BUDGET);
        Governance {
            limits,
            budgets: rules.budgets.iter().map(|one| (one.id, one.amount_micros)).collect(),
            default_budget: default.map(|budget| budget.id),
            changes: rules.changes.clone(),
        }
    }
}

/// The name under which something is counted.
pub fn counter(name: Name, scope: Scope, key: &str) -> String {
    format!("{}:{}:{key}", name.as_str(), scope.as_str())
}

impl Subject {
    pub fn key(&self, scope: Scope) -> &str {
        match scope {
            Scope::Tenant => "",
            Scope::Subject => &self.subject,
            Scope::SessionTree => &self.root_session_id,
            Scope::Provider => &self.provider,
            Scope::Model => &self.model,
        }
    }
}

impl Worst {
    pub fn of(self, measure: Measure) -> i64 {
        match measure {
            Measure::Calls => 1,
            Measure::Tokens => self.tokens,
            Measure::Micros => self.micros,
        }
    }
}

impl Check {
    /// Whether it is about whom is asked, and not about who asks or pays.
    pub fn is_of_model(&self) -> bool {
        let (_, scope) = self.words();
        self.window != Window::Budget && matches!(scope.parse(), Ok(Scope::Provider | Scope::Model))
    }

    /// The limit and the scope that the counter's name begins with; a budget has none.
    pub fn words(&self) -> (&str, &str) {
        let mut words = self.counter.splitn(3, ':');
        match (self.window, words.next(), words.next()) {
            (Window::Budget, ..) => (BUDGET, &self.counter),
            (_, name, scope) => (name.unwrap_or_default(), scope.unwrap_or_default()),
        }
    }
}

impl Name {
    pub const ALL: [Name; 6] = [
        Name::RequestsPerMinute,
        Name::TokensPerMinute,
        Name::ConcurrentStreams,
        Name::TokensPerDay,
        Name::CostMicrosPerDay,
        Name::CostMicrosPerMonth,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Name::RequestsPerMinute => "requests_per_minute",
            Name::TokensPerMinute => "tokens_per_minute",
            Name::ConcurrentStreams => "concurrent_streams",
            Name::TokensPerDay => "tokens_per_day",
            Name::CostMicrosPerDay => "cost_micros_per_day",
            Name::CostMicrosPerMonth => "cost_micros_per_month",
        }
    }

    pub fn window(self) -> Window {
        match self {
            Name::RequestsPerMinute | Name::TokensPerMinute => Window::Minute,
            Name::ConcurrentStreams => Window::Live,
            Name::TokensPerDay | Name::CostMicrosPerDay => Window::Day,
            Name::CostMicrosPerMonth => Window::Month,
        }
    }

    pub fn measure(self) -> Measure {
        match self {
            Name::RequestsPerMinute | Name::ConcurrentStreams => Measure::Calls,
            Name::TokensPerMinute | Name::TokensPerDay => Measure::Tokens,
            Name::CostMicrosPerDay | Name::CostMicrosPerMonth => Measure::Micros,
        }
    }
}

impl Scope {
    pub const ALL: [Scope; 5] =
        [Scope::Tenant, Scope::Subject, Scope::SessionTree, Scope::Provider, Scope::Model];

    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Tenant => "tenant",
            Scope::Subject => "subject",
            Scope::SessionTree => "session_tree",
            Scope::Provider => "provider",
            Scope::Model => "model",
        }
    }
}

impl FromStr for Name {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Name, &'static str> {
        let known = Name::ALL.into_iter().find(|name| name.as_str() == text);
        known.ok_or(
            "expected requests_per_minute, tokens_per_minute, concurrent_streams, \
             tokens_per_day, cost_micros_per_day or cost_micros_per_month",
        )
    }
}

impl FromStr for Scope {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Scope, &'static str> {
        let known = Scope::ALL.into_iter().find(|scope| scope.as_str() == text);
        known.ok_or("expected tenant, subject, session_tree, provider or model")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests;
