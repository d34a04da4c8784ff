//! Parts of the kernel that commands have no use for. Calls that only root of the machine can
//! make are tried against the filter itself, in its unit tests.

use nix::libc;
use sandbox::{Layer, Program};

use crate::{
    attempt::{Host, SECCOMP},
    program::{call, perl, reached},
};

async fn filtered(program: &Program) {
    Host::new().stops(program, &[SECCOMP]).await;
}

#[tokio::test]
async fn bpf_is_asked_for_an_object() {
    const BPF_OBJ_GET: i32 = 7;
    let arguments = format!("{BPF_OBJ_GET}, pack('QIx116', address('/none'), 0), 128");
    filtered(&reached(libc::SYS_bpf, &arguments)).await;
}

#[tokio::test]
async fn an_event_is_counted() {
    // A software clock of ourselves, without the kernel's part.
    const ATTRIBUTES: &str = "pack('IIQQQQQx64', 1, 112, 0, 0, 0, 0, 0b1100000)";
    filtered(&call(libc::SYS_perf_event_open, &format!("{ATTRIBUTES}, 0, -1, -1, 0"))).await;
}

#[tokio::test]
async fn a_keyring_is_looked_for() {
    const KEYCTL_GET_KEYRING_ID: i32 = 0;
    filtered(&call(libc::SYS_keyctl, &format!("{KEYCTL_GET_KEYRING_ID}, -2, 1"))).await;
}

#[tokio::test]
async fn a_key_is_added() {
    filtered(&call(libc::SYS_add_key, "'user', 'name', 'secret', 6, -2")).await;
}

#[tokio::test]
async fn a_key_is_asked_for() {
    filtered(&reached(libc::SYS_request_key, "'user', 'name', 0, 0")).await;
}

#[tokio::test]
async fn a_ring_is_set_up() {
    filtered(&call(libc::SYS_io_uring_setup, "1, pack('x120')")).await;
}

#[tokio::test]
async fn a_ring_is_entered() {
    filtered(&reached(libc::SYS_io_uring_enter, "-1, 0, 0, 0, 0, 0")).await;
}

#[tokio::test]
async fn a_ring_is_registered_with() {
    filtered(&reached(libc::SYS_io_uring_register, "-1, 0, 0, 0")).await;
}

#[tokio::test]
async fn page_faults_are_taken_over() {
    const USER_MODE_ONLY: i32 = 1;
    filtered(&call(libc::SYS_userfaultfd, &USER_MODE_ONLY.to_string())).await;
}

#[tokio::test]
async fn files_are_watched_across_mounts() {
    filtered(&reached(libc::SYS_fanotify_mark, "-1, 1, 1, -100, '/'")).await;
}

#[tokio::test]
async fn pages_are_given_to_a_pipe() {
    let script = format!(
        "pipe my $reader, my $writer; my $page = 'x' x 4096;
         call({}, fileno $writer, pack('JJ', address($page), 4096), 1, 0)",
        libc::SYS_vmsplice
    );
    filtered(&perl(script)).await;
}

#[tokio::test]
async fn memory_is_made_predictable() {
    let arguments = libc::ADDR_NO_RANDOMIZE.to_string();
    filtered(&call(libc::SYS_personality, &arguments)).await;
}

#[tokio::test]
async fn the_queue_for_the_disk_is_jumped() {
    const THIS_PROCESS: i32 = 1;
    const FIRST_OF_BEST_EFFORT: i32 = 2 << 13;
    let arguments = format!("{THIS_PROCESS}, 0, {FIRST_OF_BEST_EFFORT}");
    filtered(&call(libc::SYS_ioprio_set, &arguments)).await;
}

#[tokio::test]
async fn a_process_is_traced() {
    const PTRACE_TRACEME: i32 = 0;
    filtered(&call(libc::SYS_ptrace, &format!("{PTRACE_TRACEME}, 0, 0, 0"))).await;
}

#[tokio::test]
async fn memory_of_a_child_is_read() {
    let script = format!(
        "my $secret = 'secret'; my $copy = 'xxxxxx';
         my $child = fork; if (!$child) {{ sleep 100; exit }}
         call({}, $child, pack('JJ', address($copy), 6), 1, pack('JJ', address($secret), 6), 1, 0);
         kill 9, $child; die $copy if $copy ne $secret",
        libc::SYS_process_vm_readv
    );
    filtered(&perl(script)).await;
}

#[tokio::test]
async fn the_clock_is_looked_at_as_its_owner_would() {
    filtered(&call(libc::SYS_adjtimex, "pack('x208')")).await;
}

#[tokio::test]
async fn the_clock_is_set() {
    // A time that the kernel refuses, once it has been asked.
    filtered(&reached(libc::SYS_settimeofday, "pack('qq', 0, 10**9), 0")).await;
}

#[tokio::test]
async fn a_terminal_is_typed_into() {
    filtered(&reached(libc::SYS_ioctl, &format!("0, {}, 'x'", libc::TIOCSTI))).await;
}

#[tokio::test]
async fn a_virtual_console_is_driven() {
    filtered(&reached(libc::SYS_ioctl, &format!("0, {}, 'x'", libc::TIOCLINUX))).await;
}

#[tokio::test]
async fn a_line_discipline_is_loaded() {
    filtered(&reached(libc::SYS_ioctl, &format!("0, {}, pack('i', 13)", libc::TIOCSETD))).await;
}

#[tokio::test]
#[cfg(target_arch = "x86_64")]
async fn a_segment_descriptor_is_written() {
    filtered(&reached(libc::SYS_modify_ldt, "1, pack('x16'), 16")).await;
}

#[tokio::test]
#[cfg(target_arch = "x86_64")]
async fn a_call_is_made_under_its_number_of_another_architecture() {
    // `mov eax, 20 (getpid of i386); int 0x80; exit(0)`, because a program of i386 would need
    // libraries of i386.
    const CODE: &str = r"\xb8\x14\x00\x00\x00\xcd\x80\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05";
    let script = format!(
        r#"my $code = "{CODE}"; my $size = 120 + length $code;
         open my $file, '>', 'program';
         print $file "\x7fELF\x02\x01\x01", "\0" x 9, pack('SSIQQQISSSSSS', 2, 62, 1, 0x400078, 64,
             0, 0, 64, 56, 1, 0, 0, 0), pack('IIQQQQQQ', 1, 5, 0, 0x400000, 0x400000, $size, $size,
             0x1000), $code;
         close $file; chmod 0700, 'program'; exec './program'"#
    );
    Host::new().stops_and_tells(&perl(script), &[SECCOMP], Some(Layer::Seccomp)).await;
}
