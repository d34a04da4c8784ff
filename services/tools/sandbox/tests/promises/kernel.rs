//! System calls that must fail, made by hand.

use sandbox::{Exit, Profile};

use crate::bench::Bench;

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;

/// The errno of a system call with these arguments, zero if it succeeded.
async fn errno(bench: &Bench, call: &str) -> i32 {
    let script = format!("perl -e 'print syscall({call}) == -1 ? $! + 0 : 0'");
    bench.output(&script).await.parse().unwrap()
}

#[tokio::test]
#[cfg(target_arch = "x86_64")]
async fn dangerous_calls_are_denied() {
    let bench = Bench::new();
    for (name, call) in [
        ("ptrace", "101, 0, 0, 0, 0"),
        ("mount", "165, 0, 0, 0, 0, 0"),
        ("umount2", "166, 0, 0"),
        ("keyctl", "250, 0, 0"),
        ("unshare", "272, 0x10000000"),
        ("setns", "308, 0, 0"),
        ("open_by_handle_at", "304, 0, 0, 0"),
        ("bpf", "321, 0, 0, 0"),
        ("userfaultfd", "323, 0"),
        ("io_uring_setup", "425, 1, 0"),
        ("pidfd_getfd", "438, 0, 0, 0"),
        ("clone with a user namespace", "56, 0x10000011, 0, 0, 0, 0"),
        ("a vsock socket", "41, 40, 1, 0"),
        ("a packet socket", "41, 17, 3, 0"),
        ("typing into a terminal", "16, 0, 0x5412, 0"),
        ("the same with high bits set", "16, 0, 0x100005412, 0"),
    ] {
        assert_eq!(errno(&bench, call).await, EPERM, "{name}");
    }
}

#[tokio::test]
#[cfg(target_arch = "x86_64")]
async fn unknown_calls_do_not_exist() {
    let bench = Bench::new();
    assert_eq!(errno(&bench, "435, 0, 0").await, ENOSYS, "clone3");
    assert_eq!(errno(&bench, "467, 0, 0, 0, 0").await, ENOSYS, "a call younger than the list");
    assert_eq!(errno(&bench, "0x40000000 + 101, 0, 0, 0, 0").await, ENOSYS, "x32 ptrace");
    assert_eq!(errno(&bench, "39").await, 0, "getpid");
}

#[tokio::test]
#[cfg(target_arch = "x86_64")]
async fn calls_of_another_architecture_kill() {
    const SIGSYS: i32 = 31;
    let bench = Bench::new();
    // mov eax, 20 (getpid of i386); int 0x80; then exit(0) the 64-bit way. As an ELF file of one
    // segment, because no compiler can be assumed.
    let code = b"\xb8\x14\x00\x00\x00\xcd\x80\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05";
    std::fs::write(bench.workspace.join("program"), elf(code)).unwrap();
    let script = "cp program run && chmod +x run && exec ./run";
    let (exit, violations) = bench.violations(&Profile::default(), script).await;
    assert_eq!(exit, Exit::Signal(SIGSYS));
    assert_eq!(violations, ["seccomp: a system call that kills, ended by SIGSYS"]);
}

fn elf(code: &[u8]) -> Vec<u8> {
    const BASE: u64 = 0x400000;
    const HEADERS: u64 = 64 + 56;
    let size = HEADERS + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    file.extend([BASE + HEADERS, 64, 0].map(u64::to_le_bytes).concat());
    file.extend(b"\0\0\0\0\x40\0\x38\0\x01\0\0\0\0\0\0\0");
    file.extend(b"\x01\0\0\0\x05\0\0\0");
    file.extend([0, BASE, BASE, size, size, 0x1000].map(u64::to_le_bytes).concat());
    file.extend(code);
    file
}
