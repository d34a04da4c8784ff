//! How long a sandboxed `true` takes, prepared and not, beside a bare one and beside bubblewrap.
//!
//! Bubblewrap is given the same namespaces and about the same mounts, and starts a program that
//! puts on the same limits, the same Landlock rules and the same seccomp filter; only a control
//! group it does not get. All take turns, so that a machine that is busy for a while is busy for
//! all of them.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use sandbox::{Layer, Profile, Program, Sandbox, Tier, create_workspace};

use crate::{quantiles::Quantiles, scale::Scale, table::Table};

/// As many sandboxes as `tools` keeps prepared unless told otherwise.
const POOL: usize = 2;

pub async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    eprintln!("{} sandboxes are built, and as many others …", scale.spawns);
    let init = env::current_exe()?.with_file_name("sandbox-init");
    let folder = tempfile::tempdir()?;
    let workspace = folder.path().join("workspace");
    create_workspace(&workspace)?;
    let (unprepared, profile) = (Sandbox::new(&init), Profile::default());
    let sandbox = unprepared.clone().keep_prepared(POOL);
    let machine = sandbox.probe().await.with_context(|| format!("with {}", init.display()))?;
    ensure!(machine.tier() == Tier::A, "sandboxes of this machine lack {:?}", machine.missing());

    let restrict = env::current_exe()?.with_file_name("restrict");
    let [mut bare, mut unfiltered, mut wrapped, mut cold, mut ours] =
        std::array::from_fn(|_| Quantiles::default());
    let program = Program::new("true", &[]);
    for _ in 0..scale.spawns {
        bare.push(time(Command::new("true"))?);
        // Bubblewrap stays who it is, and so cannot enter a workspace of somebody else.
        unfiltered.push(time(wrap(folder.path(), &restrict, &["true"]))?);
        wrapped.push(time(wrap(folder.path(), &restrict, &["/restrict", "true"]))?);
        for (sandbox, times) in [(&unprepared, &mut cold), (&sandbox, &mut ours)] {
            let begun = Instant::now();
            sandbox.spawn(&profile, &workspace, &program).await?.wait().await?;
            times.push(begun.elapsed());
        }
    }

    let cgroup = if machine.has(Layer::Cgroup) { "with" } else { "without" };
    for (name, times) in [
        ("a bare `true`".to_owned(), &bare),
        ("`true` in bubblewrap, same namespaces, no filters or limits".to_owned(), &unfiltered),
        ("`true` in bubblewrap, same namespaces, filters and limits".to_owned(), &wrapped),
        (format!("`true` in a sandbox of tier A, {cgroup} control group, not prepared"), &cold),
        (format!("`true` in a sandbox of tier A, {cgroup} control group, as it ships"), &ours),
    ] {
        let (p50, p99) = (times.p50(), times.p99());
        table.note(format!("{name}, p50 and p99"), format!("{p50:.2} and {p99:.2} ms"));
    }
    let times = |times: f64| format!("{times:.2}");
    table.at_most("sandbox ÷ bubblewrap, p50", ours.p50() / wrapped.p50(), 0.75, times);
    table.note("sandbox ÷ bubblewrap, p99", times(ours.p99() / wrapped.p99()));
    Ok(())
}

fn time(mut command: Command) -> Result<Duration> {
    let begun = Instant::now();
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(begun.elapsed())
}

fn wrap(workspace: &Path, restrict: &Path, program: &[&str]) -> Command {
    let mut command = Command::new("bwrap");
    command
        .args(["--unshare-user", "--unshare-all", "--uid", "1000", "--gid", "1000"])
        .args(["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"])
        .args(["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"])
        .args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm"])
        .arg("--ro-bind")
        .args([restrict, Path::new("/restrict")])
        .arg("--bind")
        .args([workspace, Path::new("/workspace")])
        .args(["--chdir", "/workspace", "--cap-drop", "ALL", "--new-session", "--clearenv"])
        .arg("--die-with-parent")
        .args(program);
    command
}
