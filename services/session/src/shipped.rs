//! The agents that every tenant has: those that are built in, and those in the files of
//! whoever runs the server. A tenant may put one of its own in the place of each.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, bail, ensure};
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage};
use proto::session::v1::Manifest;
use serde_json::Value;

use crate::agent::{self, Agent};

/// More files than anybody writes by hand, and few enough to be read at every start.
const MOST: usize = 1000;

/// Twice what a manifest may hold, for comments and escapes.
const LARGEST: u64 = 1024 * 1024;

#[derive(Debug)]
pub struct Shipped(BTreeMap<String, Agent>);

impl Shipped {
    /// The built-in agents, and over them the manifests in `dir`: `<agent>.json`, `.yaml` or
    /// `.yml`, each as `PutAgent` takes it. One that is wrong is an error, so that nobody
    /// runs without an agent that somebody meant to have.
    pub fn load(dir: Option<&Path>) -> anyhow::Result<Shipped> {
        let built_in = agent::built_in().into_iter();
        let mut agents: BTreeMap<_, _> = built_in.map(|agent| (agent.id.clone(), agent)).collect();
        if let Some(dir) = dir {
            let files =
                read(dir).with_context(|| format!("cannot read agents from {}", dir.display()))?;
            agents.extend(files);
        }
        Ok(Shipped(agents))
    }

    pub fn get(&self, id: &str) -> Option<&Agent> {
        self.0.get(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Agent> {
        self.0.values()
    }
}

fn read(dir: &Path) -> anyhow::Result<BTreeMap<String, Agent>> {
    let mut agents = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // What is mounted from a Kubernetes ConfigMap lies beside links like `..data`.
        if name.starts_with('.') || !path.is_file() {
            continue;
        }
        let agent = manifest(&path).with_context(|| name.clone())?;
        ensure!(agents.len() < MOST, "more than {MOST} manifests");
        if let Some(other) = agents.insert(agent.id.clone(), agent) {
            bail!("{name}: there is another manifest of the agent {}", other.id);
        }
    }
    Ok(agents)
}

/// Reads one manifest. The name of its file is the name of the agent.
fn manifest(path: &Path) -> anyhow::Result<Agent> {
    let id = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let kind = path.extension().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(
        agent::is_id(&id),
        "its name is not that of an agent: 1 to 64 characters of a-z, 0-9 and -"
    );
    ensure!(path.metadata()?.len() <= LARGEST, "larger than 1 MiB");
    let text = fs::read_to_string(path)?;
    // Through JSON in either case, so that both know the same fields by the same names.
    let json: Value = match kind.as_str() {
        "json" => serde_json::from_str(&text)?,
        "yaml" | "yml" => serde_norway::from_str(&text)?,
        _ => bail!("neither .json nor .yaml nor .yml"),
    };
    let manifest = strictly(json)?;
    agent::check(&manifest)
        .map_err(|wrong| anyhow::anyhow!("{}: {}", wrong.field, wrong.problem))?;
    let version = agent::version_of(&manifest);
    Ok(Agent { id, version, manifest })
}

/// Calls may bring fields of a newer contract; in a file a field that nobody knows is a typo.
fn strictly(json: Value) -> anyhow::Result<Manifest> {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS)?;
    let about = pool.get_message_by_name("windlass.session.v1.Manifest").context("no Manifest")?;
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = DynamicMessage::deserialize_with_options(about, json, &options)?;
    Ok(message.transcode_to()?)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proto::tools::v1::permissions::Mode;

    use super::*;

    /// A directory of agents with these files in it.
    fn load(files: &[(&str, &str)]) -> anyhow::Result<Shipped> {
        let dir = tempfile::tempdir()?;
        for (name, text) in files {
            fs::write(dir.path().join(name), text)?;
        }
        // The temporary name differs from run to run.
        Shipped::load(Some(dir.path())).map_err(|error| {
            let text = format!("{error:#}");
            anyhow::anyhow!(text.replace(&*dir.path().to_string_lossy(), "…"))
        })
    }

    #[test]
    fn the_same_manifest_is_the_same_agent_in_any_format() {
        let json = r#"{"prompt": "Plan, and touch nothing.", "mode": "MODE_PRIMARY", "maxOutputTokens": 5,
                       "permissions": {"tools": ["read"]}}"#;
        let yaml = "# Thinks first.\nprompt: Plan, and touch nothing.\nmode: MODE_PRIMARY\nmax_output_tokens: 5\n\
                    permissions:\n  tools: [read]\n";
        let one = load(&[("plan.json", json)]).unwrap();
        let other = load(&[("plan.yaml", yaml)]).unwrap();
        let plan = one.get("plan").unwrap();
        assert_eq!(Some(plan), other.get("plan"));
        assert_eq!(plan.manifest.max_output_tokens, 5);
        assert!(one.get(agent::DEFAULT).is_some());
        assert_eq!(one.iter().count(), agent::built_in().len() + 1);

        let changed = load(&[("plan.yml", &yaml.replace('5', "6"))]).unwrap();
        assert_ne!(plan.version, changed.get("plan").unwrap().version);
    }

    #[test]
    fn a_file_takes_the_place_of_a_built_in_agent() {
        let shipped = load(&[("default.json", r#"{"prompt": "Be brief."}"#), (".hidden", "no")]);
        let shipped = shipped.unwrap();
        assert_eq!(shipped.get(agent::DEFAULT).unwrap().manifest.prompt, "Be brief.");
        assert_eq!(shipped.iter().count(), agent::built_in().len());
    }

    #[test]
    fn a_wrong_manifest_is_named_with_its_file_and_field() {
        let cases: &[&[(&str, &str)]] = &[
            &[("plan.json", "{")],
            &[("plan.json", r#"{"promt": "typo"}"#)],
            &[("plan.json", r#"{"temperature": 3}"#)],
            &[("plan.yaml", "limits:\n  steps: 5000\n")],
            &[("plan.yaml", "a: [")],
            &[("plan.toml", "")],
            &[("Plan A.json", "{}")],
            &[("plan.json", "{}"), ("plan.yaml", "{}")],
        ];
        let problems = cases.iter().map(|files| {
            let problem = load(files).unwrap_err().to_string();
            // Which of two is read first is up to the file system.
            problem.replace("plan.yaml: there is", "plan.json: there is") + "\n"
        });
        expect![[r#"
            cannot read agents from …: plan.json: EOF while parsing an object at line 1 column 1
            cannot read agents from …: plan.json: unrecognized field name 'promt'
            cannot read agents from …: plan.json: temperature: between 0 and 2
            cannot read agents from …: plan.yaml: limits.steps: between 0 and 1,000
            cannot read agents from …: plan.yaml: did not find expected node content at line 2 column 1, while parsing a flow node
            cannot read agents from …: plan.toml: neither .json nor .yaml nor .yml
            cannot read agents from …: Plan A.json: its name is not that of an agent: 1 to 64 characters of a-z, 0-9 and -
            cannot read agents from …: plan.json: there is another manifest of the agent plan
        "#]].assert_eq(&problems.collect::<String>());
    }

    #[test]
    fn the_examples_that_ship_with_the_source_can_be_read() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/agents");
        let shipped = Shipped::load(Some(&dir)).unwrap();
        let plan = &shipped.get("plan").unwrap().manifest;
        assert_eq!(plan.permissions.as_ref().unwrap().mode(), Mode::Plan);
        let tools = &plan.permissions.as_ref().unwrap().tools;
        assert!(!tools.iter().any(|tool| ["write", "edit"].contains(&tool.as_str())));
        assert!(shipped.get("build").unwrap().manifest.snapshots);
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        let error = Shipped::load(Some(Path::new("/nowhere/agents"))).unwrap_err();
        expect!["cannot read agents from /nowhere/agents: No such file or directory (os error 2)"]
            .assert_eq(&format!("{error:#}"));
    }
}
