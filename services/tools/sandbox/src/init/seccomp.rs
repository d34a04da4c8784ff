//! Which system calls a command may not make.
//!
//! A list of what is denied, because agents run whatever a developer would; but with a ceiling,
//! so that calls younger than this list do not exist. The list leaves out nothing that has
//! led out of a container before: namespaces, mounts, tracing, kernel keys, io_uring, BPF.

mod calls;
mod arguments;
#[cfg(test)]
mod tests;

use std::env::consts::ARCH;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompFilter, apply_filter, sock_filter,
};

pub use arguments::Sockets;
use calls::{ABSENT, DENIED, YOUNGEST};

/// Filters this process and all that it will start. Calls of another architecture kill.
pub fn apply(sockets: Sockets) -> Result<String, seccompiler::Error> {
    // The first applies to the installation of the second, which needs nothing that it denies.
    apply_filter(&denials(sockets)?)?;
    apply_filter(&absences())?;
    Ok(format!("{} calls denied, ceiling {YOUNGEST}", DENIED.len() + ABSENT.len()))
}

fn denials(sockets: Sockets) -> Result<BpfProgram, BackendError> {
    let mut rules = arguments::rules(sockets)?;
    rules.extend(DENIED.iter().map(|call| (*call, vec![])));
    let deny = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, deny, ARCH.try_into()?)?.try_into()
}

/// `if number > YOUNGEST || ABSENT.contains(number) { ENOSYS } else { allow }`, written in BPF
/// because the compiler knows lists only. The other filter has killed other architectures.
fn absences() -> BpfProgram {
    let instruction = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let jump = libc::BPF_JMP | libc::BPF_K;
    let mut program = vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        // Over the list and the `allow` behind it.
        instruction(jump | libc::BPF_JGT, ABSENT.len() as u8 + 1, 0, YOUNGEST as u32),
    ];
    for (index, call) in ABSENT.iter().enumerate() {
        let rest = (ABSENT.len() - index) as u8;
        program.push(instruction(jump | libc::BPF_JEQ, rest, 0, *call as u32));
    }
    program.push(instruction(libc::BPF_RET, 0, 0, SeccompAction::Allow.into()));
    let absent = SeccompAction::Errno(libc::ENOSYS as u32).into();
    program.push(instruction(libc::BPF_RET, 0, 0, absent));
    program
}
