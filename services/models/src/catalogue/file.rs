//! From the text of a catalogue to one that can be relied on. What is wrong is told with
//! its line and its field, and nothing of it is used.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    str::FromStr,
    time::Duration,
};

use serde::Deserialize;
use url::Url;

use super::{
    Capability, Catalogue, Kind, Model, Offer, OutputLimitField, Price, Provider, Thinking, Tier,
    credential::Reference,
    places::Places,
    policy::{AfterFirstToken, Ceiling, Pattern, Policy},
};
use crate::tokens::Tokenizer;

/// What is wrong with a catalogue, and where.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("line {line}, {field}: {problem}")]
pub struct Error {
    pub line: usize,
    /// `models[1].output_tokens`.
    pub field: String,
    pub problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    providers: Vec<ProviderEntry>,
    models: Vec<ModelEntry>,
    /// By name; `*` is everybody else.
    #[serde(default)]
    tenants: BTreeMap<String, TenantEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderEntry {
    name: String,
    kind: Kind,
    #[serde(default)]
    base_url: String,
    credential: Option<Reference>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    connect_timeout_ms: Option<u64>,
    idle_timeout_ms: Option<u64>,
    #[serde(default)]
    output_limit_field: OutputLimitField,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelEntry {
    provider: String,
    model: String,
    #[serde(default)]
    aliases: Vec<String>,
    tier: Tier,
    context_tokens: i32,
    output_tokens: i32,
    capabilities: BTreeSet<Capability>,
    #[serde(default)]
    regions: BTreeSet<String>,
    price: Price,
    tokenizer: Option<Tokenizer>,
    #[serde(default)]
    thinking: Thinking,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TenantEntry {
    allow: Vec<String>,
    deny: Vec<String>,
    regions: BTreeSet<String>,
    price_ceiling: Ceiling,
    prices: BTreeMap<String, Price>,
    after_first_token: AfterFirstToken,
}

const CONNECT: Duration = Duration::from_secs(10);

/// Reasoning models think for a while before they say anything.
const IDLE: Duration = Duration::from_secs(100);

/// Nobody who waits longer is still there.
const LONGEST: Duration = Duration::from_secs(900);

const MAX_PROVIDERS: usize = 100;
const MAX_MODELS: usize = 1_000;
const MAX_TENANTS: usize = 10_000;
const MAX_NAME_BYTES: usize = 100;

impl FromStr for Catalogue {
    type Err = Error;

    fn from_str(text: &str) -> Result<Catalogue, Error> {
        let file: File = serde_json::from_str(text).map_err(|error| misshapen(text, &error))?;
        file.check().map_err(|Wrong { field, problem }| Error {
            line: Places::of(text).line(&field),
            field,
            problem,
        })
    }
}

/// What the parser found, with the field that it only knows by its place.
fn misshapen(text: &str, error: &serde_json::Error) -> Error {
    let (places, place) = (Places::of(text), (error.line(), error.column()));
    let told = error.to_string();
    // What it says ends with the place, which we say better.
    let problem = told.rsplit_once(" at line ").map_or(&*told, |(problem, _)| problem);
    let named = problem.strip_prefix("missing field `").or(problem.strip_prefix("unknown field `"));
    let field = match named.and_then(|named| named.split_once('`')) {
        Some((name, _)) => match places.value_around(place) {
            "" => name.to_owned(),
            object => format!("{object}.{name}"),
        },
        None => match places.value_at(place) {
            "" => "the catalogue".to_owned(),
            field => field.to_owned(),
        },
    };
    Error { line: error.line(), field, problem: problem.to_owned() }
}

/// A field and what is wrong with it.
struct Wrong {
    field: String,
    problem: String,
}

fn wrong<T>(field: impl Into<String>, problem: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { field: field.into(), problem: problem.into() })
}

impl File {
    fn check(self) -> Result<Catalogue, Wrong> {
        for (field, count, most) in [
            ("providers", self.providers.len(), MAX_PROVIDERS),
            ("models", self.models.len(), MAX_MODELS),
            ("tenants", self.tenants.len(), MAX_TENANTS),
        ] {
            if count > most {
                return wrong(field, format!("must be at most {most}"));
            }
        }
        let mut providers: Vec<Provider> = Vec::new();
        for (index, entry) in self.providers.into_iter().enumerate() {
            let provider = entry.check(&format!("providers[{index}]"))?;
            if providers.iter().any(|other| other.name == provider.name) {
                let problem = format!("two providers are called {}", provider.name);
                return wrong(format!("providers[{index}].name"), problem);
            }
            providers.push(provider);
        }

        let (mut models, mut names) = (Vec::new(), BTreeSet::new());
        for (index, entry) in self.models.into_iter().enumerate() {
            let place = format!("models[{index}]");
            let model = entry.check(&place, &providers)?;
            let aliases = model.aliases.iter().enumerate();
            let aliases =
                aliases.map(|(index, alias)| (format!("{place}.aliases[{index}]"), alias.clone()));
            for (field, name) in
                [(format!("{place}.model"), model.name())].into_iter().chain(aliases)
            {
                check_name(&field, &name)?;
                if !names.insert(name.clone()) {
                    return wrong(field, format!("two models are called {name}"));
                }
            }
            models.push(model);
        }
        models.sort_by_key(Model::name);

        let mut everybody = Offer { models, policy: Policy::default() };
        let mut tenants = HashMap::new();
        for (name, entry) in self.tenants {
            let offer = entry.check(&format!("tenants.{name}"), &everybody.models)?;
            tenants.insert(name, offer);
        }
        if let Some(offer) = tenants.remove("*") {
            everybody = offer;
        }
        Ok(Catalogue { providers, everybody, tenants })
    }
}

impl ProviderEntry {
    fn check(self, place: &str) -> Result<Provider, Wrong> {
        let field = |name: &str| format!("{place}.{name}");
        check_name(&field("name"), &self.name)?;
        if self.name.contains('/') {
            return wrong(field("name"), "must not contain a slash");
        }
        let base_url = self.base_url.trim_end_matches('/').to_owned();
        match (self.kind, Url::parse(&base_url)) {
            (Kind::Scripted, _) if base_url.is_empty() => (),
            (Kind::Scripted, _) => {
                return wrong(field("base_url"), "the scripted provider has no address");
            }
            (_, Ok(url)) if !["http", "https"].contains(&url.scheme()) => {
                return wrong(field("base_url"), "must begin with http:// or https://");
            }
            (_, Ok(url)) if !url.username().is_empty() || url.password().is_some() => {
                return wrong(field("base_url"), "must not hold a credential: refer to one");
            }
            (_, Ok(url)) if url.query().is_some() || url.fragment().is_some() => {
                return wrong(field("base_url"), "must end with its path");
            }
            (_, Ok(_)) => (),
            (_, Err(error)) => return wrong(field("base_url"), error.to_string()),
        }
        for (name, value) in &self.headers {
            let field = field(&format!("headers.{name}"));
            if http::HeaderName::try_from(name).is_err() {
                return wrong(field, "is not the name of a header");
            }
            if ["authorization", "x-api-key", "x-goog-api-key"]
                .contains(&&*name.to_ascii_lowercase())
            {
                return wrong(field, "is a credential: refer to it in credential instead");
            }
            if http::HeaderValue::try_from(value).is_err() {
                return wrong(field, "is not the value of a header");
            }
        }
        let credential = self.credential.as_ref().map(Reference::resolve).transpose();
        Ok(Provider {
            kind: self.kind,
            credential: credential
                .map_err(|problem| Wrong { field: field("credential"), problem })?,
            connect_timeout: wait(&field("connect_timeout_ms"), self.connect_timeout_ms, CONNECT)?,
            idle_timeout: wait(&field("idle_timeout_ms"), self.idle_timeout_ms, IDLE)?,
            name: self.name,
            base_url,
            headers: self.headers,
            output_limit_field: self.output_limit_field,
        })
    }
}

impl ModelEntry {
    fn check(self, place: &str, providers: &[Provider]) -> Result<Model, Wrong> {
        let Some(provider) = providers.iter().find(|one| one.name == self.provider) else {
            let problem = format!("no provider is called {}", self.provider);
            return wrong(format!("{place}.provider"), problem);
        };
        if self.model.is_empty() {
            return wrong(format!("{place}.model"), "is empty");
        }
        if self.context_tokens < 2 {
            return wrong(format!("{place}.context_tokens"), "must be at least 2");
        }
        if !(1..self.context_tokens).contains(&self.output_tokens) {
            let problem = "must be at least 1 and less than context_tokens";
            return wrong(format!("{place}.output_tokens"), problem);
        }
        check_price(&format!("{place}.price"), &self.price)?;
        Ok(Model {
            provider: self.provider,
            kind: provider.kind,
            model: self.model,
            aliases: self.aliases,
            tier: self.tier,
            context_tokens: self.context_tokens,
            output_tokens: self.output_tokens,
            capabilities: self.capabilities,
            regions: self.regions,
            price: self.price,
            tokenizer: self.tokenizer.unwrap_or(provider.kind.tokenizer()),
            thinking: self.thinking,
        })
    }
}

impl TenantEntry {
    fn check(self, place: &str, models: &[Model]) -> Result<Offer, Wrong> {
        let mut models = models.to_vec();
        for (name, price) in self.prices {
            let field = format!("{place}.prices.{name}");
            check_price(&field, &price)?;
            match models.iter_mut().find(|model| model.name() == name) {
                Some(model) => model.price = price,
                None => return wrong(field, "no model of the catalogue is called this"),
            }
        }
        let patterns = |list: Vec<String>, name: &str| {
            let patterns = list.into_iter().enumerate().map(|(index, pattern)| {
                let field = format!("{place}.{name}[{index}]");
                // An alias would silently match nothing, which in a deny is dangerous.
                if !pattern.ends_with('*') && !models.iter().any(|one| one.name() == pattern) {
                    return wrong(field, "is neither a model's provider/model nor ends with *");
                }
                Ok(Pattern(pattern))
            });
            patterns.collect::<Result<Vec<_>, _>>()
        };
        let policy = Policy {
            allow: patterns(self.allow, "allow")?,
            deny: patterns(self.deny, "deny")?,
            regions: self.regions,
            ceiling: self.price_ceiling,
            after_first_token: self.after_first_token,
        };
        Ok(Offer { models, policy })
    }
}

fn check_name(field: &str, name: &str) -> Result<(), Wrong> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
    match fits && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\*?#%".contains(&byte)) {
        true => Ok(()),
        false => wrong(field, "must be 1 to 100 letters, digits and signs like - . _ : @ /"),
    }
}

fn check_price(place: &str, price: &Price) -> Result<(), Wrong> {
    let Price { currency, input_micros, output_micros, cache_read_micros, cache_write_micros } =
        price;
    if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return wrong(format!("{place}.currency"), "must be three capital letters");
    }
    for (name, micros) in [
        ("input_micros", input_micros),
        ("output_micros", output_micros),
        ("cache_read_micros", cache_read_micros),
        ("cache_write_micros", cache_write_micros),
    ] {
        if !(0..=i64::from(u32::MAX)).contains(micros) {
            return wrong(format!("{place}.{name}"), "must be from 0 to 4294967295");
        }
    }
    Ok(())
}

fn wait(field: &str, milliseconds: Option<u64>, default: Duration) -> Result<Duration, Wrong> {
    match milliseconds.map(Duration::from_millis) {
        None => Ok(default),
        Some(wait) if wait.is_zero() || wait > LONGEST => wrong(field, "must be from 1 to 900000"),
        Some(wait) => Ok(wait),
    }
}
