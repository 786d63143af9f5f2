//! Writes the messages that hosts send.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Record, RecordKind, Report, Version, igmp, mld};

/// Writes a report or, in an old version, a leave. Returns its destination and the packet. An old version
/// carries the first record only. `None` if addresses differ in family, or a count or length is too large.
#[must_use]
pub fn report(from: IpAddr, report: &Report) -> Option<(IpAddr, Vec<u8>)> {
    let first = report.records.first();
    let is_leave = first.is_some_and(|record| record.kind == RecordKind::ToInclude);
    let kind = match (report.version, from.is_ipv4(), is_leave) {
        (Version::V3, true, _) => 0x22,
        (Version::V3, false, _) => 143,
        (Version::V1, true, _) => 0x12,
        (_, true, false) => 0x16,
        (_, true, true) => 0x17,
        (_, false, false) => 131,
        (_, false, true) => 132,
    };
    let mut body = vec![kind, 0, 0, 0];
    let group = first.map(|record| record.group);
    let destination = |all: IpAddr| if is_leave { Some(all) } else { group };
    let to = match (report.version, from) {
        (Version::V3, _) => {
            body.extend([0, 0]);
            body.extend(u16::try_from(report.records.len()).ok()?.to_be_bytes());
            for record in &report.records {
                put_record(&mut body, record)?;
            }
            match from {
                IpAddr::V4(_) => Ipv4Addr::new(224, 0, 0, 22).into(),
                IpAddr::V6(_) => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16).into(),
            }
        }
        (_, IpAddr::V4(_)) => {
            put_address(&mut body, group?);
            destination(Ipv4Addr::new(224, 0, 0, 2).into())?
        }
        (_, IpAddr::V6(_)) => {
            body.extend([0; 4]);
            put_address(&mut body, group?);
            destination(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2).into())?
        }
    };
    let packet = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => igmp::packet(from, to, body)?,
        (IpAddr::V6(from), IpAddr::V6(to)) => mld::packet(from, to, body)?,
        _ => return None,
    };
    Some((to, packet))
}

fn put_record(body: &mut Vec<u8>, record: &Record) -> Option<()> {
    let kind = match record.kind {
        RecordKind::IsInclude => 1,
        RecordKind::IsExclude => 2,
        RecordKind::ToInclude => 3,
        RecordKind::ToExclude => 4,
        RecordKind::Allow => 5,
        RecordKind::Block => 6,
    };
    body.extend([kind, 0]);
    body.extend(u16::try_from(record.sources.len()).ok()?.to_be_bytes());
    put_address(body, record.group);
    for source in &record.sources {
        put_address(body, *source);
    }
    Some(())
}

fn put_address(body: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => body.extend(address.octets()),
        IpAddr::V6(address) => body.extend(address.octets()),
    }
}
