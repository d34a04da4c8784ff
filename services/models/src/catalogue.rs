//! The models we know: what they can do, how much they read, what they cost.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::Deserialize;

use crate::usage::Usage;

/// Every model by name, in the order of names.
#[derive(Debug, Clone, PartialEq)]
pub struct Catalogue(Vec<Model>);

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    pub provider: String,
    /// The provider's own name for it.
    pub model: String,
    /// Other names under which it may be asked for.
    #[serde(default)]
    pub aliases: Vec<String>,
    pub tier: Tier,
    pub context_tokens: i32,
    pub output_tokens: i32,
    pub capabilities: BTreeSet<Capability>,
    pub price: Price,
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

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the catalogue is not the JSON it should be")]
    Json(#[from] serde_json::Error),

    #[error("two models of the catalogue are called {0}")]
    Ambiguous(String),

    #[error("{0} has a size or a price that cannot be")]
    Impossible(String),
}

impl Catalogue {
    /// What the service knows without being told.
    pub fn built_in() -> Result<Catalogue, Error> {
        include_str!("../catalogue.json").parse()
    }

    /// Finds a model by `provider/model` or by an alias.
    pub fn find(&self, name: &str) -> Option<&Model> {
        self.0
            .iter()
            .find(|model| model.name() == name || model.aliases.iter().any(|alias| alias == name))
    }

    pub fn models(&self) -> &[Model] {
        &self.0
    }
}

impl FromStr for Catalogue {
    type Err = Error;

    fn from_str(json: &str) -> Result<Catalogue, Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            models: Vec<Model>,
        }
        let mut models = serde_json::from_str::<File>(json)?.models;
        models.sort_by_key(Model::name);

        let mut names = BTreeSet::new();
        for model in &models {
            if !model.is_possible() {
                return Err(Error::Impossible(model.name()));
            }
            for name in [model.name()].iter().chain(&model.aliases) {
                if !names.insert(name.clone()) {
                    return Err(Error::Ambiguous(name.clone()));
                }
            }
        }
        Ok(Catalogue(models))
    }
}

impl Model {
    /// `provider/model`, which names it in the whole system.
    pub fn name(&self) -> String {
        format!("{}/{}", self.provider, self.model)
    }

    /// What of `wanted` this model lacks.
    pub fn gap(&self, wanted: &BTreeSet<Capability>) -> Vec<Capability> {
        wanted.difference(&self.capabilities).copied().collect()
    }

    fn is_possible(&self) -> bool {
        let Price { input_micros, output_micros, cache_read_micros, cache_write_micros, .. } =
            self.price;
        let prices = [input_micros, output_micros, cache_read_micros, cache_write_micros];
        (1..self.context_tokens).contains(&self.output_tokens)
            && prices.iter().all(|price| (0..=i64::from(u32::MAX)).contains(price))
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
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_built_in_catalogue_can_be_read() {
        let catalogue = Catalogue::built_in().unwrap();
        assert_eq!(catalogue.find("scripted"), catalogue.find("scripted/demo"));
        assert_eq!(catalogue.find("scripted/none"), None);
    }

    #[test]
    fn a_name_means_one_model() {
        let json = include_str!("../catalogue.json").replace("\"small\"", "\"demo\"");
        expect!["two models of the catalogue are called scripted/demo"]
            .assert_eq(&json.parse::<Catalogue>().unwrap_err().to_string());
    }

    #[test]
    fn an_answer_must_fit_into_the_context() {
        let json = include_str!("../catalogue.json").replace("64000", "128000");
        expect!["scripted/demo has a size or a price that cannot be"]
            .assert_eq(&json.parse::<Catalogue>().unwrap_err().to_string());
    }

    #[test]
    fn every_kind_of_token_has_its_price() {
        let catalogue = Catalogue::built_in().unwrap();
        let price = &catalogue.find("scripted/demo").unwrap().price;
        let usage =
            Usage { input: 1000, output: 100, reasoning: 50, cache_read: 500, cache_write: 10 };
        assert_eq!(price.cost_micros(&usage), 1000 + 400 + 50 + 13);
    }
}
