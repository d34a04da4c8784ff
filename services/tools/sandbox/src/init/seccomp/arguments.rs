//! The calls that depend on what they are asked for.

use std::collections::BTreeMap;

use nix::libc::{self, c_long};
use seccompiler::{
    BackendError, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompRule,
};

pub type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// What a command may open sockets for, which depends on what other layers keep in.
#[derive(Debug, Clone, Copy)]
pub struct Sockets {
    /// The internet is nothing but a loopback of the command's own.
    pub internet: bool,
    /// The only sockets in sight are the command's own. Landlock does not look at them, so
    /// without a private root every socket of the host would be in reach.
    pub unix: bool,
}

/// The argument makes a call forbidden: each rule for itself, all conditions of a rule together.
pub fn rules(sockets: Sockets) -> Result<Rules, BackendError> {
    let mut rules = Rules::from([
        (libc::SYS_clone, new_namespaces()?),
        (libc::SYS_ioctl, terminals()?),
        (libc::SYS_socket, foreign_sockets(sockets)?),
        (libc::SYS_personality, personalities()?),
        (libc::SYS_mknodat, devices(2)?),
        // Limits of other processes; zero is the caller.
        (libc::SYS_prlimit64, vec![none_of(0, &[0], None)?]),
    ]);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_mknod, devices(1)?);
    Ok(rules)
}

fn new_namespaces() -> Result<Vec<SeccompRule>, BackendError> {
    let flags = [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ];
    flags.into_iter().map(|flag| rule([masked(0, flag as u32, flag as u32)?])).collect()
}

/// Typing into a terminal on somebody's behalf, taking the console over, and line disciplines,
/// which load drivers that nobody has looked at for decades.
fn terminals() -> Result<Vec<SeccompRule>, BackendError> {
    [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCCONS, libc::TIOCSETD]
        .into_iter()
        .map(|request| rule([equal(1, request as u32)?]))
        .collect()
}

/// Sockets of other families, some of which know no namespaces: vsock reaches the hypervisor
/// from everywhere. Raw ones. Rare protocols, which load drivers. Netlink beyond what
/// `getaddrinfo` and `ip` ask it.
fn foreign_sockets(sockets: Sockets) -> Result<Vec<SeccompRule>, BackendError> {
    const MULTIPATH_TCP: i32 = 262;
    let internet = [libc::AF_INET, libc::AF_INET6];
    let mut families = vec![libc::AF_NETLINK];
    families.extend(internet.into_iter().filter(|_| sockets.internet));
    families.extend(sockets.unix.then_some(libc::AF_UNIX));

    let mut rules = vec![none_of(0, &families, None)?];
    for family in internet {
        let protocols = [
            0,
            libc::IPPROTO_TCP,
            libc::IPPROTO_UDP,
            libc::IPPROTO_ICMP,
            libc::IPPROTO_ICMPV6,
            MULTIPATH_TCP,
        ];
        rules.push(none_of(2, &protocols, Some(equal(0, family as u32)?))?);
        let kind = masked(1, 0xf, libc::SOCK_RAW as u32)?;
        rules.push(rule([equal(0, family as u32)?, kind])?);
    }
    let netlink = equal(0, libc::AF_NETLINK as u32)?;
    rules.push(none_of(2, &[libc::NETLINK_ROUTE], Some(netlink))?);
    Ok(rules)
}

/// Other personalities than the ordinary one make memory predictable. Asking is allowed.
fn personalities() -> Result<Vec<SeccompRule>, BackendError> {
    const ORDINARY: i32 = 0;
    const ASK: i32 = -1;
    Ok(vec![none_of(0, &[ORDINARY, ASK], None)?])
}

/// Device nodes; pipes and plain files are made by the same call.
fn devices(mode: u8) -> Result<Vec<SeccompRule>, BackendError> {
    [libc::S_IFCHR, libc::S_IFBLK]
        .into_iter()
        .map(|kind| rule([masked(mode, libc::S_IFMT, kind)?]))
        .collect()
}

fn rule(conditions: impl Into<Vec<SeccompCondition>>) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.into())
}

fn equal(argument: u8, value: u32) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, Dword, SeccompCmpOp::Eq, value.into())
}

fn masked(argument: u8, mask: u32, value: u32) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, Dword, SeccompCmpOp::MaskedEq(mask.into()), value.into())
}

fn none_of(
    argument: u8,
    values: &[i32],
    and: Option<SeccompCondition>,
) -> Result<SeccompRule, BackendError> {
    let differs = |value: &i32| {
        SeccompCondition::new(argument, Dword, SeccompCmpOp::Ne, *value as u32 as u64)
    };
    let mut conditions = values.iter().map(differs).collect::<Result<Vec<_>, _>>()?;
    conditions.extend(and);
    rule(conditions)
}
