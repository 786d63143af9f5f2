//! Packets: any bytes are parsed, checked, rewritten, fragmented and executed by the reference. A copy
//! is the packet with only the requested changes, every checksum as right or wrong as before.

use std::net::IpAddr;

use packet::checksum;
use packet::craft::{Craft, CraftChecksum};
use packet::datagram::{Datagram, Part};
use packet::fragment::{pieces, write_piece_header};
use packet::limit::Limit;
use packet::parse::{ChecksumState, Gso, Link, Meta, Parsed, parse};
use packet::reference::{Bucket, Egress, LinkTo, Local, Output, Reference, Route};
use packet::rewrite::{LINK_HEADROOM, LinkChange, Rewrite, TtlChange, rewrite};
use packet::verdict::{DropReason, Verdict};

use crate::bytes::Bytes;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Reads choices from the first bytes and takes the rest for a frame.
///
/// # Panics
/// If a copy is wrong.
pub fn packet(data: &[u8]) {
    let mut choices = Bytes::new(data);
    let (link, meta) = surroundings(&mut choices);
    let change = Choice::read(&mut choices);
    let frame = choices.rest();
    let parsed = parse(frame, link, meta);
    let datagram = match parsed {
        Parsed::Udp(datagram) => Some(datagram),
        Parsed::Fragment(fragment) => fragment.datagram,
        Parsed::NotOurs(_) => None,
    };
    if let Some(datagram) = datagram {
        is_within(&datagram, frame);
        copy_is_right(&datagram, frame, &change);
        pieces_are_whole(&datagram, frame, usize::from(change.mtu));
        is_written_as_read(&datagram, frame, link);
    }
    execute(frame, (link, meta), &change);
}

fn surroundings(choices: &mut Bytes<'_>) -> (Link, Meta) {
    let flags = choices.byte();
    let gso = choices.word();
    let link = if flags & 1 == 0 {
        Link::Ethernet
    } else {
        Link::None
    };
    let meta = Meta {
        vlan: flags & 0b1100 == 0b1100,
        other_host: flags & 0b110_0000 == 0b110_0000,
        gso: (flags & 2 != 0).then_some(Gso { size: gso }),
        checksum: if flags & 16 == 0 {
            ChecksumState::Complete
        } else {
            ChecksumState::Partial
        },
    };
    (link, meta)
}

/// The changes of a copy.
struct Choice {
    source: Option<[u8; 16]>,
    destination: [u8; 16],
    source_port: Option<u16>,
    destination_port: u16,
    ttl: TtlChange,
    dscp: Option<u8>,
    bare: bool,
    mtu: u16,
}

impl Choice {
    fn read(choices: &mut Bytes<'_>) -> Self {
        let flags = choices.byte();
        let short: [u8; 4] = choices.take();
        let address = |fill: u8| {
            let mut address = [fill; 16];
            address[..4].copy_from_slice(&short);
            address
        };
        let ports: [u16; 2] = [choices.word(), choices.word()];
        let ttl = choices.byte();
        Self {
            source: (flags & 1 != 0).then(|| address(7)),
            destination: address(0xff),
            source_port: (flags & 2 != 0).then_some(ports[0]),
            destination_port: ports[1],
            ttl: match flags & 0b1100 {
                0 => TtlChange::Keep,
                4 => TtlChange::Decrement,
                _ => TtlChange::Set(ttl),
            },
            dscp: (flags & 16 != 0).then_some(ttl & 63),
            bare: flags & 32 != 0,
            mtu: choices.word(),
        }
    }

    fn rewrite(&self, ipv4: bool) -> Rewrite {
        let address = |bytes: [u8; 16]| match bytes {
            [a, b, c, d, ..] if ipv4 => IpAddr::from([a, b, c, d]),
            bytes => IpAddr::from(bytes),
        };
        Rewrite {
            source: self.source.map(address),
            destination: address(self.destination),
            source_port: self.source_port,
            destination_port: self.destination_port,
            ttl: self.ttl,
            dscp: self.dscp,
            link: if self.bare {
                LinkChange::None
            } else {
                LinkChange::Ethernet {
                    source: MAC,
                    destination: MAC,
                }
            },
        }
    }
}

/// A worker relies on offsets that lie within the frame, whatever its headers claim.
fn is_within(datagram: &Datagram, frame: &[u8]) {
    assert_eq!(datagram.present, frame.len());
    assert!(datagram.ip_offset <= datagram.udp_offset);
    assert!(datagram.payload_offset() <= frame.len());
    assert!(datagram.end() <= frame.len());
    assert!(datagram.packets() >= 1);
    let moved = datagram.moved(LINK_HEADROOM);
    assert_eq!(moved.payload_bytes(), datagram.payload_bytes());
    assert_eq!(moved.largest_packet(), datagram.largest_packet());
    if datagram.defect(frame).is_none() {
        assert!(datagram.payload_offset() + datagram.payload_bytes() <= datagram.end());
    }
}

fn copy_is_right(datagram: &Datagram, frame: &[u8], choice: &Choice) {
    let change = choice.rewrite(datagram.source.is_ipv4());
    let mut copy = vec![0; LINK_HEADROOM];
    copy.extend(&frame[datagram.ip_offset..]);
    let moved = datagram.moved(LINK_HEADROOM);
    let expired = change.ttl == TtlChange::Decrement && datagram.ttl <= 1;
    let start = match rewrite(&mut copy, &moved, &change) {
        Ok(start) => start,
        Err(reason) => return assert!(expired && reason == DropReason::TtlExpired),
    };
    assert!(!expired);
    let payload = moved.payload_offset();
    assert_eq!(copy[payload..], frame[datagram.payload_offset()..]);
    if datagram.defect(frame).is_some() {
        return;
    }
    let link = if choice.bare {
        Link::None
    } else {
        Link::Ethernet
    };
    let meta = Meta {
        gso: datagram.gso,
        checksum: datagram.checksum,
        ..Meta::default()
    };
    let read = match parse(&copy[start..], link, meta) {
        Parsed::Udp(read) => read,
        Parsed::Fragment(fragment) => fragment.datagram.expect("its first piece has its ports"),
        // A new destination may be no group.
        Parsed::NotOurs(_) => return assert!(!change.destination.is_multicast()),
    };
    assert_eq!(read.defect(&copy[start..]), None);
    assert_eq!(read.destination, change.destination);
    assert_eq!(read.source, change.source.unwrap_or(datagram.source));
    assert_eq!(read.traffic_class & 3, datagram.traffic_class & 3);
    assert_eq!(read.dont_fragment, datagram.dont_fragment);
    assert_eq!(read.part, datagram.part);
    if datagram.part != Part::Later {
        let port = change.source_port.unwrap_or(datagram.source_port);
        assert_eq!(read.source_port, port);
        assert_eq!(read.destination_port, change.destination_port);
        assert_eq!(read.udp_checksum == 0, datagram.udp_checksum == 0);
    }
    if datagram.part == Part::Whole {
        let was_valid = checksum_holds(datagram, frame);
        assert_eq!(checksum_holds(&read, &copy[start..]), was_valid);
    }
}

/// Whether the UDP checksum, finished where it is partial, is right.
fn checksum_holds(datagram: &Datagram, frame: &[u8]) -> bool {
    let end = datagram.udp_offset + usize::from(datagram.udp_length);
    let mut udp = frame[datagram.udp_offset..end].to_vec();
    if datagram.checksum == ChecksumState::Partial && datagram.udp_checksum != 0 {
        let whole = datagram.udp_checksum
            == checksum::pseudo_header(datagram.source, datagram.destination, datagram.udp_length);
        let finished = checksum::finish_partial(&mut udp, 0, 6);
        assert!(finished.is_some());
        let valid = checksum::udp_is_valid(datagram.source, datagram.destination, &udp);
        assert!(valid || !whole);
        return valid;
    }
    checksum::udp_is_valid(datagram.source, datagram.destination, &udp)
}

/// The pieces of a datagram are its bytes, once each, behind valid headers.
fn pieces_are_whole(datagram: &Datagram, frame: &[u8], mtu: usize) {
    // Fragments are not fragmented again.
    let may_be_cut = datagram.part == Part::Whole && datagram.source.is_ipv4() && mtu >= 68;
    if !may_be_cut || datagram.defect(frame).is_some() {
        return;
    }
    let header = &frame[datagram.ip_offset..datagram.udp_offset];
    let payload = &frame[datagram.udp_offset..datagram.end()];
    let mut together: Vec<u8> = Vec::new();
    for piece in pieces(header.len(), payload.len(), mtu) {
        let mut bytes = header.to_vec();
        assert_eq!(write_piece_header(&mut bytes, piece), Some(()));
        bytes.extend(&payload[piece.offset..piece.offset + piece.length]);
        assert!(bytes.len() <= mtu && checksum::ipv4_header_is_valid(&bytes[..header.len()]));
        match parse(&bytes, Link::None, Meta::default()) {
            Parsed::Fragment(read) => {
                assert_eq!(
                    (usize::from(read.offset), read.more),
                    (piece.offset, piece.more)
                );
            }
            Parsed::Udp(_) => assert_eq!((piece.offset, piece.more), (0, false)),
            Parsed::NotOurs(why) => panic!("{why:?}"),
        }
        together.extend(&bytes[header.len()..]);
    }
    assert_eq!(together, payload);
}

/// A plain datagram crafted from the parsed fields has the bytes that were parsed.
fn is_written_as_read(datagram: &Datagram, frame: &[u8], link: Link) {
    let headers = datagram.udp_offset - datagram.ip_offset;
    let plain = datagram.part == Part::Whole
        && datagram.defect(frame).is_none()
        && datagram.checksum == ChecksumState::Complete
        && headers + usize::from(datagram.udp_length) == datagram.ip_length;
    if !plain || !datagram.source.is_ipv4() || !checksum_holds(datagram, frame) {
        return;
    }
    let ip = &frame[datagram.ip_offset..];
    let mut craft = Craft::new(
        (datagram.source, datagram.source_port).into(),
        (datagram.destination, datagram.destination_port).into(),
        ip[datagram.payload_offset() - datagram.ip_offset..datagram.ip_length].to_vec(),
    );
    craft.link = link;
    if link == Link::Ethernet {
        craft.macs.0.copy_from_slice(&frame[..6]);
        craft.macs.1.copy_from_slice(&frame[6..12]);
    }
    craft.ttl = datagram.ttl;
    craft.traffic_class = datagram.traffic_class;
    craft.id = u16::from_be_bytes([ip[4], ip[5]]);
    craft.fragment = u16::from_be_bytes([ip[6], ip[7]]);
    craft.options = ip[20..headers].to_vec();
    craft.checksum = match datagram.udp_checksum {
        0 => CraftChecksum::Zero,
        _ => CraftChecksum::Complete,
    };
    let mut written = craft.frame();
    let ip_at = datagram.ip_offset;
    // A priority tag stands before the type.
    if link == Link::Ethernet {
        written.splice(12..12, frame[12..ip_at - 2].iter().copied());
    }
    // Zero has two forms in a one's complement sum.
    if written[ip_at + 10..ip_at + 12] != ip[10..12] {
        assert!(matches!(ip[10..12], [0, 0] | [0xff, 0xff]));
        written[ip_at + 10..ip_at + 12].copy_from_slice(&ip[10..12]);
    }
    assert_eq!(written, frame[..datagram.end()]);
}

/// Executes the frame twice against a table that matches much: every packet is accounted for.
fn execute(frame: &[u8], (link, meta): (Link, Meta), choice: &Choice) {
    let mut reference = Reference {
        routes: [true, false].map(|ipv4| route(choice, ipv4)).into(),
        ..Reference::default()
    };
    for now_ns in [1_000_000_000, 1_000_100_000] {
        let outcome = reference.execute((1, link), frame, meta, |_| false, now_ns);
        match outcome.verdict {
            Verdict::Passed => assert!(outcome.passed_up && outcome.copies.is_empty()),
            Verdict::Dropped(_) => assert!(outcome.packets >= 1 && outcome.outputs.is_empty()),
            Verdict::Forwarded => {
                assert_eq!(outcome.outputs.len(), 2);
                let is_sent = |verdict: &&Verdict| **verdict == Verdict::Forwarded;
                let sent = outcome.outputs.iter().filter(is_sent).count();
                assert_eq!(sent, outcome.copies.len());
            }
        }
    }
}

fn route(choice: &Choice, ipv4: bool) -> Route {
    let rewrite = choice.rewrite(ipv4);
    let (group, length) = if ipv4 {
        (IpAddr::from([224, 0, 0, 0]), 4)
    } else {
        (IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8)
    };
    let egress = Egress {
        interface: 2,
        mtu: choice.mtu.into(),
        destination: (group, length),
        ports: (1, u16::MAX),
        source: rewrite.source,
        source_port: rewrite.source_port,
        ttl: rewrite.ttl,
        dscp: rewrite.dscp,
        link: LinkTo::Group { source: MAC },
        limit: Some(Bucket {
            limit: Limit::new(choice.destination_port.into(), 70_000),
            bits: choice.bare,
            due_ns: 0,
        }),
    };
    Route {
        rule: "rule".to_owned(),
        ingress: 1,
        groups: (group, length),
        ports: (1, u16::MAX),
        source: None,
        local: Local::Auto,
        stands_by: false,
        is_shut: false,
        limit: None,
        outputs: vec![Output::Up(egress), Output::Down(DropReason::NoRoute)],
    }
}
