use serde::{Deserialize, Serialize};

use crate::report::Layer;

/// How a report explains such a layer.
pub const LEFT_OUT: &str = "left out for a test";

/// Layers that are left out although they could be had. There are none, except where tests show
/// that a layer is what stops an attempt. Only those are built with the feature `weak`; any
/// other `sandbox-init` refuses to read a request that leaves something out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Omitted {
    // Absent when there is nothing to say, so that any `sandbox-init` can read it.
    #[cfg(feature = "weak")]
    #[serde(default, skip_serializing_if = "std::collections::BTreeSet::is_empty")]
    layers: std::collections::BTreeSet<Layer>,
}

impl Omitted {
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Omitted::default()
    }
}

#[cfg(feature = "weak")]
impl Omitted {
    pub(crate) fn contains(&self, layer: Layer) -> bool {
        self.layers.contains(&layer)
    }

    pub(crate) fn extend(&mut self, layers: &[Layer]) {
        self.layers.extend(layers);
    }
}

#[cfg(not(feature = "weak"))]
impl Omitted {
    pub(crate) fn contains(&self, _: Layer) -> bool {
        false
    }
}
