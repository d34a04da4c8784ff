use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::profile::Limits;

/// Sets every limit, or a lower one where the service itself has been given less.
pub fn apply(limits: &Limits) -> nix::Result<String> {
    let wanted = [
        (Resource::RLIMIT_CPU, limits.cpu_seconds),
        (Resource::RLIMIT_DATA, limits.memory_bytes),
        (Resource::RLIMIT_AS, limits.address_space_bytes),
        (Resource::RLIMIT_NPROC, limits.processes),
        (Resource::RLIMIT_NOFILE, limits.open_files),
        (Resource::RLIMIT_FSIZE, limits.file_bytes),
        (Resource::RLIMIT_CORE, 0),
    ];
    for (resource, limit) in wanted {
        let (_, hard) = getrlimit(resource)?;
        let limit = limit.min(hard);
        setrlimit(resource, limit, limit)?;
    }
    Ok(format!(
        "cpu {}s, memory {}, processes {}, open files {}, file size {}",
        limits.cpu_seconds,
        limits.memory_bytes,
        limits.processes,
        limits.open_files,
        limits.file_bytes
    ))
}
