//! How long a sandboxed `true` takes, beside a bare one and beside bubblewrap:
//!
//! ```text
//! cargo run --release -p sandbox --example spawn -- sandbox-init bwrap
//! ```
//!
//! with the paths of both programs. Bubblewrap is given the same namespaces and mounts, but
//! neither seccomp, Landlock, limits nor a control group. All take turns, so that a machine that
//! is busy for a while is busy for all of them.

use std::{
    env, io,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use sandbox::{Layer, Profile, Program, Sandbox, create_workspace};

const ROUNDS: usize = 400;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [_, init, bubblewrap] = env::args().collect::<Vec<_>>().try_into().map_err(|_| {
        io::Error::other("expected two arguments: the paths of sandbox-init and of bwrap")
    })?;
    let folder = tempfile::tempdir()?;
    let workspace = folder.path().join("workspace");
    create_workspace(&workspace)?;
    let sandbox = Sandbox::new(init);
    let program = Program::new("true", &[]);
    let profile = Profile::default();
    let has_cgroup = sandbox.probe().await?.has(Layer::Cgroup);

    let [mut bare, mut wrapped, mut ours] = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        bare.push(time(Command::new("true"))?);
        // Bubblewrap stays who it is, and so cannot enter a workspace of somebody else.
        wrapped.push(time(wrap(&bubblewrap, folder.path()))?);
        let begun = Instant::now();
        sandbox.spawn(&profile, &workspace, &program).await?.wait().await?;
        ours.push(begun.elapsed());
    }

    let [bare, wrapped, ours] = [bare, wrapped, ours].map(sorted);
    let mut output = io::stdout();
    for (name, times) in [("bare", &bare), ("bubblewrap", &wrapped), ("sandbox", &ours)] {
        let (p50, p99) = (at(times, 50), at(times, 99));
        writeln!(output, "{name:<12} p50 {p50:>10.2?}  p99 {p99:>10.2?}")?;
    }
    let ratio = at(&ours, 50).as_secs_f64() / at(&wrapped, 50).as_secs_f64();
    writeln!(output, "sandbox / bubblewrap at p50: {ratio:.2}; control group: {has_cgroup}")?;
    Ok(())
}

fn time(mut command: Command) -> io::Result<Duration> {
    let begun = Instant::now();
    let status = command.stdin(Stdio::null()).status()?;
    match status.success() {
        true => Ok(begun.elapsed()),
        false => Err(io::Error::other(format!("{command:?}: {status}"))),
    }
}

fn wrap(bubblewrap: &str, workspace: &Path) -> Command {
    let mut command = Command::new(bubblewrap);
    command
        .args(["--unshare-user", "--unshare-all", "--uid", "1000", "--gid", "1000"])
        .args(["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"])
        .args(["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"])
        .args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm"])
        .arg("--bind")
        .args([workspace, Path::new("/workspace")])
        .args(["--chdir", "/workspace", "--cap-drop", "ALL", "--new-session", "--clearenv"])
        .args(["--die-with-parent", "true"]);
    command
}

fn sorted(mut times: Vec<Duration>) -> Vec<Duration> {
    times.sort();
    times
}

fn at(times: &[Duration], percent: usize) -> Duration {
    times[(times.len() * percent / 100).min(times.len() - 1)]
}
