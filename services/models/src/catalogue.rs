//! The models we know: who runs them, what they can do, how much they read, what they
//! cost, and who may use them.

mod credential;
mod file;
pub mod live;
mod places;
mod policy;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    str::FromStr,
    time::Duration,
};

use secrecy::SecretString;
use serde::Deserialize;

pub use self::policy::{AfterFirstToken, Policy};
use crate::{tokens::Tokenizer, usage::Usage};

/// What the service knows without being told.
const BUILT_IN: &str = include_str!("../catalogue.json");

/// Everything one file says. Holding one is proof that somebody checked it.
#[derive(Debug, Clone)]
pub struct Catalogue {
    pub providers: Vec<Provider>,
    /// What a tenant sees that the file does not mention.
    everybody: Offer,
    tenants: HashMap<String, Offer>,
}

/// What one tenant is offered: every model, in the order of names and at its prices, and
/// what it may make of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    pub models: Vec<Model>,
    pub policy: Policy,
}

/// Somebody who runs models, and the way there.
#[derive(Debug, Clone)]
pub struct Provider {
    pub name: String,
    pub kind: Kind,
    /// Without a slash at its end.
    pub base_url: String,
    pub credential: Option<SecretString>,
    pub headers: BTreeMap<String, String>,
    pub connect_timeout: Duration,
    /// How long it may say nothing at all.
    pub idle_timeout: Duration,
    pub output_limit_field: OutputLimitField,
}

/// How it is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Scripted,
    OpenaiChat,
    OpenaiResponses,
    Anthropic,
    Gemini,
}

/// What the limit of an answer is called, which is where compatible servers differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputLimitField {
    #[default]
    MaxTokens,
    MaxCompletionTokens,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    pub provider: String,
    /// How its provider is spoken to.
    pub kind: Kind,
    /// The provider's own name for it.
    pub model: String,
    /// Other names under which it may be asked for.
    pub aliases: Vec<String>,
    pub tier: Tier,
    pub context_tokens: i32,
    pub output_tokens: i32,
    pub capabilities: BTreeSet<Capability>,
    /// Where it runs; empty: nobody says.
    pub regions: BTreeSet<String>,
    pub price: Price,
    pub tokenizer: Tokenizer,
    pub thinking: Thinking,
}

/// How an Anthropic model is told how much to think.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    #[default]
    Budget,
    Adaptive,
}

/// From the least to the most able.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    Cheap,
    Balanced,
    Strong,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    Tools,
    Images,
    Reasoning,
    StructuredOutput,
}

/// Per million tokens, in millionths of the currency.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub currency: String,
    pub input_micros: i64,
    pub output_micros: i64,
    pub cache_read_micros: i64,
    pub cache_write_micros: i64,
}

impl Catalogue {
    #[cfg(test)]
    pub fn built_in() -> Result<Catalogue, file::Error> {
        BUILT_IN.parse()
    }

    /// What `tenant` is offered.
    pub fn of(&self, tenant: &str) -> &Offer {
        self.tenants.get(tenant).unwrap_or(&self.everybody)
    }

    /// What everybody is offered of whom the file says nothing.
    pub fn everybody(&self) -> &Offer {
        &self.everybody
    }
}

impl Offer {
    /// Finds a model by `provider/model` or by an alias.
    pub fn find(&self, name: &str) -> Option<&Model> {
        self.models
            .iter()
            .find(|model| model.is_called(name) || model.aliases.iter().any(|alias| alias == name))
    }
}

impl Model {
    /// `provider/model`, which names it in the whole system.
    pub fn name(&self) -> String {
        format!("{}/{}", self.provider, self.model)
    }

    fn is_called(&self, name: &str) -> bool {
        let model = name.strip_prefix(&self.provider).and_then(|rest| rest.strip_prefix('/'));
        model == Some(&self.model)
    }

    /// What of `wanted` this model lacks.
    pub fn gap(&self, wanted: &BTreeSet<Capability>) -> Vec<Capability> {
        wanted.difference(&self.capabilities).copied().collect()
    }
}

impl Price {
    /// What this many tokens cost in millionths, rounded up so that nothing is free by rounding.
    pub fn cost_micros(&self, usage: &Usage) -> i64 {
        let parts = [
            (usage.input, self.input_micros),
            (usage.output, self.output_micros),
            (usage.cache_read, self.cache_read_micros),
            (usage.cache_write, self.cache_write_micros),
        ];
        let sum: i128 =
            parts.iter().map(|(count, price)| i128::from(*count) * i128::from(*price)).sum();
        i64::try_from((sum + 999_999) / 1_000_000).unwrap_or(i64::MAX)
    }

    /// What a call costs at worst. Some providers charge more for input that they keep in their
    /// cache, and that may be all of it.
    pub fn worst_micros(&self, input: i32, output: i32) -> i64 {
        self.cost_micros(&match self.cache_write_micros > self.input_micros {
            true => Usage { cache_write: input, output, ..Usage::default() },
            false => Usage { input, output, ..Usage::default() },
        })
    }

    /// Whether reading something again from the provider's cache is worth staying for.
    pub fn rewards_cache(&self) -> bool {
        self.cache_read_micros < self.input_micros
    }
}

impl Kind {
    /// Who counts its tokens, unless the model says otherwise.
    fn tokenizer(self) -> Tokenizer {
        match self {
            Kind::Scripted => Tokenizer::Plain,
            Kind::OpenaiChat | Kind::OpenaiResponses => Tokenizer::Openai,
            Kind::Anthropic => Tokenizer::Anthropic,
            Kind::Gemini => Tokenizer::Gemini,
        }
    }
}

impl Tier {
    pub fn as_str(self) -> &'static str {
        match self {
            Tier::Cheap => "cheap",
            Tier::Balanced => "balanced",
            Tier::Strong => "strong",
        }
    }
}

impl Capability {
    pub const ALL: [Capability; 4] = [
        Capability::Tools,
        Capability::Images,
        Capability::Reasoning,
        Capability::StructuredOutput,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Capability::Tools => "tools",
            Capability::Images => "images",
            Capability::Reasoning => "reasoning",
            Capability::StructuredOutput => "structured_output",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Capability {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Capability, &'static str> {
        let known = Capability::ALL.into_iter().find(|capability| capability.as_str() == text);
        known.ok_or("expected tools, images, reasoning or structured_output")
    }
}

#[cfg(test)]
mod tests;
