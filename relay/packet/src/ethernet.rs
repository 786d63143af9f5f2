//! The Ethernet header: destination, source, ethertype.

use crate::bytes::{read, read_u16, write, write_u16};

/// Bytes of an untagged Ethernet header.
pub const HEADER: usize = 14;
/// Ethertype of IPv4.
pub const IPV4: u16 = 0x0800;
/// Ethertype of IPv6.
pub const IPV6: u16 = 0x86dd;
/// Ethertype of a customer VLAN tag (802.1Q).
pub const VLAN: u16 = 0x8100;
/// Ethertype of a service VLAN tag (802.1ad).
pub const VLAN_SERVICE: u16 = 0x88a8;
/// Bytes of a tag.
pub const TAG: usize = 4;
/// The bits of a tag that name its VLAN; 0 for none.
pub const VLAN_ID: u16 = 0xfff;

/// Reads the ethertype of `frame`; `None` if the header is cut off.
#[inline]
pub fn ethertype(frame: &[u8]) -> Option<u16> {
    read_u16(frame, 12)
}

/// Reads the destination address of `frame`.
#[inline]
pub fn destination(frame: &[u8]) -> Option<[u8; 6]> {
    read(frame, 0)
}

/// Writes a header at `offset`; `None`, with nothing written, if it does not fit.
#[inline]
pub fn write_header(
    frame: &mut [u8],
    offset: usize,
    destination: [u8; 6],
    source: [u8; 6],
    ethertype: u16,
) -> Option<()> {
    let header = frame.get_mut(offset..offset.checked_add(HEADER)?)?;
    write(header, 0, destination)?;
    write(header, 6, source)?;
    write_u16(header, 12, ethertype)
}
