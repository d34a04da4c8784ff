//! More of everything than there is for one.

use nix::libc;
use sandbox::{Layer, Limits};

use crate::{
    attempt::{CGROUP, Host, LANDLOCK, RLIMITS, ROOT},
    program::{perl, shell},
};

#[tokio::test]
async fn processes_are_forked_without_end() {
    let host = Host::with(Limits { processes: 20, ..Limits::default() });
    let script = "for (1..40) { my $pid = fork; die $! unless defined $pid; $pid or sleep 100 }";
    host.stops_and_tells(&perl(script), &[RLIMITS, CGROUP], Some(Layer::Cgroup)).await;
}

#[tokio::test]
async fn processes_leave_their_session_and_fork_on() {
    let host = Host::with(Limits { processes: 20, ..Limits::default() });
    let script = "use POSIX; for (1..40) { my $pid = fork; die $! unless defined $pid;
        if (!$pid) { POSIX::setsid(); fork; sleep 100; exit } }";
    host.stops_and_tells(&perl(script), &[RLIMITS, CGROUP], Some(Layer::Cgroup)).await;
}

#[tokio::test]
async fn memory_is_filled() {
    let host = Host::with(Limits { memory_bytes: 64 << 20, ..Limits::default() });
    host.stops(&perl("my $x = 'a' x (160 << 20)"), &[RLIMITS, CGROUP]).await;
}

/// Each is content with less than a process may have. Only a control group counts them together.
#[tokio::test]
async fn memory_is_filled_by_many() {
    let host = Host::with(Limits { memory_bytes: 64 << 20, ..Limits::default() });
    if !host.has_cgroup().await {
        return;
    }
    let script = "my @pids; for (1..4) { my $pid = fork; if (!$pid) { my $x = 'a' x (15 << 20);
        sleep 1; exit } push @pids, $pid } for (@pids) { waitpid $_, 0; die if $? }";
    host.stops_and_tells(&perl(script), &[CGROUP], Some(Layer::Cgroup)).await;
}

#[tokio::test]
async fn a_file_grows_without_end() {
    let host = Host::with(Limits { file_bytes: 1 << 20, ..Limits::default() });
    let program = shell("exec head -c 3M /dev/zero > large");
    host.stops_and_tells(&program, &[RLIMITS], Some(Layer::Rlimits)).await;
}

/// A small archive that is a large file.
#[tokio::test]
async fn a_bomb_is_unpacked() {
    let host = Host::with(Limits { file_bytes: 1 << 20, ..Limits::default() });
    let program = shell("head -c 30M /dev/zero | gzip > bomb.gz; exec gunzip bomb.gz");
    host.stops_and_tells(&program, &[RLIMITS], Some(Layer::Rlimits)).await;
}

#[tokio::test]
async fn a_hole_makes_a_file_large() {
    let host = Host::with(Limits { file_bytes: 1 << 20, ..Limits::default() });
    let program = shell("exec truncate -s 1G large");
    host.stops_and_tells(&program, &[RLIMITS], Some(Layer::Rlimits)).await;
}

#[tokio::test]
async fn the_directory_for_temporary_files_is_filled() {
    let host = Host::with(Limits { tmp_bytes: 1 << 20, ..Limits::default() });
    let script = "file=$(mktemp /tmp/flood.XXXXXX); trap 'rm $file' EXIT
        head -c 3M /dev/zero > $file";
    host.stops(&shell(script), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn shared_memory_files_are_filled() {
    let host = Host::with(Limits { tmp_bytes: 1 << 20, ..Limits::default() });
    let script = "file=$(mktemp /dev/shm/flood.XXXXXX); trap 'rm $file' EXIT
        head -c 3M /dev/zero > $file";
    host.stops(&shell(script), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn files_are_opened_without_end() {
    let host = Host::with(Limits { open_files: 64, ..Limits::default() });
    let script = "my @files; for (1..200) { open my $file, '<', '/dev/null' or die $!;
        push @files, $file }";
    host.stops(&perl(script), &[RLIMITS]).await;
}

#[tokio::test]
async fn the_processor_is_burnt() {
    let host = Host::with(Limits { cpu_seconds: 1, ..Limits::default() });
    // Content after three seconds, by a timer that runs on the clock of the limit.
    const ITIMER_PROF: i32 = 2;
    let script = format!(
        "$SIG{{XCPU}} = 'IGNORE'; $SIG{{PROF}} = sub {{ exit 0 }};
         call({}, {ITIMER_PROF}, pack('q4', 0, 0, 3, 0), 0); 1 while 1",
        libc::SYS_setitimer
    );
    host.stops_and_tells(&perl(script), &[RLIMITS], Some(Layer::Rlimits)).await;
}

#[tokio::test]
async fn a_limit_is_raised_again() {
    let host = Host::with(Limits { open_files: 64, ..Limits::default() });
    host.stops(&shell("ulimit -n 65"), &[RLIMITS]).await;
}

#[tokio::test]
async fn memory_is_dumped_into_a_file() {
    Host::new().stops(&shell("ulimit -c 1000"), &[RLIMITS]).await;
}
