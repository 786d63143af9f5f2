//! Where rules may run: the two paths, and the operators' choices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::setting::words;

/// Where a route executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// eBPF at tc ingress.
    Kernel,
    /// AF_PACKET and io_uring in worker processes.
    Userspace,
}

words! {
    /// What the operator asks for, for one rule, one interface or the whole process.
    pub enum PathChoice = Auto {
        /// On the kernel path if it can serve them, else on the userspace path.
        Auto = "auto",
        /// eBPF.
        Kernel = "kernel",
        /// Worker processes.
        Userspace = "userspace",
    }
}

impl PathChoice {
    /// The path that is forced, if one is.
    pub const fn forced(self) -> Option<Path> {
        match self {
            Self::Auto => None,
            Self::Kernel => Some(Path::Kernel),
            Self::Userspace => Some(Path::Userspace),
        }
    }
}

impl From<Path> for PathChoice {
    fn from(path: Path) -> Self {
        match path {
            Path::Kernel => Self::Kernel,
            Path::Userspace => Self::Userspace,
        }
    }
}

/// The choices beyond the single rule. A rule's own choice takes precedence, then that of its first
/// input's interface that has one, then the process's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathChoices {
    /// The process's: `mcr run --path`.
    pub process: PathChoice,
    /// Interfaces with a choice of their own, by name.
    pub interfaces: BTreeMap<String, PathChoice>,
}
