//! The machine as a whole, and rights that only its owner should have.

use nix::libc;

use crate::{
    attempt::{CAPABILITIES, Host, NAMESPACES, NO_NEW_PRIVS, SECCOMP},
    program::{call, perl, reached},
};

#[tokio::test]
async fn the_machine_is_renamed() {
    let program = call(libc::SYS_sethostname, "'other', 5");
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES]).await;
}

#[tokio::test]
async fn the_domain_is_renamed() {
    let program = call(libc::SYS_setdomainname, "'other', 5");
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES]).await;
}

#[tokio::test]
async fn the_machine_is_told_how_to_reboot() {
    // A command that the kernel refuses, once the caller has been found worthy.
    let program = reached(libc::SYS_reboot, "0xfee1dead, 672274793, 0, 0");
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES]).await;
}

#[tokio::test]
async fn quotas_are_written_back() {
    let program = reached(libc::SYS_quotactl, "0x80000100, 0, 0, 0");
    Host::new().stops(&program, &[SECCOMP]).await;
}

#[tokio::test]
async fn a_port_below_1024_is_taken() {
    let script = "use Socket; socket my $socket, PF_INET, SOCK_STREAM, 0 or die $!;
        bind $socket, pack_sockaddr_in(80, INADDR_LOOPBACK) or die $!";
    Host::new().stops(&perl(script), &[CAPABILITIES]).await;
}

#[tokio::test]
async fn a_capability_is_kept_for_later() {
    const PR_CAPBSET_READ: i32 = 23;
    const CAP_SYS_ADMIN: i32 = 21;
    let script = format!(
        "call({}, {PR_CAPBSET_READ}, {CAP_SYS_ADMIN}, 0, 0, 0) == 1 or die 'not there'",
        libc::SYS_prctl
    );
    Host::new().stops(&perl(script), &[CAPABILITIES]).await;
}

#[tokio::test]
async fn a_program_runs_as_its_owner() {
    // Asks for a password, and meanwhile is seen to be root.
    let script = "my $pid = open my $input, '|-', 'su' or die $!; select undef, undef, undef, 0.3;
        open my $status, '<', \"/proc/$pid/status\" or die $!; my @root = grep /^Uid:\\s+\\d+\\s+0\\s/, <$status>;
        kill 9, $pid; die 'somebody else' unless @root";
    Host::new().stops(&perl(script), &[NAMESPACES, NO_NEW_PRIVS]).await;
}
