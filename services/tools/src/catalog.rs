use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jsonschema::Validator;
use sandbox::{Profile, Sandbox};
use serde_json::Value;

use crate::{
    bash::Bash, edit::Edit, egress::Gateway, facts::Facts, glob::Glob, grep::Grep, hosted,
    outcome::Outcome, outputs::Outputs, read::Read, redact::Redactor, web_fetch::WebFetch,
    web_search::WebSearch, workspaces::Entered, write::Write,
};

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
    pub entered: &'a Arc<Entered>,
    pub outputs: &'a Outputs,
    pub gateway: &'a Gateway,
    pub redactor: &'a Redactor,

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

    pub effect: Effect,

    /// The field of its input that is a command line, a path or a URL, which scopes and rules
    /// are compared with. At most one is there; without any, it is the tool's name.
    pub command: Option<&'static str>,

    /// Below the workspace; a call without it is about all of the workspace.
    pub path: Option<&'static str>,
    pub url: Option<&'static str>,
}

/// The worst that a tool may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: calls may run side by side.
    Reads,

    /// Nothing, but it takes a person's time.
    Asks,
    Changes,
    Destroys,
}

/// A tool and what its input must look like.
pub struct Entry {
    pub about: About,

    /// What runs here. Absent: the session service runs it.
    pub tool: Option<Box<dyn Tool>>,
    pub validator: Validator,
}

/// The tools there are, by name.
pub struct Catalog(BTreeMap<&'static str, Entry>);

impl Catalog {
    /// All tools, with one to search the web where somebody is configured who does.
    pub fn built_in(search: Option<WebSearch>) -> anyhow::Result<Catalog> {
        let always: [Box<dyn Tool>; 7] = [
            Box::new(Bash),
            Box::new(Read),
            Box::new(Write),
            Box::new(Edit),
            Box::new(Glob),
            Box::new(Grep),
            Box::new(WebFetch),
        ];
        let search = search.map(|search| Box::new(search) as Box<dyn Tool>);
        let here = always.into_iter().chain(search).map(|tool| (tool.about(), Some(tool)));
        let hosted = hosted::tools().map(|about| (about, None));
        let entry = |(about, tool): (About, Option<Box<dyn Tool>>)| {
            let validator = jsonschema::validator_for(&about.input_schema)?;
            Ok((about.name, Entry { about, tool, validator }))
        };
        here.chain(hosted).map(entry).collect::<anyhow::Result<_>>().map(Catalog)
    }

    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.0.get(name)
    }

    /// The tools whose names come after `name`, in order of name.
    pub fn after(&self, name: &str) -> impl Iterator<Item = &Entry> {
        self.0.values().filter(move |entry| entry.about.name > name)
    }
}
