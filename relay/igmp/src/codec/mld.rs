//! MLD in IPv6 packets: a hop-by-hop header with Router Alert, then ICMPv6.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use packet::checksum;
use packet::ipv6::{HEADER, Header};

use super::{
    Defect, Message, Query, Received, RecordKind, RouterMessage, Version, code, discovery,
    old_report, queried_group, query_body, read_query_tail, report, take, word,
};

/// IANA's number of ICMPv6.
pub(super) const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const QUERY: u8 = 130;
const REPORT_V1: u8 = 131;
const DONE: u8 = 132;
const REPORT_V2: u8 = 143;
const ADVERTISEMENT: u8 = 151;
const SOLICITATION: u8 = 152;
const TERMINATION: u8 = 153;
/// Length of a message of version 1 (RFC 2710), and of the start of a query of any version.
const SHORT: usize = 24;
/// Length of a query of version 2 before its sources (RFC 3810 section 8.1).
const LONG: usize = 28;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_SNOOPERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x6a);
/// The Router Alert option for MLD (RFC 2711).
const ROUTER_ALERT: [u8; 4] = [5, 2, 0, 0];

pub(super) fn read(packet: &[u8]) -> Result<Received, Defect> {
    let header = Header::parse(packet).map_err(|_| Defect::Malformed)?;
    let end = HEADER + usize::from(header.payload_length());
    let mut message = packet.get(HEADER..end).ok_or(Defect::Malformed)?;
    if header.next_header() != HOP_BY_HOP {
        return Err(Defect::Other);
    }
    let has_router_alert = options(&mut message)?;
    let (from, to) = (header.source(), header.destination());
    if sum(from, to, message) != 0xffff {
        return Err(Defect::Checksum);
    }
    if header.hop_limit() != 1 {
        return Err(Defect::Ttl);
    }
    if !has_router_alert {
        return Err(Defect::RouterAlert);
    }
    // RFC 3810 sections 5.1.14 and 5.2.13, RFC 3590.
    if !from.is_unicast_link_local() {
        return Err(Defect::Sender);
    }
    let of = |version, kind| {
        let group = address(&mut message.get(8..).unwrap_or_default());
        old_report(version, kind, group)
    };
    let message = match message.first() {
        Some(&QUERY) => Message::Query(query(message)?),
        Some(&REPORT_V1) => of(Version::V2, RecordKind::IsExclude)?,
        Some(&DONE) => of(Version::V2, RecordKind::ToInclude)?,
        Some(&REPORT_V2) => report(message, address)?,
        Some(&SOLICITATION) => Message::RouterSolicitation,
        _ => return Err(Defect::Other),
    };
    Ok(Received {
        from: from.into(),
        message,
    })
}

/// Skips the hop-by-hop header in front of ICMPv6; returns whether it contains Router Alert.
fn options(rest: &mut &[u8]) -> Result<bool, Defect> {
    let head = take(rest, 2)?;
    if head[0] != ICMPV6 {
        return Err(Defect::Other);
    }
    let mut options = take(rest, 6 + usize::from(head[1]) * 8)?;
    let mut has_router_alert = false;
    while let Some((kind, more)) = options.split_first() {
        options = more;
        // Pad1 alone has no length.
        if *kind == 0 {
            continue;
        }
        let length = take(&mut options, 1)?[0];
        let value = take(&mut options, usize::from(length))?;
        has_router_alert |= *kind == ROUTER_ALERT[0] && value == &ROUTER_ALERT[2..];
    }
    Ok(has_router_alert)
}

fn query(message: &[u8]) -> Result<Query, Defect> {
    let mut fields = message.get(4..SHORT).ok_or(Defect::Malformed)?;
    let delay = word(&mut fields)?;
    take(&mut fields, 2)?;
    let group = queried_group(address(&mut fields)?)?;
    let mut query = Query::of(group, Duration::from_millis(delay.into()));
    match message.len() {
        SHORT => {}
        LONG.. => {
            query.version = Version::V3;
            query.response = Duration::from_millis(code::of_word(delay).into());
            read_query_tail(&message[SHORT..], &mut query, address)?;
        }
        _ => return Err(Defect::Malformed),
    }
    Ok(query)
}

fn address(bytes: &mut &[u8]) -> Result<IpAddr, Defect> {
    let taken = take(bytes, 16)?;
    let octets: [u8; 16] = taken.try_into().map_err(|_| Defect::Malformed)?;
    Ok(Ipv6Addr::from(octets).into())
}

/// Sums ICMPv6 with its pseudo header (RFC 8200 section 8.1).
pub(super) fn sum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let mut pseudo = Vec::with_capacity(40);
    pseudo.extend(from.octets());
    pseudo.extend(to.octets());
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    pseudo.extend(length.to_be_bytes());
    pseudo.extend([0, 0, 0, ICMPV6]);
    let total = u32::from(checksum::sum(&pseudo)) + u32::from(checksum::sum(message));
    checksum::fold(total)
}

pub(super) fn write(from: Ipv6Addr, message: &RouterMessage) -> Option<(IpAddr, Vec<u8>)> {
    let (to, body) = match message {
        RouterMessage::Query(query) => {
            let delay = u32::try_from(query.response.as_millis()).unwrap_or(u32::MAX);
            let [high, low] = code::word(delay).to_be_bytes();
            let head = vec![QUERY, 0, 0, 0, high, low, 0, 0];
            let to = query.group.unwrap_or(ALL_NODES.into());
            (to, query_body(head, query, octets)?)
        }
        other => {
            let body = discovery(other, (ADVERTISEMENT, TERMINATION))?;
            (ALL_SNOOPERS.into(), body)
        }
    };
    let IpAddr::V6(group) = to else {
        return None;
    };
    Some((to, packet(from, group, body)?))
}

fn octets(address: IpAddr) -> Option<[u8; 16]> {
    match address {
        IpAddr::V6(address) => Some(address.octets()),
        IpAddr::V4(_) => None,
    }
}

/// The complete packet with an ICMPv6 message, whose checksum it sets.
pub(super) fn packet(from: Ipv6Addr, to: Ipv6Addr, mut body: Vec<u8>) -> Option<Vec<u8>> {
    let checksum = !sum(from, to, &body);
    body.get_mut(2..4)?.copy_from_slice(&checksum.to_be_bytes());
    let length = u16::try_from(8 + body.len()).ok()?;
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([HOP_BY_HOP, 1]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    // A hop-by-hop header of 8 bytes: Router Alert and two bytes of padding.
    packet.extend([ICMPV6, 0]);
    packet.extend(ROUTER_ALERT);
    packet.extend([1, 0]);
    packet.extend(body);
    Some(packet)
}
