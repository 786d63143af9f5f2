//! Ranges of addresses: a first address and a prefix length.

use std::net::IpAddr;

/// Whether it has one address.
pub(super) fn is_one(range: (IpAddr, u8)) -> bool {
    range.1 == if range.0.is_ipv4() { 32 } else { 128 }
}

/// How far behind the first of a range an address is.
pub(super) fn number(range: (IpAddr, u8), address: IpAddr) -> u16 {
    let from = |first: u128, it: u128| (it.wrapping_sub(first)) as u16;
    match (range.0, address) {
        (IpAddr::V4(first), IpAddr::V4(it)) => from(first.to_bits().into(), it.to_bits().into()),
        (IpAddr::V6(first), IpAddr::V6(it)) => from(first.to_bits(), it.to_bits()),
        _ => 0,
    }
}

/// The address so far behind the first.
pub(super) fn nth(first: IpAddr, number: u16) -> IpAddr {
    match first {
        IpAddr::V4(first) => IpAddr::V4((first.to_bits() + u32::from(number)).into()),
        IpAddr::V6(first) => IpAddr::V6((first.to_bits() + u128::from(number)).into()),
    }
}

/// The first address of the range of `groups`' length that `address` lies in; `None` if the
/// families differ.
pub(super) fn network(groups: (IpAddr, u8), address: IpAddr) -> Option<IpAddr> {
    let base = match groups.0 {
        IpAddr::V4(_) => IpAddr::V4(0.into()),
        IpAddr::V6(_) => IpAddr::V6(0.into()),
    };
    let host = carry((base, groups.1), address);
    match (address, host) {
        (IpAddr::V4(address), IpAddr::V4(host)) if groups.0.is_ipv4() => {
            Some(IpAddr::V4((address.to_bits() ^ host.to_bits()).into()))
        }
        (IpAddr::V6(address), IpAddr::V6(host)) if groups.0.is_ipv6() => {
            Some(IpAddr::V6((address.to_bits() ^ host.to_bits()).into()))
        }
        _ => None,
    }
}

/// The fixed bits of `range`, the host bits of `address`.
pub(super) fn carry(range: (IpAddr, u8), address: IpAddr) -> IpAddr {
    match (range.0, address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => {
            let host = u32::MAX.checked_shr(u32::from(range.1)).unwrap_or(0);
            IpAddr::V4((base.to_bits() | address.to_bits() & host).into())
        }
        (IpAddr::V6(base), IpAddr::V6(address)) => {
            let host = u128::MAX.checked_shr(u32::from(range.1)).unwrap_or(0);
            IpAddr::V6((base.to_bits() | address.to_bits() & host).into())
        }
        (base, _) => base,
    }
}
