//! Names of hosts, as an output may give in place of an address (RFC 952, RFC 1123 section 2.1).

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Longest name in bytes, and longest part between two dots.
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// A name that the system's resolver may know: letters, digits, `-`, `_` and dots between. Its last part
/// is no number, so that no mistaken address is one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

impl HostName {
    /// Takes a text that is such a name.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_label = |label: &str| {
            (1..=LABEL_MAX).contains(&label.len())
                && label.bytes().all(is_known)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let last = text.rsplit('.').next()?;
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
        let is_name = text.len() <= NAME_MAX && !is_number && text.split('.').all(is_label);
        is_name.then(|| Self(text.to_owned()))
    }

    /// The name as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for HostName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::new(&text).ok_or_else(|| format!("{text:?} is not the name of a host"))
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

/// What an output sends to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// An address.
    Address(IpAddr),
    /// What a name stands for.
    Name {
        /// The name.
        name: HostName,
        /// Whether an IPv4 address of it is meant, and not an IPv6 address.
        ipv4: bool,
    },
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name { name, .. } => write!(f, "{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_mistaken_addresses() {
        for name in [
            "cloud.example",
            "relay-b",
            "a.b.c1",
            "_x.example",
            "1.example",
        ] {
            assert_eq!(HostName::new(name).unwrap().as_str(), name);
        }
        let long = format!("{}.example", "a".repeat(64));
        for other in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "10.0.0.300",
            "239.1.1",
            "300",
            "-a",
            "a-",
            "a b",
            "a/24",
            "ünï.example",
            "a@b",
            &long,
        ] {
            assert_eq!(HostName::new(other), None, "{other:?}");
        }
    }
}
