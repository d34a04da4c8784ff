use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::{
    omitted::Omitted,
    report::{Layer, Tier},
};

/// Where a proxy listens inside of a sandbox: nobody else can be there before it.
pub const PROXY_PORT: u16 = 3128;

/// What a command is given and what it is refused. The default is strict: no network, one
/// writable workspace, and every layer that makes a machine one of tier A.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Environment variables beside `PATH`, `HOME`, `LANG` and `TERM`. Nothing is inherited.
    pub env: BTreeMap<String, String>,

    /// Directories of the host, beside the system's own, that can be read at the same path.
    /// Real paths: a link on the way would be followed inside of the sandbox. And without
    /// sockets: whoever can see one can talk to its owner.
    pub read_only: Vec<PathBuf>,

    /// Open a door for a proxy: a socket that listens on [`PROXY_PORT`] inside and is handed to
    /// whoever starts the command, as [`Child::proxy`](crate::Child). There is none without the
    /// network namespace.
    pub proxy: bool,

    /// Layers that may be missing. Every other layer is demanded.
    pub optional: BTreeSet<Layer>,

    pub limits: Limits,

    /// Nothing, but for tests: see [`Omitted`].
    pub omitted: Omitted,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile::at_least(Tier::A)
    }
}

impl Profile {
    /// The strict profile, but satisfied with what a machine of this tier can give.
    pub fn at_least(tier: Tier) -> Profile {
        Profile {
            env: BTreeMap::new(),
            read_only: Vec::new(),
            proxy: false,
            optional: tier.may_lack(),
            limits: Limits::default(),
            omitted: Omitted::default(),
        }
    }

    /// Whether a machine of tier A is the least that this profile is satisfied with.
    pub fn is_strict(&self) -> bool {
        self.optional.is_subset(&Tier::A.may_lack())
    }

    /// Leaves layers out, to show that they are what stops an attempt. See [`Omitted`].
    #[cfg(feature = "weak")]
    pub fn without(mut self, layers: &[Layer]) -> Profile {
        self.optional.extend(layers);
        self.omitted.extend(layers);
        self
    }
}

/// Limits per process, except where a namespace or a control group makes them limits of the
/// whole sandbox: the number of processes always, memory where the layer `cgroup` is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub cpu_seconds: u64,

    /// Private writable memory. Address space that is only reserved does not count,
    /// because runtimes such as V8 and Go reserve far more than they use.
    pub memory_bytes: u64,

    /// Address space, which also bounds memory that is shared.
    pub address_space_bytes: u64,

    /// Processes and threads in the whole sandbox.
    pub processes: u64,

    pub open_files: u64,

    pub file_bytes: u64,

    /// The size of the private `/tmp`, and of `/dev/shm`. Both are memory.
    pub tmp_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        const GIB: u64 = 1 << 30;
        Limits {
            cpu_seconds: 600,
            memory_bytes: 4 * GIB,
            address_space_bytes: 64 * GIB,
            processes: 256,
            open_files: 1024,
            file_bytes: 2 * GIB,
            tmp_bytes: GIB / 2,
        }
    }
}

/// What to run: a program, looked up in the sandbox's `PATH`, and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub path: String,
    pub args: Vec<String>,
}

impl Program {
    pub fn new(path: &str, args: &[&str]) -> Program {
        Program { path: path.into(), args: args.iter().map(|&arg| arg.into()).collect() }
    }

    /// `bash -c` with this text.
    pub fn bash(script: &str) -> Program {
        Program::new("bash", &["-c", script])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_relaxed_unless_asked_for() {
        assert!(Profile::default().is_strict());
        assert!(Profile::at_least(Tier::A).is_strict());
        for tier in [Tier::B, Tier::C, Tier::D] {
            assert!(!Profile::at_least(tier).is_strict());
        }
    }

    #[test]
    fn a_request_from_a_build_that_knows_more_is_not_understood() {
        let mut profile = serde_json::to_value(Profile::default()).unwrap();
        profile["unknown"] = true.into();
        assert!(serde_json::from_value::<Profile>(profile).is_err());
    }

    #[test]
    fn a_profile_that_leaves_nothing_out_says_nothing_of_it() {
        let profile = serde_json::to_value(Profile::default()).unwrap();
        assert_eq!(profile["omitted"], serde_json::json!({}));
    }
}
