use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// One barrier between a command and the machine, in the order in which they are put up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// A control group, which counts memory and processes of the whole tree.
    Cgroup,
    UserNamespace,
    PidNamespace,
    NetNamespace,
    IpcNamespace,
    UtsNamespace,
    CgroupNamespace,
    MountNamespace,
    /// A root of our own making: read-only system directories and one writable workspace.
    PrivateRoot,
    /// A `/proc` that shows the sandbox's own processes.
    Proc,
    NoNewPrivs,
    Rlimits,
    Capabilities,
    Landlock,
    Seccomp,
}

impl Layer {
    pub const ALL: [Layer; 15] = [
        Layer::Cgroup,
        Layer::UserNamespace,
        Layer::PidNamespace,
        Layer::NetNamespace,
        Layer::IpcNamespace,
        Layer::UtsNamespace,
        Layer::CgroupNamespace,
        Layer::MountNamespace,
        Layer::PrivateRoot,
        Layer::Proc,
        Layer::NoNewPrivs,
        Layer::Rlimits,
        Layer::Capabilities,
        Layer::Landlock,
        Layer::Seccomp,
    ];

    /// The name under which facts and errors know the layer.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Cgroup => "cgroup",
            Layer::UserNamespace => "user_namespace",
            Layer::PidNamespace => "pid_namespace",
            Layer::MountNamespace => "mount_namespace",
            Layer::NetNamespace => "net_namespace",
            Layer::IpcNamespace => "ipc_namespace",
            Layer::UtsNamespace => "uts_namespace",
            Layer::CgroupNamespace => "cgroup_namespace",
            Layer::PrivateRoot => "private_root",
            Layer::Proc => "proc",
            Layer::NoNewPrivs => "no_new_privs",
            Layer::Rlimits => "rlimits",
            Layer::Capabilities => "capabilities",
            Layer::Landlock => "landlock",
            Layer::Seccomp => "seccomp",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What became of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerReport {
    pub layer: Layer,
    pub applied: bool,
    /// The version or setting in force, or why there is none.
    pub detail: String,
}

/// The sandbox that was really applied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub layers: Vec<LayerReport>,
}

/// Something that a layer has stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub layer: Layer,
    pub detail: String,
}

impl Report {
    /// Notes how a layer went: `Ok` says what is in force, `Err` why nothing is.
    pub fn note<E: fmt::Display>(&mut self, layer: Layer, outcome: Result<String, E>) {
        let (applied, detail) = match outcome {
            Ok(detail) => (true, detail),
            Err(error) => (false, error.to_string()),
        };
        self.layers.push(LayerReport { layer, applied, detail });
    }

    pub fn has(&self, layer: Layer) -> bool {
        self.layers.iter().any(|report| report.layer == layer && report.applied)
    }

    /// The layers that are not in force.
    pub fn missing(&self) -> BTreeSet<Layer> {
        Layer::ALL.into_iter().filter(|layer| !self.has(*layer)).collect()
    }

    /// What of the file system can be written.
    pub fn writable(&self) -> &'static [&'static str] {
        match self.has(Layer::PrivateRoot) {
            true => &["/workspace", "/tmp", "/dev/shm"],
            false => &["/workspace"],
        }
    }

    /// The best tier whose promises this sandbox keeps.
    pub fn tier(&self) -> Tier {
        let missing = self.missing();
        [Tier::A, Tier::B, Tier::C]
            .into_iter()
            .find(|tier| missing.is_subset(&tier.may_lack()))
            .unwrap_or(Tier::D)
    }
}

/// How much of the sandbox a machine can give. `A` is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    /// All that keeps a command in: a machine, or a pod with user namespaces and an unmasked
    /// `/proc`.
    A,
    /// All namespaces but no fresh `/proc`: a container with a masked `/proc`.
    B,
    /// Landlock, seccomp and limits without namespaces: a pod under a default seccomp profile.
    C,
    /// Less than that. Nothing untrusted may run.
    D,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tier::A => "A",
            Tier::B => "B",
            Tier::C => "C",
            Tier::D => "D",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected A, B or C")]
pub struct ParseTierError;

/// Reads a tier that commands can run in. `D` is none.
impl FromStr for Tier {
    type Err = ParseTierError;

    fn from_str(text: &str) -> Result<Tier, ParseTierError> {
        match text {
            "A" => Ok(Tier::A),
            "B" => Ok(Tier::B),
            "C" => Ok(Tier::C),
            _ => Err(ParseTierError),
        }
    }
}

impl Tier {
    /// The layers a machine of this tier may lack. None needs a control group, which ordinary
    /// users rarely have: without it the limits of processes hold, which count each by itself.
    pub fn may_lack(self) -> BTreeSet<Layer> {
        let namespaces = [
            Layer::Cgroup,
            Layer::UserNamespace,
            Layer::PidNamespace,
            Layer::MountNamespace,
            Layer::NetNamespace,
            Layer::IpcNamespace,
            Layer::UtsNamespace,
            Layer::CgroupNamespace,
            Layer::PrivateRoot,
            Layer::Proc,
        ];
        match self {
            Tier::A => BTreeSet::from([Layer::Cgroup]),
            Tier::B => BTreeSet::from([Layer::Cgroup, Layer::Proc]),
            Tier::C => BTreeSet::from(namespaces),
            Tier::D => BTreeSet::from(Layer::ALL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_without(missing: &[Layer]) -> Report {
        let mut report = Report::default();
        for layer in Layer::ALL {
            let outcome = if missing.contains(&layer) { Err("no") } else { Ok("yes".into()) };
            report.note(layer, outcome);
        }
        report
    }

    #[test]
    fn a_tier_is_what_is_left() {
        assert_eq!(report_without(&[]).tier(), Tier::A);
        assert_eq!(report_without(&[Layer::Cgroup]).tier(), Tier::A);
        assert_eq!(report_without(&[Layer::Proc]).tier(), Tier::B);
        assert_eq!(report_without(&[Layer::NetNamespace]).tier(), Tier::C);
        assert_eq!(report_without(&[Layer::Landlock]).tier(), Tier::D);
    }

    #[test]
    fn a_layer_that_nobody_reported_is_missing() {
        assert_eq!(Report::default().missing().len(), Layer::ALL.len());
        assert_eq!(Report::default().tier(), Tier::D);
    }

    #[test]
    fn names_are_the_ones_that_travel() {
        for layer in Layer::ALL {
            assert_eq!(serde_json::to_value(layer).unwrap(), layer.name());
        }
    }
}
