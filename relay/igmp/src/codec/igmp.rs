//! IGMP in IPv4 packets.
//!
//! Router Alert is sent but not required: many hosts omit it, and it protects nobody on the link.
//! TTL 1 is required, so that nothing from another link is accepted.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use packet::checksum;
use packet::ipv4::Header;

use super::{
    Defect, Message, Query, Received, RecordKind, RouterMessage, Version, code, discovery,
    old_report, queried_group, query_body, read_query_tail, report, take,
};

/// IANA's protocol number.
pub(super) const PROTOCOL: u8 = 2;
const QUERY: u8 = 0x11;
const REPORT_V1: u8 = 0x12;
const REPORT_V2: u8 = 0x16;
const LEAVE: u8 = 0x17;
const REPORT_V3: u8 = 0x22;
const ADVERTISEMENT: u8 = 0x30;
const SOLICITATION: u8 = 0x31;
const TERMINATION: u8 = 0x32;
/// Length of a message of an old version, and of the start of a query of any version.
const SHORT: usize = 8;
/// Length of a query of version 3 before its sources (RFC 3376 section 7.1).
const LONG: usize = 12;
const ALL_SYSTEMS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_SNOOPERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 106);
/// The Router Alert option (RFC 2113).
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
/// DSCP CS6, with which routers mark control traffic (RFC 3376 section 4).
const CLASS: u8 = 0xc0;

pub(super) fn read(packet: &[u8]) -> Result<Received, Defect> {
    let header = Header::parse(packet).map_err(|_| Defect::Malformed)?;
    if header.protocol() != PROTOCOL || header.fragment_offset() != 0 || header.more_fragments() {
        return Err(Defect::Other);
    }
    if !header.checksum_is_valid() {
        return Err(Defect::Checksum);
    }
    let end = usize::from(header.total_length());
    let message = packet.get(header.length()..end).ok_or(Defect::Malformed)?;
    if checksum::sum(message) != 0xffff {
        return Err(Defect::Checksum);
    }
    if header.ttl() != 1 {
        return Err(Defect::Ttl);
    }
    let from = header.source();
    if from.is_multicast() || from.is_broadcast() {
        return Err(Defect::Sender);
    }
    let of = |version, kind| {
        let group = address(&mut message.get(4..).unwrap_or_default());
        old_report(version, kind, group)
    };
    let message = match message.first() {
        Some(&QUERY) => Message::Query(query(message)?),
        Some(&REPORT_V1) => of(Version::V1, RecordKind::IsExclude)?,
        Some(&REPORT_V2) => of(Version::V2, RecordKind::IsExclude)?,
        Some(&LEAVE) => of(Version::V2, RecordKind::ToInclude)?,
        Some(&REPORT_V3) => report(message, address)?,
        Some(&SOLICITATION) => Message::RouterSolicitation,
        _ => return Err(Defect::Other),
    };
    Ok(Received {
        from: from.into(),
        message,
    })
}

fn query(message: &[u8]) -> Result<Query, Defect> {
    let tenths = message.get(1).copied().unwrap_or_default();
    let group = address(&mut message.get(4..).unwrap_or_default())?;
    let response = Duration::from_millis(u64::from(tenths) * 100);
    let mut query = Query::of(queried_group(group)?, response);
    match message.len() {
        SHORT if tenths == 0 => {
            query.version = Version::V1;
            query.response = Duration::from_secs(10);
        }
        SHORT => {}
        LONG.. => {
            query.version = Version::V3;
            query.response = Duration::from_millis(u64::from(code::of_byte(tenths)) * 100);
            read_query_tail(&message[SHORT..], &mut query, address)?;
        }
        _ => return Err(Defect::Malformed),
    }
    Ok(query)
}

fn address(bytes: &mut &[u8]) -> Result<IpAddr, Defect> {
    let taken = take(bytes, 4)?;
    Ok(Ipv4Addr::new(taken[0], taken[1], taken[2], taken[3]).into())
}

pub(super) fn write(from: Ipv4Addr, message: &RouterMessage) -> Option<(IpAddr, Vec<u8>)> {
    let (to, body) = match message {
        RouterMessage::Query(query) => {
            let tenths = u32::try_from(query.response.as_millis() / 100).unwrap_or(u32::MAX);
            let head = vec![QUERY, code::byte(tenths), 0, 0];
            let to = query.group.unwrap_or(ALL_SYSTEMS.into());
            (to, query_body(head, query, octets)?)
        }
        other => {
            let body = discovery(other, (ADVERTISEMENT, TERMINATION))?;
            (ALL_SNOOPERS.into(), body)
        }
    };
    let IpAddr::V4(group) = to else {
        return None;
    };
    Some((to, packet(from, group, body)?))
}

fn octets(address: IpAddr) -> Option<[u8; 4]> {
    match address {
        IpAddr::V4(address) => Some(address.octets()),
        IpAddr::V6(_) => None,
    }
}

/// The complete packet with a message, whose checksum it sets.
pub(super) fn packet(from: Ipv4Addr, to: Ipv4Addr, mut body: Vec<u8>) -> Option<Vec<u8>> {
    let sum = !checksum::sum(&body);
    body.get_mut(2..4)?.copy_from_slice(&sum.to_be_bytes());
    let length = u16::try_from(24 + body.len()).ok()?;
    let mut packet = vec![0x46, CLASS];
    packet.extend(length.to_be_bytes());
    // No ID: DF is set, so nobody fragments it (RFC 6864).
    packet.extend([0, 0, 0x40, 0, 1, PROTOCOL, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(ROUTER_ALERT);
    let sum = !checksum::sum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(body);
    Some(packet)
}
