use std::{collections::BTreeMap, path::Path, time::Duration};

use futures::future::BoxFuture;
use jsonschema::Validator;
use sandbox::{Profile, Sandbox};
use serde_json::Value;

use crate::{bash::Bash, facts::Facts, outcome::Outcome};

/// Something an agent can do.
pub trait Tool: Send + Sync {
    fn about(&self) -> About;

    /// Does it. Failure is an outcome like any other. Dropping the future stops the work and
    /// everything it started.
    fn run<'a>(&'a self, input: Value, run: Run<'a>) -> BoxFuture<'a, Outcome>;
}

/// What a tool is run with.
pub struct Run<'a> {
    pub sandbox: &'a Sandbox,
    pub profile: &'a Profile,
    pub workspace: &'a Path,

    /// The longest the caller is willing to wait, if it said so.
    pub patience: Option<Duration>,
    pub facts: &'a Facts<'a>,
}

/// A tool as an agent sees it.
#[derive(Debug, Clone)]
pub struct About {
    /// `[a-z0-9_]`, 1 to 64 characters.
    pub name: &'static str,
    pub description: &'static str,
    pub input_schema: Value,

    /// It changes nothing, so calls may run side by side.
    pub read_only: bool,

    /// It may destroy something.
    pub destructive: bool,
}

/// A tool and what its input must look like.
pub struct Entry {
    pub about: About,
    pub tool: Box<dyn Tool>,
    pub validator: Validator,
}

/// The tools there are, by name.
pub struct Catalog(BTreeMap<&'static str, Entry>);

impl Catalog {
    pub fn built_in() -> anyhow::Result<Catalog> {
        Catalog::new([Box::new(Bash) as Box<dyn Tool>])
    }

    fn new(tools: impl IntoIterator<Item = Box<dyn Tool>>) -> anyhow::Result<Catalog> {
        let entry = |tool: Box<dyn Tool>| {
            let about = tool.about();
            let validator = jsonschema::validator_for(&about.input_schema)?;
            Ok((about.name, Entry { about, tool, validator }))
        };
        tools.into_iter().map(entry).collect::<anyhow::Result<_>>().map(Catalog)
    }

    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.0.get(name)
    }

    /// The tools whose names come after `name`, in order of name.
    pub fn after(&self, name: &str) -> impl Iterator<Item = &About> {
        self.0.values().map(|entry| &entry.about).filter(move |about| about.name > name)
    }
}
