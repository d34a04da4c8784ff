//! A workspace and the verbs that the tests are written in.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::unistd::Pid;
use sandbox::{Child, Error, Exit, Layer, Profile, Program, Sandbox, Tier, create_workspace};
use tempfile::TempDir;
use tokio::{
    io::AsyncReadExt as _,
    time::{sleep, timeout},
};

/// Where the executable is when the tests run from a copy of themselves.
pub const INIT: &str = "SANDBOX_INIT";

pub struct Bench {
    pub sandbox: Sandbox,
    pub workspace: PathBuf,
    pub folder: TempDir,
}

pub fn init() -> PathBuf {
    env::var_os(INIT).map_or(env!("CARGO_BIN_EXE_sandbox-init").into(), PathBuf::from)
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with_init(&init())
    }

    pub fn with_init(init: &Path) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().join("workspace");
        create_workspace(&workspace).unwrap();
        Bench { sandbox: Sandbox::new(init), workspace, folder }
    }

    /// With a sandbox that waits for a command.
    pub async fn prepared() -> Bench {
        let mut bench = Bench::new();
        bench.sandbox = bench.sandbox.keep_prepared(1);
        bench.output("true").await;
        bench.next_prepared(&[]).await;
        bench
    }

    /// The supervisor of a sandbox that waits for a command and is none of these.
    pub async fn next_prepared(&self, others: &[Pid]) -> Pid {
        let preparing = async {
            loop {
                match self.sandbox.prepared()[..] {
                    [supervisor] if !others.contains(&supervisor) => return supervisor,
                    _ => sleep(Duration::from_millis(5)).await,
                }
            }
        };
        timeout(Duration::from_secs(30), preparing).await.expect("a prepared sandbox")
    }

    pub async fn start(&self, profile: &Profile, script: &str) -> Result<Child, Error> {
        self.sandbox.spawn(profile, &self.workspace, &Program::bash(script)).await
    }

    /// How a script ended, and what it wrote.
    pub async fn run_in(&self, profile: &Profile, script: &str) -> (Exit, String) {
        let mut child = self.start(profile, script).await.unwrap();
        let mut output = String::new();
        let ending = async {
            child.output.read_to_string(&mut output).await.unwrap();
            child.wait().await.unwrap()
        };
        let exit = timeout(Duration::from_secs(30), ending).await.expect("the script ends");
        (exit, output)
    }

    /// How a script ended, and what was stopped on the way.
    pub async fn violations(&self, profile: &Profile, script: &str) -> (Exit, Vec<String>) {
        let mut child = self.start(profile, script).await.unwrap();
        let exit = timeout(Duration::from_secs(30), child.wait()).await.expect("the script ends");
        let told = child.violations.iter().map(|told| format!("{}: {}", told.layer, told.detail));
        (exit.unwrap(), told.collect())
    }

    pub async fn run(&self, script: &str) -> (Exit, String) {
        self.run_in(&Profile::default(), script).await
    }

    /// What a script writes that is expected to do well.
    pub async fn output(&self, script: &str) -> String {
        let (exit, output) = self.run(script).await;
        assert_eq!(exit, Exit::Code(0), "{output}");
        output.trim_end().to_owned()
    }

    pub async fn fails(&self, script: &str) -> String {
        let (exit, output) = self.run(script).await;
        assert_ne!(exit, Exit::Code(0), "{output}");
        output.trim_end().to_owned()
    }

    /// What the machine gives to a profile that demands nothing.
    pub async fn tier(&self) -> Tier {
        let profile = Profile { optional: Layer::ALL.into(), ..Profile::default() };
        self.start(&profile, "true").await.unwrap().report.tier()
    }

    /// Waits until a script has shown that it lives by writing to the file `beats`.
    pub async fn beating(&self) {
        let beating = async {
            while self.read("beats").is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(10), beating).await.expect("a heart that beats");
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.workspace.join(name)).unwrap_or_default()
    }
}
