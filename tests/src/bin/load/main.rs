//! `make load`: how a whole Windlass does under the load of `tests/load`, one profile after the
//! other and then all of them at once.
//!
//! It compares nothing and has no bars, that is what `make bench` is for; it fails when a call did.
#![expect(clippy::print_stdout, reason = "a person reads this")]

mod stage;
mod ghz;
mod webhooks;
mod outcome;

use std::{collections::BTreeMap, fs, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::Parser;
use futures::future::try_join_all;
use serde::de::DeserializeOwned;

use outcome::{Outcome, Row};
use stage::Stage;

/// Puts the load of each profile on a system of its own and says how it did.
#[derive(Debug, Parser)]
struct Args {
    /// Seconds for each profile. A credential of the internal profiles is good for a minute.
    #[arg(long, env = "LOAD_SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=50))]
    seconds: u64,

    /// Where the configurations are.
    #[arg(long, default_value = "tests/load")]
    dir: PathBuf,

    /// The program that makes gRPC calls.
    #[arg(long, default_value = "ghz")]
    ghz: PathBuf,
}

impl Args {
    fn config(&self, name: &str) -> PathBuf {
        self.dir.join(name).with_extension("json")
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let path = self.config(name);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("cannot use {}", path.display()))
    }
}

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    Submit,
    Subscribe,
    Generate,
    Execute,
    Webhook,
}

impl Profile {
    const ALL: [Profile; 5] = [
        Profile::Submit,
        Profile::Subscribe,
        Profile::Generate,
        Profile::Execute,
        Profile::Webhook,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Profile::Submit => "submit",
            Profile::Subscribe => "subscribe",
            Profile::Generate => "generate",
            Profile::Execute => "execute",
            Profile::Webhook => "webhook",
        }
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let mixed: BTreeMap<Profile, u32> =
        args.read("mixed").context("it says how many a second of each profile")?;
    let posts: webhooks::Config = args.read(Profile::Webhook.name())?;

    eprintln!("starting Postgres, Redis and the four services …");
    let mut stage = Stage::start(posts.concurrency).await?;
    let mut rows = Vec::new();
    for profile in Profile::ALL {
        eprintln!("{} for {} s …", profile.name(), args.seconds);
        let done = stage.done(profile).await?;
        let before = stage.used()?;
        let mut outcome = apply(&args, &posts, &stage, profile, None).await?;
        let used = stage.used()?.since(&before);
        stage.comes_to_rest().await?;
        came_to(&stage, profile, done, &mut outcome).await?;
        rows.push(Row::new(profile.name(), outcome, Some(used)));
    }
    eprintln!("all of them at once for {} s …", args.seconds);
    let mut done = Vec::new();
    for profile in mixed.keys() {
        done.push(stage.done(*profile).await?);
    }
    let before = stage.used()?;
    let parts =
        mixed.iter().map(|(profile, rate)| apply(&args, &posts, &stage, *profile, Some(*rate)));
    let outcomes = try_join_all(parts).await?;
    let mut used = Some(stage.used()?.since(&before));
    stage.comes_to_rest().await?;
    for ((profile, mut outcome), done) in mixed.keys().zip(outcomes).zip(done) {
        came_to(&stage, *profile, done, &mut outcome).await?;
        let name = format!("mixed, {}", profile.name());
        rows.push(Row::new(&name, outcome, used.take()));
    }

    println!("{}", outcome::table(&rows));
    let failures: Vec<_> = rows.iter().flat_map(Row::failures).collect();
    for failure in &failures {
        println!("{failure}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Counts as errors what was asked for and is not done now.
async fn came_to(
    stage: &Stage,
    profile: Profile,
    before: Option<u64>,
    outcome: &mut Outcome,
) -> Result<()> {
    if let (Some(before), Some(after)) = (before, stage.done(profile).await?) {
        outcome.came_to(after.saturating_sub(before));
    }
    Ok(())
}

/// Calls for a while, as fast as the profile says, or so often in a second.
async fn apply(
    args: &Args,
    posts: &webhooks::Config,
    stage: &Stage,
    profile: Profile,
    rate: Option<u32>,
) -> Result<Outcome> {
    let length = Duration::from_secs(args.seconds);
    match profile {
        Profile::Webhook => Ok(webhooks::post(posts, stage, length, rate).await),
        Profile::Submit | Profile::Subscribe | Profile::Generate | Profile::Execute => {
            let config = args.config(profile.name());
            let environment = stage.environment(profile)?;
            let address = stage.address(profile);
            let mut outcome =
                ghz::call(&args.ghz, &config, &address, environment, length, rate).await?;
            if profile == Profile::Subscribe {
                outcome.errors.remove(ghz::LEFT);
            }
            Ok(outcome)
        }
    }
}
