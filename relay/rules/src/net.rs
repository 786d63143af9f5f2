//! Small network types that cannot be swapped by accident: interface index and name, port, prefix.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The loopback interface: wildcards never match it, and its addresses do not indicate a loop.
pub const LOOPBACK: &str = "lo";

/// Its index, in each network namespace.
pub const LOOPBACK_INDEX: Ifindex = Ifindex(1);

/// Kernel index of a network interface, unique within its network namespace; 0 is no interface.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Ifindex(pub u32);

impl fmt::Display for Ifindex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Ethernet address in transmission order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Maps an IPv4 group to its Ethernet address (RFC 1112 section 6.4), an IPv6 group to its
    /// own (RFC 2464 section 7).
    pub fn of_group(group: IpAddr) -> Self {
        match group {
            IpAddr::V4(group) => {
                let [_, b, c, d] = group.octets();
                Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            IpAddr::V6(group) => {
                let octets = group.octets();
                Self([0x33, 0x33, octets[12], octets[13], octets[14], octets[15]])
            }
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// An address with a prefix length; a single address has the full length (32 or 128).
///
/// The host bits are always zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Prefix {
    /// First address of the range.
    pub address: IpAddr,
    /// Leading bits that are fixed, 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub length: u8,
}

impl Prefix {
    /// Makes the prefix that holds exactly one address.
    pub const fn host(address: IpAddr) -> Self {
        let length = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        Self { address, length }
    }

    /// Makes the range of that length which holds `address`: clears the host bits. A length
    /// beyond the family's counts as the full one.
    pub fn new(address: IpAddr, length: u8) -> Self {
        let length = length.min(Self::host(address).length);
        let address = match address {
            IpAddr::V4(address) => {
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask32(length)))
            }
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask128(length)))
            }
        };
        Self { address, length }
    }

    /// Parses `ADDRESS` or `ADDRESS/LENGTH`; host bits may be set.
    pub fn parse(text: &str) -> Option<Self> {
        let Some((address, length)) = text.split_once('/') else {
            return text.parse().ok().map(Self::host);
        };
        let (address, length): (IpAddr, u8) = (address.parse().ok()?, length.parse().ok()?);
        (length <= Self::host(address).length).then(|| Self::new(address, length))
    }

    /// Counts the bits that are free, 0 for a single address.
    pub const fn host_bits(self) -> u8 {
        Self::host(self.address).length - self.length
    }

    /// The last address of the range.
    pub fn last(self) -> IpAddr {
        match self.address {
            IpAddr::V4(base) => {
                IpAddr::V4(Ipv4Addr::from_bits(base.to_bits() | !mask32(self.length)))
            }
            IpAddr::V6(base) => {
                IpAddr::V6(Ipv6Addr::from_bits(base.to_bits() | !mask128(self.length)))
            }
        }
    }

    /// Returns whether some address lies in both ranges.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }

    /// Returns whether the prefix holds exactly one address.
    pub const fn is_host(self) -> bool {
        self.length == Self::host(self.address).length
    }

    /// Returns whether `address` is of the same family and lies in the range.
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(base), IpAddr::V4(other)) => {
                (base.to_bits() ^ other.to_bits()) & mask32(self.length) == 0
            }
            (IpAddr::V6(base), IpAddr::V6(other)) => {
                (base.to_bits() ^ other.to_bits()) & mask128(self.length) == 0
            }
            _ => false,
        }
    }

    /// The address at an offset from the first.
    pub fn nth(self, number: u16) -> IpAddr {
        match self.address {
            IpAddr::V4(base) => {
                Ipv4Addr::from_bits(base.to_bits().wrapping_add(number.into())).into()
            }
            IpAddr::V6(base) => {
                Ipv6Addr::from_bits(base.to_bits().wrapping_add(number.into())).into()
            }
        }
    }

    /// The offset of an address from the first, modulo 65536.
    pub fn number_of(self, address: IpAddr) -> u16 {
        low_bits(address).wrapping_sub(low_bits(self.address)) as u16
    }

    /// Replaces the fixed bits of `address` by this prefix's and keeps its host bits; an address
    /// of the other family becomes the first address of the range.
    pub fn carry(self, address: IpAddr) -> IpAddr {
        match (self.address, address) {
            (IpAddr::V4(base), IpAddr::V4(other)) => {
                let mask = mask32(self.length);
                IpAddr::V4(Ipv4Addr::from_bits(
                    base.to_bits() | (other.to_bits() & !mask),
                ))
            }
            (IpAddr::V6(base), IpAddr::V6(other)) => {
                let mask = mask128(self.length);
                IpAddr::V6(Ipv6Addr::from_bits(
                    base.to_bits() | (other.to_bits() & !mask),
                ))
            }
            (base, _) => base,
        }
    }
}

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        Self::host(address)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_host() {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.length)
        }
    }
}

/// The last 32 bits of an address.
pub fn low_bits(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    }
}

fn mask32(length: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(length.min(32)))
        .unwrap_or(0)
}

fn mask128(length: u8) -> u128 {
    u128::MAX
        .checked_shl(128 - u32::from(length.min(128)))
        .unwrap_or(0)
}

/// Inclusive range of UDP ports; a single port has `first == last`. Port 0 never occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ports {
    /// Lowest port.
    pub first: u16,
    /// Highest port, at least `first`.
    pub last: u16,
}

impl Ports {
    /// All ports that packets are sent from and to.
    pub const ALL: Self = Self {
        first: 0,
        last: u16::MAX,
    };

    /// Makes the range that holds exactly one port.
    pub const fn single(port: u16) -> Self {
        Self {
            first: port,
            last: port,
        }
    }

    /// Returns whether the range holds exactly one port.
    pub const fn is_single(self) -> bool {
        self.first == self.last
    }

    /// Returns whether `port` lies in the range.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Counts the ports, at least 1.
    pub const fn count(self) -> u32 {
        self.last as u32 - self.first as u32 + 1
    }

    /// Returns whether some port lies in both ranges.
    pub const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str, length: u8) -> Prefix {
        Prefix::new(text.parse().unwrap(), length)
    }

    #[test]
    fn maps_groups_to_ethernet_addresses() {
        let mac = |group: &str| Mac::of_group(group.parse().unwrap()).to_string();
        assert_eq!(mac("239.129.2.3"), "01:00:5e:01:02:03");
        assert_eq!(mac("224.1.2.3"), "01:00:5e:01:02:03");
        assert_eq!(mac("ff3e::1:2345:6789"), "33:33:23:45:67:89");
    }

    #[test]
    fn keeps_the_host_bits_of_what_it_carries() {
        let range = prefix("239.9.0.0", 16);
        assert_eq!(
            range.carry([239, 1, 2, 3].into()),
            IpAddr::from([239, 9, 2, 3])
        );
        let single = prefix("239.9.0.1", 32);
        assert_eq!(
            single.carry([239, 1, 2, 3].into()),
            IpAddr::from([239, 9, 0, 1])
        );
        assert_eq!(range.carry("ff3e::1".parse().unwrap()), range.address);
    }

    #[test]
    fn numbers_its_addresses() {
        for range in [prefix("239.1.16.0", 20), prefix("ff3e::1000", 116)] {
            for number in [0, 1, 255, 4095] {
                assert!(range.contains(range.nth(number)));
                assert_eq!(range.number_of(range.nth(number)), number);
            }
            assert_eq!(range.nth(4095), range.last());
        }
    }

    #[test]
    fn has_a_first_and_last_address_and_a_size() {
        let range = prefix("239.1.1.77", 24);
        assert_eq!(range.to_string(), "239.1.1.0/24");
        assert_eq!(range.last(), IpAddr::from([239, 1, 1, 255]));
        assert_eq!(range.host_bits(), 8);
        assert_eq!(
            prefix("0.0.0.0", 0).last(),
            IpAddr::from([255, 255, 255, 255])
        );
        assert!(prefix("::", 0).contains("ff3e::1".parse().unwrap()));
        assert!(!prefix("0.0.0.0", 0).overlaps(prefix("::", 0)));
    }

    proptest! {
        #[test]
        fn overlaps_when_some_address_lies_in_both(
            a: u32, b: u32, a_length in 0_u8..=32, b_length in 0_u8..=32,
        ) {
            let make = |bits, length| Prefix::new(Ipv4Addr::from_bits(bits).into(), length);
            let (a, b) = (make(a, a_length), make(b, b_length));
            let intersects = a.address <= b.last() && b.address <= a.last();
            prop_assert_eq!(a.overlaps(b), intersects);
            prop_assert!(a.contains(a.address) && a.contains(a.last()));
        }
    }
}
