//! Which rule already owns what another one claims.

use std::fmt;

/// The rule a thing belongs to, as seen from another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The same rule.
    Same,
    /// The rule of that name.
    Rule(String),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("this rule"),
            Self::Rule(name) => write!(f, "rule {name:?}"),
        }
    }
}
