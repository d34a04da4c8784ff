use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

use nix::unistd::geteuid;

use crate::bench::{INIT, init};

/// Ignores what a service ignores that was started in the background of a script, or by `nohup`.
const IGNORING: &str = r#"trap '' HUP INT QUIT; exec "$0""#;

/// Runs all other tests again as a user without any rights, from a place that user can reach, and
/// with signals ignored that commands should get all the same.
#[test]
fn everything_holds_for_an_ordinary_user() {
    if !geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let tests = folder.path().join("tests");
    let init_copy = folder.path().join("sandbox-init");
    fs::copy(env::current_exe().unwrap(), &tests).unwrap();
    fs::copy(init(), &init_copy).unwrap();

    let output = Command::new("runuser")
        .args(["-u", "nobody", "--", "bash", "-c", IGNORING])
        .arg(&tests)
        .current_dir("/")
        .env(INIT, &init_copy)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
