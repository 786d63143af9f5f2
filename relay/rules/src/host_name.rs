//! Host names that an output may have in place of an address (RFC 952, RFC 1123 section 2.1).

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Longest name and longest label, in bytes.
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// A name for the system's resolver: letters, digits, `-` and `_`, with dots between labels. Its last label
/// is not a number, so that a mistyped address is not taken for a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

impl HostName {
    /// Parses a name.
    pub fn new(text: &str) -> Option<Self> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_label = |label: &str| {
            (1..=LABEL_MAX).contains(&label.len())
                && label.bytes().all(is_allowed)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // A dot at the end excludes search domains.
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

/// How an output goes to all addresses of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct All {
    /// The most addresses.
    pub max: u16,
    /// The shortest time that an answer is cached, in seconds.
    pub refresh_s: u16,
    /// Whether the name is that of a service, as in `_rtp._udp.example`, which has ports too.
    pub is_service: bool,
}

/// Default of the most addresses of a name.
pub const MAX_ADDRESSES: u16 = 64;
/// Default of the shortest time that an answer is cached, in seconds.
pub const REFRESH_S: u16 = 5;

/// The destination of an output.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// An address.
    Address(IpAddr),
    /// One address of a name.
    Name {
        /// The name.
        name: HostName,
        /// Whether its IPv4 address is used, rather than its IPv6 address.
        ipv4: bool,
    },
    /// All addresses of a name.
    All {
        /// The name.
        name: HostName,
        /// Whether its IPv4 addresses are used, rather than its IPv6 addresses.
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
    fn names_are_distinguished_from_mistyped_addresses() {
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
