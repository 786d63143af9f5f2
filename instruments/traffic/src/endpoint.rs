//! Destinations and sources of streams: endpoints resolved to single addresses and ports.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rules::endpoint::Endpoint;
use rules::net::{Ports, Prefix};
use thiserror::Error;

/// The most streams one endpoint may cover: each takes a socket.
pub const MOST_STREAMS: u64 = 65_536;

/// One destination of the generator: one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Group or unicast address, and port.
    pub address: SocketAddr,
    /// Egress interface; the routing table decides where none is named.
    pub interface: Option<String>,
}

/// One endpoint of the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The endpoint as the user wrote it.
    pub at: String,
    /// Every address and port it covers.
    pub addresses: Vec<SocketAddr>,
    /// Interface to receive on.
    pub interface: Option<String>,
    /// Accepted senders, for (S,G); empty for any.
    pub sources: Vec<IpAddr>,
}

/// Why an endpoint cannot be used for traffic.
#[derive(Debug, Error)]
pub enum Error {
    /// An interface is matched by a pattern.
    #[error("{0}: name one interface, without * and ?")]
    Wildcard(Endpoint),
    /// A destination with sources.
    #[error("{0}: a destination has no sources; give the source address with --source")]
    Sources(Endpoint),
    /// Sources given for a unicast address of this host.
    #[error("{0}: only of groups a receiver takes some sources alone; leave them out")]
    SourcesOfAddress(Endpoint),
    /// A destination that means every address of an interface.
    #[error("{0}: nothing can be sent to unicast; name an address")]
    EveryAddress(Endpoint),
    /// Several streams that start from a range.
    #[error("{0}: streams count up from one group and port, not from a range")]
    Range(Endpoint),
    /// Too many streams, or past the last port or address.
    #[error(
        "{endpoint}: {streams} streams do not fit behind it: at most {MOST_STREAMS}, up to the last \
         group and port"
    )]
    TooMany {
        /// Where they start.
        endpoint: Endpoint,
        /// How many were asked for.
        streams: u64,
    },
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(interface) = &self.interface else {
            return self.address.fmt(f);
        };
        let port = self.address.port();
        match self.address.ip() {
            IpAddr::V4(address) => write!(f, "{address}%{interface}:{port}"),
            IpAddr::V6(address) => write!(f, "[{address}%{interface}]:{port}"),
        }
    }
}

impl Destination {
    /// Resolves a destination to one stream for each of its groups and ports.
    ///
    /// # Errors
    /// If it has sources or wildcards, or too many streams.
    pub fn resolve(endpoint: &Endpoint) -> Result<Vec<Self>, Error> {
        if !endpoint.sources.is_empty() {
            return Err(Error::Sources(endpoint.clone()));
        }
        if endpoint.is_every_address() {
            return Err(Error::EveryAddress(endpoint.clone()));
        }
        let addresses = addresses(endpoint)?.into_iter();
        Ok(addresses
            .map(|address| Self {
                address,
                interface: endpoint.interface.clone(),
            })
            .collect())
    }
}

impl Listen {
    /// Resolves an endpoint to all its groups and ports.
    ///
    /// # Errors
    /// If it has wildcards, or too many groups and ports.
    pub fn resolve(endpoint: &Endpoint) -> Result<Self, Error> {
        if !endpoint.is_multicast() && !endpoint.sources.is_empty() {
            return Err(Error::SourcesOfAddress(endpoint.clone()));
        }
        Ok(Self {
            at: endpoint.to_string(),
            addresses: addresses(endpoint)?,
            interface: endpoint.interface.clone(),
            sources: endpoint
                .sources
                .iter()
                .map(|source| source.address)
                .collect(),
        })
    }
}

/// Counts `streams` endpoints up from `first`: group and port together, IPv4 groups skip the
/// last octets 0 and 255, so that stream 255 from 239.1.1.1:5001 on is 239.1.2.1:5255. For a
/// unicast address only the port counts. A single stream is `first` itself, even if that is a range.
///
/// # Errors
/// If `first` is a range, or the streams run past the last port.
pub fn count_up(first: &Endpoint, streams: u32) -> Result<Vec<Endpoint>, Error> {
    if streams == 1 {
        return Ok(vec![first.clone()]);
    }
    if !first.is_single() {
        return Err(Error::Range(first.clone()));
    }
    let step = |number| {
        let port = u32::from(first.ports.first).checked_add(number)?;
        Some(Endpoint {
            destination: Prefix::host(address_of(first.destination.address, number)?),
            ports: Ports::single(u16::try_from(port).ok()?),
            ..first.clone()
        })
    };
    let counted: Option<Vec<_>> = (0..streams).map(step).collect();
    counted.ok_or_else(|| Error::TooMany {
        endpoint: first.clone(),
        streams: u64::from(streams),
    })
}

fn address_of(first: IpAddr, number: u32) -> Option<IpAddr> {
    match first {
        address if !address.is_multicast() => Some(address),
        IpAddr::V4(group) => {
            let (high, low) = (group.to_bits() >> 8, group.to_bits() & 0xff);
            // Counting starts at octet 1 wherever the first one is usable at all.
            let usable = (1..=254).contains(&low);
            let offset = (low - u32::from(usable)).checked_add(number)?;
            let (carry, low) = if usable {
                (offset / 254, offset % 254 + 1)
            } else {
                (offset / 256, offset % 256)
            };
            let bits = (u64::from(high) + u64::from(carry)) << 8 | u64::from(low);
            let next = Ipv4Addr::from_bits(u32::try_from(bits).ok()?);
            next.is_multicast().then_some(IpAddr::V4(next))
        }
        IpAddr::V6(group) => {
            let bits = group.to_bits().checked_add(u128::from(number))?;
            Some(IpAddr::V6(Ipv6Addr::from_bits(bits)))
        }
    }
}

/// Every address of the range with every port.
fn addresses(endpoint: &Endpoint) -> Result<Vec<SocketAddr>, Error> {
    if endpoint.has_wildcard() {
        return Err(Error::Wildcard(endpoint.clone()));
    }
    let Prefix { address, length } = endpoint.destination;
    let host_bits = Prefix::host(address).length - length;
    let hosts = 1u64.checked_shl(host_bits.into()).unwrap_or(u64::MAX);
    let streams = hosts.saturating_mul(endpoint.ports.count().into());
    if streams > MOST_STREAMS {
        return Err(Error::TooMany {
            endpoint: endpoint.clone(),
            streams,
        });
    }
    let host = |number: u64| match address {
        IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from_bits(base.to_bits() | number as u32)),
        IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from_bits(base.to_bits() | u128::from(number))),
    };
    let Ports { first, last } = endpoint.ports;
    let ports = |number| (first..=last).map(move |port| SocketAddr::new(host(number), port));
    Ok((0..hosts).flat_map(ports).collect())
}

/// Raises the limit on open descriptors, as far as the process may, to `wanted` and some spare.
pub(crate) fn raise_descriptor_limit(wanted: usize) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let wanted = wanted as u64 + 64;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    if soft < wanted {
        // Opening the sockets reports it if this was not enough.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted))
            .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn streams_count_up_as_in_the_published_runs() {
        let streams = count_up(&endpoint("239.1.1.1%veth0:5001"), 508).unwrap();
        let at = |number: usize| streams[number - 1].to_string();
        assert_eq!(at(1), "239.1.1.1%veth0:5001");
        assert_eq!(at(254), "239.1.1.254%veth0:5254");
        assert_eq!(at(255), "239.1.2.1%veth0:5255");
        assert_eq!(at(508), "239.1.2.254%veth0:5508");
    }

    #[test]
    fn unicast_streams_differ_in_port_only() {
        let streams = count_up(&endpoint("10.0.0.1:7000"), 3).unwrap();
        assert_eq!(streams[2].to_string(), "10.0.0.1:7002");
    }

    #[test]
    fn streams_that_do_not_fit_are_refused() {
        assert!(count_up(&endpoint("239.1.1.1:65535"), 2).is_err());
        assert!(count_up(&endpoint("239.255.255.254:1"), 2).is_err());
        assert!(count_up(&endpoint("239.1.1.0/24:5001"), 2).is_err());
        assert!(Destination::resolve(&endpoint("239.0.0.0/8:5001")).is_err());
        assert!(Destination::resolve(&endpoint("10.0.0.1@239.1.1.1:5001")).is_err());
        assert!(Listen::resolve(&endpoint("239.1.1.1%eth*:5001")).is_err());
    }

    #[test]
    fn a_destination_is_written_as_it_is_read() {
        for text in [
            "239.1.1.1%eth0:5001",
            "[ff3e::1%eth0]:5001",
            "10.0.0.1:7000",
            "[fd00::1]:7000",
        ] {
            let resolved = Destination::resolve(&endpoint(text)).unwrap();
            assert_eq!(resolved[0].to_string(), text);
        }
    }

    #[test]
    fn a_range_is_every_group_with_every_port() {
        let listen = Listen::resolve(&endpoint("239.1.1.4/31%eth0:5001-5003")).unwrap();
        assert_eq!(listen.addresses.len(), 6);
        assert_eq!(listen.addresses[5].to_string(), "239.1.1.5:5003");
        let listen = Listen::resolve(&endpoint("[ff3e::/126%eth0]:5001")).unwrap();
        assert_eq!(listen.addresses[3].to_string(), "[ff3e::3]:5001");
    }
}
