//! The filters, run by a small machine of our own: what they say about calls that this kernel
//! lacks, or would refuse to everybody but root.

use std::sync::LazyLock;

use nix::libc::{self, c_long};
use proptest::prelude::*;
use seccompiler::{BpfProgram, sock_filter};

use super::{ABSENT, DENIED, Sockets, YOUNGEST, absences, denials};

const EVERYTHING: Sockets = Sockets { internet: true, unix: true };
const NOTHING: Sockets = Sockets { internet: false, unix: false };

#[derive(Debug, PartialEq)]
enum Answer {
    Allow,
    Errno(i32),
    Kill,
}

/// The answer of one program to a call, as the kernel would work it out.
fn run(program: &BpfProgram, architecture: u32, call: c_long, arguments: [u64; 6]) -> Answer {
    let mut data = vec![call as u32, architecture, 0, 0];
    data.extend(arguments.iter().flat_map(|value| [*value as u32, (*value >> 32) as u32]));
    let (mut next, mut accumulator) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[next].clone();
        next += 1;
        let jump = |holds: bool| usize::from(if holds { jt } else { jf });
        match u32::from(code) {
            0x20 => accumulator = data[k as usize / 4],
            0x54 => accumulator &= k,
            0x05 => next += k as usize,
            0x15 => next += jump(accumulator == k),
            0x25 => next += jump(accumulator > k),
            0x35 => next += jump(accumulator >= k),
            0x06 => {
                return match k & 0xffff_0000 {
                    0x7fff_0000 => Answer::Allow,
                    0x0005_0000 => Answer::Errno((k & 0xffff) as i32),
                    _ => Answer::Kill,
                };
            }
            code => panic!("instruction {code:#x} is not one that a filter needs"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

/// The answer of both filters together: the strictest counts.
fn answer(sockets: Sockets, call: c_long, arguments: [u64; 6]) -> Answer {
    static ALL: LazyLock<BpfProgram> = LazyLock::new(|| denials(EVERYTHING).unwrap());
    static NONE: LazyLock<BpfProgram> = LazyLock::new(|| denials(NOTHING).unwrap());
    static ABSENCES: LazyLock<BpfProgram> = LazyLock::new(absences);
    let denials = if sockets.internet { &ALL } else { &NONE };
    match run(denials, NATIVE, call, arguments) {
        Answer::Allow => run(&ABSENCES, NATIVE, call, arguments),
        answer => answer,
    }
}

fn socket(sockets: Sockets, family: i32, kind: i32, protocol: i32) -> Answer {
    let arguments = [family as u64, kind as u64, protocol as u64, 0, 0, 0];
    answer(sockets, libc::SYS_socket, arguments)
}

const DENY: Answer = Answer::Errno(libc::EPERM);

proptest! {
    #[test]
    fn what_is_on_the_list_is_denied_whatever_its_arguments(arguments: [u64; 6]) {
        for call in DENIED {
            prop_assert_eq!(answer(EVERYTHING, *call, arguments), DENY);
        }
        for call in ABSENT {
            prop_assert_eq!(answer(EVERYTHING, *call, arguments), Answer::Errno(libc::ENOSYS));
        }
    }

    #[test]
    fn what_nobody_has_looked_at_does_not_exist(
        call in YOUNGEST + 1..=i64::from(u32::MAX),
        arguments: [u64; 6],
    ) {
        prop_assert_eq!(answer(EVERYTHING, call, arguments), Answer::Errno(libc::ENOSYS));
    }

    #[test]
    fn another_architecture_is_death(architecture: u32, call in 0..YOUNGEST, arguments: [u64; 6]) {
        prop_assume!(architecture != NATIVE);
        let program = denials(EVERYTHING).unwrap();
        prop_assert_eq!(run(&program, architecture, call, arguments), Answer::Kill);
    }

    #[test]
    fn no_flag_hides_a_new_namespace(flags: u64) {
        let namespaces = 0x7e02_0000;
        let expected = if flags & namespaces == 0 { Answer::Allow } else { DENY };
        prop_assert_eq!(answer(EVERYTHING, libc::SYS_clone, [flags, 0, 0, 0, 0, 0]), expected);
    }

    #[test]
    fn only_known_families_get_sockets(family in 0..100i32, kind in 1..3i32) {
        let known = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
        let expected = if known.contains(&family) { Answer::Allow } else { DENY };
        prop_assert_eq!(socket(EVERYTHING, family, kind, 0), expected);
        let expected = if family == libc::AF_NETLINK { Answer::Allow } else { DENY };
        prop_assert_eq!(socket(NOTHING, family, kind, 0), expected);
    }
}

#[test]
fn what_programs_live_on_is_allowed() {
    for call in [
        libc::SYS_read,
        libc::SYS_openat,
        libc::SYS_execve,
        libc::SYS_mmap,
        libc::SYS_futex,
        libc::SYS_wait4,
        libc::SYS_prctl,
        libc::SYS_statx,
        libc::SYS_getrandom,
        libc::SYS_memfd_create,
    ] {
        assert_eq!(answer(EVERYTHING, call, [0; 6]), Answer::Allow, "{call}");
    }
}

#[test]
fn sockets_are_neither_raw_nor_of_rare_protocols() {
    let raw = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    for family in [libc::AF_INET, libc::AF_INET6] {
        assert_eq!(socket(EVERYTHING, family, raw, libc::IPPROTO_ICMP), DENY);
        assert_eq!(socket(EVERYTHING, family, libc::SOCK_STREAM, libc::IPPROTO_SCTP), DENY);
        assert_eq!(socket(EVERYTHING, family, libc::SOCK_STREAM, libc::IPPROTO_TCP), Answer::Allow);
    }
    assert_eq!(socket(EVERYTHING, libc::AF_NETLINK, raw, libc::NETLINK_ROUTE), Answer::Allow);
    assert_eq!(socket(EVERYTHING, libc::AF_NETLINK, raw, libc::NETLINK_AUDIT), DENY);
}

#[test]
fn pipes_are_made_and_devices_are_not() {
    let mknodat = |mode: libc::mode_t| {
        answer(EVERYTHING, libc::SYS_mknodat, [0, 0, u64::from(mode | 0o600), 0, 0, 0])
    };
    assert_eq!(mknodat(libc::S_IFIFO), Answer::Allow);
    assert_eq!(mknodat(libc::S_IFREG), Answer::Allow);
    assert_eq!(mknodat(libc::S_IFCHR), DENY);
    assert_eq!(mknodat(libc::S_IFBLK), DENY);
}

#[test]
fn a_personality_can_be_asked_for_and_not_be_changed() {
    let personality = |value| answer(EVERYTHING, libc::SYS_personality, [value, 0, 0, 0, 0, 0]);
    assert_eq!(personality(0xffff_ffff), Answer::Allow);
    assert_eq!(personality(0), Answer::Allow);
    assert_eq!(personality(libc::ADDR_NO_RANDOMIZE as u64), DENY);
}
