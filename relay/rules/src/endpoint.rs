//! The source or destination of a stream and its notation, `[SOURCE@]GROUP%IFACE:PORT`. A host's address
//! may replace the group, and in an input so may `unicast`, every address of the interface.
//!
//! Parsing and printing round-trip exactly. Whether an endpoint is valid as an input or as an output is
//! decided by [`crate::ruleset`], not here.

mod error;
mod parse;

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use error::shown;
pub use error::{EndpointError, EndpointProblem};

use crate::duration;
use crate::named::by_text;
use crate::net::{Ports, Prefix};

/// Longest interface name in bytes (the kernel's `IFNAMSIZ` less its terminator).
pub const INTERFACE_NAME_MAX: usize = 15;

/// How every address of an interface is written.
pub(crate) const UNICAST: &str = "unicast";

/// Groups (or a unicast address), ports, an interface and, for (S,G), the sources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    /// Senders listened to, in the order written; empty for any sender. Those of a group are single
    /// addresses, because each is joined.
    pub sources: Vec<Prefix>,
    /// One group, a range of groups, or a unicast address; the unspecified address stands for every
    /// address of the interface, as for sockets.
    pub destination: Prefix,
    /// Interface name; an input's may hold the wildcards `*` and `?`.
    pub interface: Option<String>,
    /// One UDP port or a range.
    pub ports: Ports,
    /// Of an input: the interval in seconds at which its groups are reported again, as in `,rejoin=60s`.
    pub rejoin: Option<NonZeroU16>,
}

/// Precedes the interval at which an input's groups are reported again.
pub const REJOIN: &str = ",rejoin=";
/// The longest such interval, in seconds.
const REJOIN_MAX: u64 = 3600;

impl Endpoint {
    /// Parses an input: an endpoint and its options.
    ///
    /// # Errors
    ///
    /// What is wrong with either.
    pub fn input(text: &str) -> Result<Self, EndpointError> {
        let (endpoint, time) = match text.split_once(REJOIN) {
            Some((endpoint, time)) => (endpoint, Some(time)),
            None => (text, None),
        };
        let error = |problem| EndpointError {
            text: text.to_owned(),
            problem,
        };
        let mut input: Self = endpoint.parse()?;
        let Some(time) = time else {
            return Ok(input);
        };
        if !input.is_multicast() {
            return Err(error(EndpointProblem::RejoinUnicast));
        }
        input.rejoin = duration::parse(time)
            .filter(|time| time.subsec_nanos() == 0 && time.as_secs() <= REJOIN_MAX)
            .and_then(|time| NonZeroU16::new(time.as_secs() as u16));
        match input.rejoin {
            Some(_) => Ok(input),
            None => Err(error(EndpointProblem::Rejoin(time.to_owned()))),
        }
    }

    /// An input with its options, as it is parsed.
    pub fn written(&self) -> String {
        let time = self
            .rejoin
            .map(|seconds| Duration::from_secs(seconds.get().into()))
            .map(|time| format!("{REJOIN}{}", duration::text(time)));
        format!("{self}{}", time.unwrap_or_default())
    }

    /// Returns whether every address of the destination is a multicast group.
    pub const fn is_multicast(&self) -> bool {
        let shortest = match self.destination.address {
            IpAddr::V4(_) => 4,
            IpAddr::V6(_) => 8,
        };
        self.destination.address.is_multicast() && self.destination.length >= shortest
    }

    /// Returns whether the destination is every host of a network, whatever its addresses are.
    pub const fn is_broadcast(&self) -> bool {
        matches!(self.destination.address, IpAddr::V4(to) if to.is_broadcast())
    }

    /// Returns whether the destination is every address that the interface has.
    pub const fn is_every_address(&self) -> bool {
        self.destination.is_host() && self.destination.address.is_unspecified()
    }

    /// The destination as written.
    pub fn destination_text(&self) -> String {
        if self.is_every_address() {
            UNICAST.to_owned()
        } else {
            self.destination.to_string()
        }
    }

    /// Returns whether packets of that sender are listened to.
    pub fn listens_to(&self, sender: IpAddr) -> bool {
        self.sources.is_empty() || self.sources.iter().any(|source| source.contains(sender))
    }

    /// Returns whether the destination is an IPv4 address or range.
    pub const fn is_ipv4(&self) -> bool {
        self.destination.address.is_ipv4()
    }

    /// Returns whether the interface holds a wildcard and may stand for several.
    pub fn has_wildcard(&self) -> bool {
        self.interface.as_deref().is_some_and(is_wildcard)
    }

    /// Returns whether the endpoint stands for one group and one port on one interface.
    pub fn is_one_stream(&self) -> bool {
        self.is_single() && !self.has_wildcard()
    }

    /// Returns whether the endpoint stands for one group and one port.
    pub const fn is_single(&self) -> bool {
        self.destination.is_host() && self.ports.is_single()
    }
}

/// Returns whether an interface name holds a wildcard.
pub fn is_wildcard(interface: &str) -> bool {
    interface.contains(['*', '?'])
}

/// Returns whether an interface, or a wildcard for some, may have that name.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_interface_name(name: &str) -> Result<(), EndpointProblem> {
    parse::interface(name).map(drop)
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        parse::endpoint(text).map_err(|problem| EndpointError {
            text: text.to_owned(),
            problem,
        })
    }
}

by_text!(Endpoint, EndpointError);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.is_ipv4() { ("", "") } else { ("[", "]") };
        f.write_str(open)?;
        for (position, source) in self.sources.iter().enumerate() {
            let separator = if position == 0 { "" } else { "," };
            write!(f, "{separator}{source}")?;
        }
        if !self.sources.is_empty() {
            f.write_str("@")?;
        }
        f.write_str(&self.destination_text())?;
        if let Some(interface) = &self.interface {
            write!(f, "%{interface}")?;
        }
        write!(f, "{close}:{}", self.ports)
    }
}

#[cfg(test)]
mod tests;
