//! The second opinion on the file system: the same rights as the private root gives, enforced
//! by another part of the kernel. Without a private root it is the only opinion.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use super::{
    root::{DEVICES, ETC, SYSTEM, TERMINALS, WORKSPACE},
    terminal::Terminal,
};
use crate::profile::Profile;

/// The newest version whose rights we know. Older kernels enforce what they understand.
const NEWEST: ABI = ABI::V6;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("this kernel has no Landlock")]
    Missing,
    #[error("this kernel's Landlock is of abi {0}, without namespaces abi 6 is needed")]
    TooOld(i32),
    #[error(transparent)]
    Rules(#[from] RulesetError),
}

/// Restricts this process and all that it will start. TCP is refused unless a network
/// namespace already sees to it that there is nobody to talk to.
pub fn apply(
    profile: &Profile,
    terminal: Option<&Terminal>,
    private_root: bool,
    net_namespace: bool,
) -> Result<String, Error> {
    let all = AccessFs::from_all(NEWEST);
    let read = AccessFs::from_read(NEWEST);
    let own = all & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    let mut ruleset = Ruleset::default().handle_access(all)?.scope(Scope::from_all(NEWEST))?;
    if !net_namespace {
        ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST))?;
    }

    let mut rules = ruleset
        .create()?
        .add_rules(path_beneath_rules(SYSTEM, read))?
        .add_rules(path_beneath_rules(&profile.read_only, read))?
        .add_rules(path_beneath_rules(DEVICES, device()))?;
    if let Some(terminal) = terminal {
        // Of the host's terminals its own; of the sandbox's, all.
        let place = if private_root { Path::new(TERMINALS) } else { terminal.path() };
        rules = rules.add_rules(path_beneath_rules([place], device()))?;
    }
    rules = if private_root {
        rules
            .add_rules(path_beneath_rules(["/"], AccessFs::ReadDir))?
            .add_rules(path_beneath_rules(["/etc", "/proc"], read & !AccessFs::Execute))?
            .add_rules(path_beneath_rules([WORKSPACE, "/tmp", "/dev/shm"], own))?
    } else {
        let workspace = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        rules
            .add_rules(path_beneath_rules(ETC, read & !AccessFs::Execute))?
            .add_rules(path_beneath_rules([workspace], own))?
    };

    let status = rules.restrict_self()?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => Err(Error::Missing),
        // Before abi 6 signals go anywhere, and other processes of our user are in sight.
        (_, LandlockStatus::Available { effective_abi, .. })
            if !private_root && effective_abi < ABI::V6 =>
        {
            Err(Error::TooOld(effective_abi as i32))
        }
        (_, LandlockStatus::Available { effective_abi, .. }) => {
            Ok(format!("abi {}", effective_abi as i32))
        }
        (_, LandlockStatus::NotEnabled | LandlockStatus::NotImplemented) => Err(Error::Missing),
    }
}

fn device() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev
}
