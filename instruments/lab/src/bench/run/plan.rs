//! The addresses of streams: the numbering that the published figures use, with fan-out.
//!
//! Stream N (from 1) arrives as 239.1.X.Y port 5000 + N and leaves as 239.10.X.Y port 6000 + N,
//! where Y runs from 1 to 254; copy K of a fan-out leaves as 239.(10 + K).X.Y. Over IPv6 the groups
//! are ff15::1:X:Y and ff15::(10 + K):X:Y.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Version of the Internet protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Streams that share a relay, and the copies of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Streams, 1 to 59,000 (ports end there).
    pub streams: u16,
    /// Copies of each stream, 1 to 200.
    pub outputs: u16,
    /// Their address family.
    pub family: Family,
}

/// A group and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The group.
    pub group: IpAddr,
    /// The UDP port.
    pub port: u16,
}

impl Address {
    /// Writes it as an endpoint on a link.
    pub fn on(self, link: &str) -> String {
        let Self { group, port } = self;
        match group {
            IpAddr::V4(group) => format!("{group}%{link}:{port}"),
            IpAddr::V6(group) => format!("[{group}%{link}]:{port}"),
        }
    }

    /// The address of the same stream this many relays further on in a row.
    #[must_use]
    pub fn after(self, relays: usize) -> Self {
        let group = match self.group {
            IpAddr::V4(group) => {
                let [first, second, third, fourth] = group.octets();
                Ipv4Addr::new(first, second + relays as u8, third, fourth).into()
            }
            IpAddr::V6(group) => {
                let mut parts = group.segments();
                parts[5] += relays as u16;
                Ipv6Addr::from(parts).into()
            }
        };
        Self { group, ..self }
    }
}

impl Plan {
    /// Numbers the streams, from 1.
    pub fn numbers(self) -> impl Iterator<Item = u16> {
        1..=self.streams
    }

    /// Where a stream arrives.
    pub fn input(self, stream: u16) -> Address {
        self.address(1, stream, 5000)
    }

    /// Where the copies of a stream are sent.
    pub fn outputs(self, stream: u16) -> impl Iterator<Item = Address> {
        let copies = (0..self.outputs).map(|copy| 10 + copy);
        copies.map(move |second| self.address(second, stream, 6000))
    }

    fn address(self, second: u16, stream: u16, port: u16) -> Address {
        let (third, fourth) = (1 + (stream - 1) / 254, 1 + (stream - 1) % 254);
        Address {
            group: match self.family {
                Family::V4 => Ipv4Addr::new(239, second as u8, third as u8, fourth as u8).into(),
                Family::V6 => Ipv6Addr::new(0xff15, 0, 0, 0, 0, second, third, fourth).into(),
            },
            port: port + stream,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_numbered_as_the_published_ones() {
        let plan = Plan {
            streams: 508,
            outputs: 2,
            family: Family::V4,
        };
        let show = |address: Address| format!("{}:{}", address.group, address.port);
        assert_eq!(show(plan.input(1)), "239.1.1.1:5001");
        assert_eq!(show(plan.input(254)), "239.1.1.254:5254");
        assert_eq!(show(plan.input(255)), "239.1.2.1:5255");
        let copies: Vec<_> = plan.outputs(255).map(show).collect();
        assert_eq!(copies, ["239.10.2.1:6255", "239.11.2.1:6255"]);
    }

    #[test]
    fn addresses_are_written_as_endpoints() {
        let plan = |family| Plan {
            streams: 1,
            outputs: 1,
            family,
        };
        let (old, new) = (plan(Family::V4).input(1), plan(Family::V6).input(1));
        assert_eq!(old.on("veth1"), "239.1.1.1%veth1:5001");
        assert_eq!(new.on("veth1"), "[ff15::1:1:1%veth1]:5001");
        assert_eq!(old.after(2).on("a"), "239.3.1.1%a:5001");
        assert_eq!(new.after(2).on("a"), "[ff15::3:1:1%a]:5001");
    }
}
