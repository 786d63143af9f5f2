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
    pub fn new(text: &str) -> Option<Self> {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_label = |label: &str| {
            (1..=LABEL_MAX).contains(&label.len())
                && label.bytes().all(is_known)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // Behind a dot at the end nothing is searched.
        let labels = text.strip_suffix('.').unwrap_or(text);
        let last = labels.rsplit('.').next()?;
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
        let is_name = labels.len() <= NAME_MAX && !is_number && labels.split('.').all(is_label);
        is_name.then(|| Self(text.to_owned()))
    }

    /// The name as it was written.
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

/// That an output goes to all addresses of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct All {
    /// To so many at most.
    pub max: u16,
    /// How long an answer is believed at least, in seconds.
    pub refresh_s: u16,
    /// Whether the name is that of a service, as in `_rtp._udp.example`, which has ports too.
    pub is_service: bool,
}

/// The most addresses of a name, unless the output says otherwise.
pub const MAX_ADDRESSES: u16 = 64;
/// How long an answer is believed at least, unless the output says otherwise, in seconds.
pub const REFRESH_S: u16 = 5;

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
    /// All that a name stands for.
    All {
        /// The name.
        name: HostName,
        /// Whether IPv4 addresses are asked for, or IPv6 ones.
        ipv4: bool,
        /// How many, and how often.
        all: All,
    },
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name { name, .. } | Self::All { name, .. } => write!(f, "{name}"),
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
            "cloud.example.",
        ] {
            assert_eq!(HostName::new(name).unwrap().as_str(), name);
        }
        let long = format!("{}.example", "a".repeat(64));
        for other in [
            "",
            ".",
            "a..",
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
