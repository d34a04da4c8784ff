//! Which system calls a command may not make.
//!
//! A list of what is denied, because agents run whatever a developer would; but with a ceiling,
//! so that calls younger than this list do not exist. The list leaves out nothing that has
//! led out of a container before: namespaces, mounts, tracing, kernel keys, io_uring, BPF.

use std::{collections::BTreeMap, env::consts::ARCH};

use nix::libc::{self, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, apply_filter, sock_filter,
};

/// The youngest call we have looked at. Everything after it is answered with ENOSYS, and so are
/// the x32 calls of x86-64, which are the same calls once more under numbers that no list has.
const YOUNGEST: c_long = libc::SYS_mseal;

const DENIED: &[c_long] = &[
    // Mounts and roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // Namespaces. `clone` has a rule of its own.
    libc::SYS_unshare,
    libc::SYS_setns,
    // Looking into other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_perf_event_open,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // Large parts of the kernel that commands have no use for.
    libc::SYS_bpf,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Files by handle, which go past every path.
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    // The machine itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
];

/// Filters this process and all that it will start. Calls of another architecture kill.
pub fn apply(net_namespace: bool) -> Result<String, seccompiler::Error> {
    // The filters apply to each other's installation, which needs nothing that they deny.
    apply_filter(&compile(denied(net_namespace)?, libc::EPERM)?)?;
    // Its flags are behind a pointer and cannot be checked; without it libc uses `clone`.
    apply_filter(&compile(BTreeMap::from([(libc::SYS_clone3, vec![])]), libc::ENOSYS)?)?;
    apply_filter(&ceiling())?;
    Ok(format!("{} calls denied, ceiling {YOUNGEST}", DENIED.len()))
}

fn compile(rules: Rules, errno: i32) -> Result<BpfProgram, BackendError> {
    let deny = SeccompAction::Errno(errno as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, deny, ARCH.try_into()?)?.try_into()
}

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

fn denied(net_namespace: bool) -> Result<Rules, BackendError> {
    let mut rules: Rules = DENIED.iter().map(|call| (*call, vec![])).collect();
    rules.insert(libc::SYS_clone, new_namespaces()?);
    rules.insert(libc::SYS_socket, vec![other_families(net_namespace)?]);
    rules.insert(libc::SYS_ioctl, terminal_injection()?);
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
    flags
        .into_iter()
        .map(|flag| {
            let flag = flag as u32 as u64;
            let set = SeccompCondition::new(0, Dword, SeccompCmpOp::MaskedEq(flag), flag)?;
            SeccompRule::new(vec![set])
        })
        .collect()
}

/// Sockets of any other family. Some know no namespaces: vsock reaches the hypervisor from
/// everywhere. Without a network namespace the internet is another family, too.
fn other_families(net_namespace: bool) -> Result<SeccompRule, BackendError> {
    let allowed: &[i32] = match net_namespace {
        true => &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK],
        false => &[libc::AF_UNIX],
    };
    let differs = |family: &i32| SeccompCondition::new(0, Dword, SeccompCmpOp::Ne, *family as u64);
    SeccompRule::new(allowed.iter().map(differs).collect::<Result<_, _>>()?)
}

/// Typing into a terminal on somebody's behalf.
fn terminal_injection() -> Result<Vec<SeccompRule>, BackendError> {
    [libc::TIOCSTI, libc::TIOCLINUX]
        .into_iter()
        .map(|request| {
            let same = SeccompCondition::new(1, Dword, SeccompCmpOp::Eq, request)?;
            SeccompRule::new(vec![same])
        })
        .collect()
}

/// `if number > YOUNGEST { ENOSYS } else { allow }`, written in BPF because the compiler knows
/// lists only. The filters above have already killed other architectures.
fn ceiling() -> BpfProgram {
    let instruction = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 0, 1, YOUNGEST as u32),
        instruction(libc::BPF_RET, 0, 0, SeccompAction::Errno(libc::ENOSYS as u32).into()),
        instruction(libc::BPF_RET, 0, 0, SeccompAction::Allow.into()),
    ]
}
