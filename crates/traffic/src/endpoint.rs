//! Where streams go and come from, resolved to addresses, ports and an interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

/// One destination of the generator: one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Group or unicast address, and port.
    pub address: SocketAddr,
    /// Interface to leave by; the routing table decides where none is named.
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
    /// Senders to take, for (S,G); empty for any.
    pub sources: Vec<IpAddr>,
}

/// Why an endpoint cannot be used for traffic.
#[derive(Debug, Error)]
#[error("{text}: {reason}")]
pub struct ParseError {
    text: String,
    reason: &'static str,
}

/// Reads `[SOURCE[,SOURCE]@]ADDRESS[%IFACE]:PORT[-PORT]`, or `[ADDRESS%IFACE]:PORT` for IPv6, with
/// `streams` streams from there on.
///
/// # Errors
/// Names the part that cannot be read.
pub fn parse(text: &str, streams: u32) -> Result<Listen, ParseError> {
    let fail = |reason| ParseError {
        text: text.to_owned(),
        reason,
    };
    let (host, ports) = text
        .rsplit_once(':')
        .ok_or_else(|| fail("no port; write ADDRESS%IFACE:PORT"))?;
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let (sources, host) = host.split_once('@').unwrap_or(("", host));
    let (address, interface) = match host.split_once('%') {
        Some((address, interface)) => (address, Some(interface.to_owned())),
        None => (host, None),
    };
    let address: IpAddr = address.parse().map_err(|_| fail("not an IP address"))?;
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let port = |text: &str| text.parse().map_err(|_| fail("not a port from 1 to 65535"));
    let (first, last): (u16, u16) = (port(first)?, port(last)?);
    let addresses = (first..=last)
        .flat_map(|port| {
            (0..streams).map(move |number| step(SocketAddr::new(address, port), number))
        })
        .collect();
    let sources = sources
        .split(',')
        .filter(|source| !source.is_empty())
        .map(|source| source.parse().map_err(|_| fail("not a source address")))
        .collect::<Result<_, _>>()?;
    Ok(Listen {
        at: text.to_owned(),
        addresses,
        interface,
        sources,
    })
}

/// Writes an endpoint as [`parse`] reads it.
#[must_use]
pub fn describe(address: SocketAddr, interface: Option<&str>) -> String {
    let zone = interface.map(|name| format!("%{name}")).unwrap_or_default();
    match address.ip() {
        IpAddr::V4(ip) => format!("{ip}{zone}:{}", address.port()),
        IpAddr::V6(ip) => format!("[{ip}{zone}]:{}", address.port()),
    }
}

/// The `number`-th stream from `base` on: group and port count up together, IPv4 groups passing
/// over the last octets 0 and 255, so that stream 255 from 239.1.1.1:5001 on is 239.1.2.1:5255.
/// For a unicast address only the port counts.
fn step(base: SocketAddr, number: u32) -> SocketAddr {
    let port = base.port().wrapping_add(number as u16);
    let address = match base.ip() {
        address if !address.is_multicast() => address,
        IpAddr::V4(group) => {
            let last = group.to_bits() & 0xff;
            let usable = u32::from((1..=254).contains(&last));
            let from_one = last.wrapping_sub(usable) + number;
            let high = (group.to_bits() >> 8) + usable * (from_one / 254);
            let low = if usable == 1 {
                from_one % 254 + 1
            } else {
                from_one
            };
            IpAddr::V4(Ipv4Addr::from_bits((high << 8) + low))
        }
        IpAddr::V6(group) => IpAddr::V6(Ipv6Addr::from_bits(group.to_bits() + u128::from(number))),
    };
    SocketAddr::new(address, port)
}

/// Raises the limit on open descriptors, as far as the process may, to hold `wanted` and some.
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

    #[test]
    fn streams_count_up_as_in_the_published_runs() {
        let streams = parse("239.1.1.1%veth0:5001", 508).unwrap().addresses;
        let at = |number: usize| streams[number - 1].to_string();
        assert_eq!(at(1), "239.1.1.1:5001");
        assert_eq!(at(254), "239.1.1.254:5254");
        assert_eq!(at(255), "239.1.2.1:5255");
        assert_eq!(at(508), "239.1.2.254:5508");
    }

    #[test]
    fn unicast_streams_differ_in_port_only() {
        let streams = parse("10.0.0.1:7000", 3).unwrap().addresses;
        assert_eq!(streams[2].to_string(), "10.0.0.1:7002");
    }

    #[test]
    fn both_families_are_described_as_they_are_read() {
        for text in [
            "239.1.1.1%eth0:5001",
            "[ff3e::1%eth0]:5001",
            "10.9.9.9:7000",
        ] {
            let parsed = parse(text, 1).unwrap();
            assert_eq!(
                describe(parsed.addresses[0], parsed.interface.as_deref()),
                text
            );
        }
    }
}
