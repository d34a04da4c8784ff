//! Processes of the host that run as the same user, the service among them.

use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    process::{Child, Command},
};

use nix::{libc, unistd::geteuid};

use crate::{
    attempt::{Host, IPC, LANDLOCK, NAMESPACES, SECCOMP},
    program::{perl, shell},
};

/// A process with a secret in its environment, in its memory, as an open file and where it is.
struct Victim {
    process: Child,
}

impl Victim {
    fn of(host: &Host) -> Victim {
        let mut command = Command::new("sleep");
        command.arg("1000").env_clear().env("TOKEN", "secret").current_dir(&host.neighbour);
        command.stdin(File::open(&host.secret).unwrap());
        if geteuid().is_root() {
            command.uid(65_534).gid(65_534);
        }
        Victim { process: command.spawn().unwrap() }
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[tokio::test]
async fn a_process_is_signalled() {
    let host = Host::new();
    let victim = Victim::of(&host);
    host.stops(&shell(format!("kill -CONT {}", victim.pid())), &[NAMESPACES, LANDLOCK]).await;
}

#[tokio::test]
async fn the_environment_of_a_process_is_read() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let script = format!("grep -a TOKEN=secret /proc/{}/environ", victim.pid());
    host.stops(&shell(script), &[NAMESPACES, LANDLOCK]).await;
}

#[tokio::test]
async fn the_command_line_of_a_process_is_read() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let script = format!("grep -a 1000 /proc/{}/cmdline", victim.pid());
    host.stops(&shell(script), &[NAMESPACES, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_read_where_a_process_is() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let script = format!("cat /proc/{}/cwd/secret", victim.pid());
    host.stops(&shell(script), &[NAMESPACES, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_read_that_a_process_has_open() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let script = format!("cat /proc/{}/fd/0", victim.pid());
    host.stops(&shell(script), &[NAMESPACES, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_read_through_the_root_of_a_process() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let script = format!("cat /proc/{}/root{}", victim.pid(), host.secret.display());
    host.stops(&shell(script), &[NAMESPACES, LANDLOCK]).await;
}

/// Reads the first bytes of a process's memory into `$copy`, by the call that is passed.
fn memory(victim: &Victim, read: &str) -> sandbox::Program {
    let pid = victim.pid();
    perl(format!(
        "my ($pid, $copy) = ({pid}, 'x' x 16);
         open my $maps, '<', \"/proc/$pid/maps\" or die $!; <$maps> =~ /^(\\w+)-/ or die;
         my $start = hex $1; {read}; die unless $copy =~ /^.ELF/"
    ))
}

#[tokio::test]
async fn the_memory_of_a_process_is_read_in_proc() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let read = "open my $memory, '<', \"/proc/$pid/mem\" or die $!;
        sysseek $memory, $start, 0; sysread $memory, $copy, 16";
    host.stops(&memory(&victim, read), &[NAMESPACES, LANDLOCK]).await;
}

#[tokio::test]
async fn the_memory_of_a_process_is_read_by_a_call() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let read = format!(
        "call({}, $pid, pack('JJ', address($copy), 16), 1, pack('JJ', $start, 16), 1, 0)",
        libc::SYS_process_vm_readv
    );
    host.stops(&memory(&victim, &read), &[NAMESPACES, LANDLOCK, SECCOMP]).await;
}

#[tokio::test]
async fn a_process_is_traced() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let arguments = format!("{}, {}, 0, 0", libc::PTRACE_SEIZE, victim.pid());
    let program = crate::program::call(libc::SYS_ptrace, &arguments);
    host.stops(&program, &[NAMESPACES, LANDLOCK, SECCOMP]).await;
}

#[tokio::test]
async fn a_file_is_taken_out_of_a_process() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let program = perl(format!(
        "call({}, call({}, {}, 0), 0, 0)",
        libc::SYS_pidfd_getfd,
        libc::SYS_pidfd_open,
        victim.pid()
    ));
    host.stops(&program, &[NAMESPACES, LANDLOCK, SECCOMP]).await;
}

#[tokio::test]
async fn a_process_is_compared_with_the_command() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let program = perl(format!("call({}, {}, 0 + $$, 1, 0, 0)", libc::SYS_kcmp, victim.pid()));
    host.stops(&program, &[NAMESPACES, LANDLOCK, SECCOMP]).await;
}

#[tokio::test]
async fn a_process_is_given_other_limits() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let arguments = format!("{}, {}, 0, pack('QQ', 0, 0)", victim.pid(), libc::RLIMIT_NOFILE);
    let program = crate::program::call(libc::SYS_prlimit64, &arguments);
    host.stops(&program, &[NAMESPACES, SECCOMP]).await;
}

#[tokio::test]
async fn a_process_is_slowed_down() {
    let host = Host::new();
    let victim = Victim::of(&host);
    let program = perl(format!("setpriority 0, {}, 19 or die $!", victim.pid()));
    host.stops(&program, &[NAMESPACES]).await;
}

/// Something of the host's in System V's shared memory or queues, removed in the end.
struct Shared {
    option: &'static str,
    id: String,
}

impl Shared {
    fn make(kind: &str, option: &'static str) -> Shared {
        let made = Command::new("ipcmk").args(kind.split(' ')).args(["-p", "0666"]).output();
        let text = String::from_utf8(made.unwrap().stdout).unwrap();
        Shared { option, id: text.split_whitespace().last().unwrap().into() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        Command::new("ipcrm").args([self.option, &self.id]).status().unwrap();
    }
}

#[tokio::test]
async fn shared_memory_of_the_host_is_read() {
    let shared = Shared::make("-M 4096", "-m");
    let program = perl(format!("my $copy; shmread {}, $copy, 0, 16 or die $!", shared.id));
    Host::new().stops(&program, &[IPC]).await;
}

#[tokio::test]
async fn a_message_is_put_into_a_queue_of_the_host() {
    let shared = Shared::make("-Q", "-q");
    let program = perl(format!("msgsnd {}, pack('l! a*', 1, 'hi'), 04000 or die $!", shared.id));
    Host::new().stops(&program, &[IPC]).await;
}
