//! An attempt, and how it is judged.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::unistd::geteuid;
use sandbox::{Child, Exit, Layer, Limits, Profile, Program, Report, Sandbox, create_workspace};
use tempfile::TempDir;
use tokio::{
    io::AsyncReadExt as _,
    time::{sleep, timeout},
};

use crate::table;

/// Where the executable is when the tests run from a copy of themselves.
pub const INIT: &str = "SANDBOX_INIT";

pub fn init() -> PathBuf {
    env::var_os(INIT).map_or(env!("CARGO_BIN_EXE_sandbox-init").into(), PathBuf::from)
}

/// A machine with something to steal: a secret that whoever the command is could read, and a
/// neighbour's workspace. The folder is open to all, so that only the sandbox is in the way.
pub struct Host {
    /// Keeps one sandbox prepared.
    pub sandbox: Sandbox,
    /// Prepares none.
    pub unprepared: Sandbox,
    pub workspace: PathBuf,
    pub neighbour: PathBuf,
    pub secret: PathBuf,
    pub folder: TempDir,
    pub limits: Limits,
}

impl Host {
    pub fn new() -> Host {
        Host::with(Limits::default())
    }

    pub fn with(limits: Limits) -> Host {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let [workspace, neighbour] =
            ["workspace", "neighbour"].map(|name| folder.path().join(name));
        for path in [&workspace, &neighbour] {
            create_workspace(path).unwrap();
        }
        let secret = neighbour.join("secret");
        fs::write(&secret, "secret").unwrap();
        // As if its own command had written it.
        if geteuid().is_root() {
            chown(&secret, Some(65_534), Some(65_534)).unwrap();
        }
        let [sandbox, unprepared] = [1, 0].map(|count| Sandbox::new(init()).keep_prepared(count));
        Host { sandbox, unprepared, workspace, neighbour, secret, folder, limits }
    }

    pub fn profile(&self) -> Profile {
        Profile { limits: self.limits.clone(), ..Profile::default() }
    }

    pub async fn start(&self, profile: &Profile, workspace: &Path, program: &Program) -> Child {
        self.sandbox.spawn(profile, workspace, program).await.unwrap()
    }

    /// Whether a program got what it wanted, which it says by ending well, and what it wrote.
    pub async fn succeeds(&self, profile: &Profile, program: &Program) -> (bool, String) {
        let ended = self.run(&self.unprepared, profile, program).await;
        (ended.escaped, ended.output)
    }

    /// Waits for a sandbox that waits for a command.
    async fn prepare(&self) {
        let preparing = async {
            while self.sandbox.prepared().is_empty() {
                let nothing = Program::new("true", &[]);
                let mut child = self.start(&self.profile(), &self.workspace, &nothing).await;
                child.wait().await.unwrap();
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), preparing).await.expect("a prepared sandbox");
    }

    async fn run(&self, sandbox: &Sandbox, profile: &Profile, program: &Program) -> Ended {
        let mut child = sandbox.spawn(profile, &self.workspace, program).await.unwrap();
        let mut output = Vec::new();
        let ending = async {
            child.output.read_to_end(&mut output).await.unwrap();
            child.wait().await.unwrap()
        };
        let exit = timeout(Duration::from_secs(120), ending).await.expect("the attempt ends");
        let output = String::from_utf8_lossy(&output).into_owned();
        Ended {
            escaped: exit == Exit::Code(0),
            output: format!("{exit:?} {output}"),
            told: child.violations.iter().map(|violation| violation.layer).collect(),
            report: child.report,
        }
    }

    /// Judges an attempt: each of these barriers stops it alone, and nothing else does. The
    /// kernel tells nobody.
    pub async fn stops(&self, program: &Program, barriers: &[Barrier]) {
        self.stops_and_tells(program, barriers, None).await;
    }

    /// The same for an attempt that a layer is known to have stopped.
    pub async fn stops_and_tells(
        &self,
        program: &Program,
        barriers: &[Barrier],
        teller: Option<Layer>,
    ) {
        table::is_in(&table::row(barriers, teller));
        let barriers = self.available(barriers).await;
        self.prepare().await;
        for sandbox in [&self.sandbox, &self.unprepared] {
            let stopped = self.run(sandbox, &self.profile(), program).await;
            assert!(!stopped.escaped, "not stopped at all: {}", stopped.output);

            // The facts that go on record: what stands, and what was seen to be stopped.
            for layer in barriers.concat() {
                assert!(stopped.report.has(layer), "{layer} is not said to stand");
            }
            let teller = teller.filter(|layer| stopped.report.has(*layer));
            assert_eq!(stopped.told, teller.into_iter().collect(), "{}", stopped.output);
        }

        for left in &barriers {
            let others: Vec<Barrier> =
                barriers.iter().copied().filter(|barrier| barrier != left).collect();
            let profile = self.profile().without(&others.concat());
            let (escaped, output) = self.succeeds(&profile, program).await;
            assert!(!escaped, "not stopped by {left:?} alone: {output}");
        }

        let profile = self.profile().without(&barriers.concat());
        let (escaped, output) = self.succeeds(&profile, program).await;
        assert!(escaped, "stopped by something else than {barriers:?}: {output}");
    }

    /// A control group is the one barrier that a machine of tier A may lack.
    async fn available(&self, barriers: &[Barrier]) -> Vec<Barrier> {
        let has_cgroup = !barriers.contains(&CGROUP) || self.has_cgroup().await;
        barriers.iter().copied().filter(|barrier| *barrier != CGROUP || has_cgroup).collect()
    }

    pub async fn has_cgroup(&self) -> bool {
        let nothing = Program::new("true", &[]);
        self.start(&self.profile(), &self.workspace, &nothing).await.report.has(Layer::Cgroup)
    }
}

/// How an attempt went.
struct Ended {
    escaped: bool,
    output: String,
    told: BTreeSet<Layer>,
    report: Report,
}

/// Layers that stand and fall together.
pub type Barrier = &'static [Layer];

pub const CAPABILITIES: Barrier = &[Layer::Capabilities];
pub const CGROUP: Barrier = &[Layer::Cgroup];
pub const IPC: Barrier = &[Layer::IpcNamespace];
pub const LANDLOCK: Barrier = &[Layer::Landlock];
pub const NET: Barrier = &[Layer::NetNamespace];
pub const RLIMITS: Barrier = &[Layer::Rlimits];
/// The private root, with what of `/proc` is in it.
pub const ROOT: Barrier = &[Layer::PrivateRoot, Layer::Proc];
pub const SECCOMP: Barrier = &[Layer::Seccomp];

/// Without a user namespace nobody may enter any of the others.
pub const NAMESPACES: Barrier = &[
    Layer::UserNamespace,
    Layer::PidNamespace,
    Layer::MountNamespace,
    Layer::NetNamespace,
    Layer::IpcNamespace,
    Layer::UtsNamespace,
    Layer::CgroupNamespace,
    Layer::PrivateRoot,
    Layer::Proc,
];

/// Landlock and seccomp do not work without it, and so bring it along.
pub const NO_NEW_PRIVS: Barrier = &[Layer::NoNewPrivs, Layer::Landlock, Layer::Seccomp];
