//! Which streams go where: the numbering that the published figures use, with fan-out.
//!
//! Stream N (from 1) comes in as 239.1.X.Y port 5000 + N and leaves as 239.10.X.Y port 6000 + N,
//! where Y runs from 1 to 254; copy K of a fan-out leaves as 239.(10 + K).X.Y.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// Streams that share a relay, and the copies of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Streams, 1 to 59,000 (ports end there).
    pub streams: u16,
    /// Copies of each stream, 1 to 200.
    pub outputs: u16,
}

/// A group and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The group.
    pub group: Ipv4Addr,
    /// The UDP port.
    pub port: u16,
}

impl Plan {
    /// Numbers the streams, from 1.
    pub fn numbers(self) -> impl Iterator<Item = u16> {
        1..=self.streams
    }

    /// Where a stream comes in.
    #[must_use]
    pub fn input(self, stream: u16) -> Address {
        address(1, stream, 5000)
    }

    /// Where the copies of a stream go.
    pub fn outputs(self, stream: u16) -> impl Iterator<Item = Address> {
        let copies = (0..self.outputs).map(|copy| 10 + copy as u8);
        copies.map(move |second| address(second, stream, 6000))
    }
}

fn address(second: u8, stream: u16, port: u16) -> Address {
    let (third, fourth) = (1 + (stream - 1) / 254, 1 + (stream - 1) % 254);
    Address {
        group: Ipv4Addr::new(239, second, third as u8, fourth as u8),
        port: port + stream,
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
        };
        let show = |address: Address| format!("{}:{}", address.group, address.port);
        assert_eq!(show(plan.input(1)), "239.1.1.1:5001");
        assert_eq!(show(plan.input(254)), "239.1.1.254:5254");
        assert_eq!(show(plan.input(255)), "239.1.2.1:5255");
        let copies: Vec<_> = plan.outputs(255).map(show).collect();
        assert_eq!(copies, ["239.10.2.1:6255", "239.11.2.1:6255"]);
    }
}
