use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::profile::Limits;

/// Sets every limit, or a lower one where the service itself has been given less.
pub fn apply(limits: &Limits) -> nix::Result<String> {
    let wanted = [
        (Resource::RLIMIT_DATA, limits.memory_bytes),
        (Resource::RLIMIT_AS, limits.address_space_bytes),
        // One more than a control group allows, because that one tells when it was reached.
        (Resource::RLIMIT_NPROC, limits.processes.saturating_add(1)),
        (Resource::RLIMIT_NOFILE, limits.open_files),
        (Resource::RLIMIT_FSIZE, limits.file_bytes),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_RTPRIO, 0),
        (Resource::RLIMIT_NICE, 0),
        (Resource::RLIMIT_MEMLOCK, limits.memory_bytes),
        // Memory of the kernel, which nothing else counts for an ordinary user.
        (Resource::RLIMIT_MSGQUEUE, 1 << 20),
        (Resource::RLIMIT_SIGPENDING, 4096),
    ];
    for (resource, limit) in wanted {
        let (_, hard) = getrlimit(resource)?;
        let limit = limit.min(hard);
        setrlimit(resource, limit, limit)?;
    }
    // First a signal that says why, and a second later one that cannot be ignored.
    let (_, hard) = getrlimit(Resource::RLIMIT_CPU)?;
    let soft = limits.cpu_seconds.min(hard);
    setrlimit(Resource::RLIMIT_CPU, soft, soft.saturating_add(1).min(hard))?;
    Ok(format!(
        "cpu {}s, memory {}, processes {}, open files {}, file size {}",
        limits.cpu_seconds,
        limits.memory_bytes,
        limits.processes,
        limits.open_files,
        limits.file_bytes
    ))
}
