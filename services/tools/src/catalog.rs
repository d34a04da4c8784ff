use std::{borrow::Cow, collections::BTreeMap, fmt, path::Path, sync::Arc, time::Duration};

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
    pub name: Cow<'static, str>,
    pub description: Cow<'static, str>,
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

    /// Nothing itself, and what it has others do is judged by itself.
    Delegates,
    Changes,
    Destroys,
}

/// Where a tool runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Here, in the sandbox or confined to the workspace.
    Sandbox,

    /// Here, outside of any sandbox, to reach hosts that were granted.
    Web,

    /// In the session service.
    Session,

    /// With an MCP server that runs in the sandbox.
    Server(String),

    /// With an MCP server somewhere else.
    Remote(String),
}

impl Place {
    /// The MCP server it comes from, if any.
    pub fn server(&self) -> Option<&str> {
        match self {
            Place::Sandbox | Place::Web | Place::Session => None,
            Place::Server(id) | Place::Remote(id) => Some(id),
        }
    }
}

/// What a sentence says of a tool that runs there.
impl fmt::Display for Place {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Sandbox | Place::Server(_) => text.write_str("runs in a sandbox"),
            Place::Web => text.write_str("reaches only hosts that were granted"),
            Place::Session => text.write_str("runs in the session service"),
            Place::Remote(id) => write!(text, "is done by the MCP server {id}"),
        }
    }
}

/// A tool and what its input must look like.
pub struct Entry {
    pub about: About,
    pub place: Place,

    /// What runs here. Absent: the session service runs it.
    pub tool: Option<Box<dyn Tool>>,
    pub validator: Validator,
}

/// The tools there are, by name: ours, and those that a project has beside them.
#[derive(Default)]
pub struct Catalog {
    built_in: Arc<Entries>,
    more: Entries,

    /// MCP servers whose tools are missing, and why.
    missing: Vec<(String, String)>,
}

type Entries = BTreeMap<String, Arc<Entry>>;

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
            let place = match &tool {
                Some(_) if about.url.is_some() => Place::Web,
                Some(_) => Place::Sandbox,
                None => Place::Session,
            };
            Ok((about.name.to_string(), Arc::new(Entry { about, place, tool, validator })))
        };
        let built_in = here.chain(hosted).map(entry).collect::<anyhow::Result<_>>()?;
        Ok(Catalog { built_in: Arc::new(built_in), ..Catalog::default() })
    }

    /// This catalogue and more. What is there already stays as it is.
    pub fn with(
        &self,
        entries: impl IntoIterator<Item = Arc<Entry>>,
        missing: Vec<(String, String)>,
    ) -> Catalog {
        let named = entries.into_iter().map(|entry| (entry.about.name.to_string(), entry));
        let more = named.filter(|(name, _)| !self.built_in.contains_key(name)).collect();
        Catalog { built_in: self.built_in.clone(), more, missing }
    }

    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.built_in.get(name).or_else(|| self.more.get(name)).map(AsRef::as_ref)
    }

    /// Whether a name is one of ours.
    pub fn is_built_in(&self, name: &str) -> bool {
        self.built_in.contains_key(name)
    }

    /// The tools whose names come after `name`, in order of name.
    pub fn after(&self, name: &str) -> impl Iterator<Item = &Entry> {
        let mut rest: Vec<&Entry> = self
            .built_in
            .values()
            .chain(self.more.values())
            .map(AsRef::as_ref)
            .filter(|entry| *entry.about.name > *name)
            .collect();
        rest.sort_unstable_by_key(|entry| &*entry.about.name);
        rest.into_iter()
    }

    /// Why there is no tool of this name, as far as anybody knows.
    pub fn why_not(&self, name: &str) -> String {
        let server = name.split_once('_').map(|(server, _)| server);
        let missing = self.missing.iter().find(|(id, _)| Some(id.as_str()) == server);
        match missing {
            Some((id, why)) => format!("the tools of the MCP server {id} are missing: {why}"),
            None => format!("there is no tool named {name:?}"),
        }
    }
}
