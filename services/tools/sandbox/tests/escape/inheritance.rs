//! What a command would get from the service without asking. No layer keeps it, but that nothing
//! is handed on; so these are shown to succeed without any sandbox.

use std::{env, fs::File, os::fd::AsRawFd as _, process::Command};

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    unistd::dup,
};
use sandbox::Program;

use crate::{attempt::Host, program::perl, table};

async fn is_not_handed_on(program: &Program) {
    table::is_in(&table::row(&[], None));
    let host = Host::new();
    let (escaped, output) = host.succeeds(&host.profile(), program).await;
    assert!(!escaped, "handed on: {output}");
    let bare = Command::new(&program.path).args(&program.args).output().unwrap();
    assert!(bare.status.success(), "not there to be handed on: {bare:?}");
}

#[tokio::test]
async fn a_variable_of_the_service_is_read() {
    let given = ["PATH", "HOME", "LANG", "TERM"];
    let name = env::vars().map(|(name, _)| name).find(|name| !given.contains(&name.as_str()));
    let name = name.expect("a variable to be handed on");
    is_not_handed_on(&perl(format!("exists $ENV{{'{name}'}} or die"))).await;
}

#[tokio::test]
async fn a_file_that_the_service_has_open_is_read() {
    let file = dup(File::open("/proc/self/status").unwrap()).unwrap();
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let number = file.as_raw_fd();
    let script = format!("readlink('/proc/self/fd/{number}') =~ /status$/ or die");
    is_not_handed_on(&perl(script)).await;
}
