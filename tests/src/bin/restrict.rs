//! Puts on what of a sandbox a process can put on by itself, and becomes another program. `make
//! bench` starts it in bubblewrap, which has namespaces and mounts but no Landlock and no limits.

use std::{
    env,
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

use sandbox::Profile;

fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    if let Some(program) = words.next()
        && sandbox::init::restrict(&Profile::default()).is_ok()
    {
        // It only comes back when it has failed.
        let _error = Command::new(program).args(words).exec();
    }
    ExitCode::FAILURE
}
