//! Which path a rule takes, whole, and why: a pure function of the rule and of what this host can.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::table::Path;

/// What the operator asks for, for one rule, one interface or the whole process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PathChoice {
    /// The kernel path wherever it can serve the rule.
    #[default]
    Auto,
    /// The kernel path or none.
    Kernel,
    /// The userspace path or none.
    Userspace,
}

impl PathChoice {
    /// The path that is forced, if one is.
    #[must_use]
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

/// What this host can execute: for each path nothing, or the reason it is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support {
    /// The kernel path.
    pub kernel: Result<(), String>,
    /// The userspace path.
    pub userspace: Result<(), String>,
}
