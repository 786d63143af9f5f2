//! What was received, stream by stream, in bounded memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use packet::content::{Content, Guess};
use packet::datagram::{Datagram, Part};
use packet::parse::{Link, Meta, NotOurs, Parsed, parse};
use packet::{ethernet, ipv4, ipv6, udp};
use rules::net::Prefix;
use rules::ruleset::is_link_local;
use sys::sniffer::Sniffed;

/// Streams that are told apart; the packets of further ones are only counted.
pub(crate) const LIMIT: usize = 4096;

/// The IP protocol of PGM (RFC 3208).
const PGM: u8 = 113;

/// Which stream: all that tells one from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Position of the interface among those that are listened on.
    pub(crate) interface: usize,
    pub(crate) vlan: Option<u16>,
    pub(crate) group: IpAddr,
    pub(crate) port: u16,
    pub(crate) source: IpAddr,
    /// A program of this host sends it: it leaves by the interface.
    pub(crate) sent: bool,
}

/// What came of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stream {
    /// Datagrams; of one in fragments the first counts for all.
    pub(crate) packets: u64,
    /// UDP payload.
    pub(crate) bytes: u64,
    /// TTL or hop limit of the last packet.
    pub(crate) ttl: u8,
    guess: Guess,
}

impl Stream {
    pub(crate) const fn content(&self) -> Content {
        self.guess.content()
    }
}

/// Everything that was received.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) known: BTreeMap<Key, Stream>,
    /// Packets of streams that there was no room for.
    pub(crate) not_listed: u64,
    /// Groups that PGM comes to, with the interface.
    pub(crate) pgm: BTreeSet<(usize, IpAddr)>,
    /// The addresses of this host: what leaves from others is forwarded.
    pub(crate) own: BTreeSet<IpAddr>,
}

impl Streams {
    /// Takes in a packet; what is not multicast UDP is nobody's.
    pub(crate) fn note(&mut self, interface: usize, link: Link, frame: &[u8], about: Sniffed) {
        let datagram = match parse(frame, link, Meta::default()) {
            Parsed::Udp(datagram) => datagram,
            Parsed::Fragment(fragment) => match fragment.datagram {
                Some(datagram) if datagram.part == Part::First => datagram,
                _ => return,
            },
            Parsed::NotOurs(NotOurs::Protocol) if !about.outgoing => {
                return self.note_pgm(interface, link, frame);
            }
            Parsed::NotOurs(_) => return,
        };
        if !datagram.destination.is_multicast() {
            return;
        }
        let sent = about.outgoing;
        // What the host says on its links, it says for itself.
        let is_sender = self.own.contains(&datagram.source);
        // What is tagged leaves by its VLAN's own interface first.
        let is_known = about.vlan.is_some() || is_link_local(Prefix::host(datagram.destination));
        if sent && (!is_sender || is_known) {
            return;
        }
        let key = Key {
            interface,
            vlan: about.vlan,
            group: datagram.destination,
            port: datagram.destination_port,
            source: datagram.source,
            sent,
        };
        if self.known.len() >= LIMIT && !self.known.contains_key(&key) {
            self.not_listed += packets(&datagram, about.segment);
            return;
        }
        let stream = self.known.entry(key).or_default();
        let bytes = payload_bytes(&datagram);
        stream.packets += packets(&datagram, about.segment);
        stream.bytes += bytes as u64;
        stream.ttl = datagram.ttl;
        // Of a super-packet the first datagram stands for all.
        let length = about.segment.map_or(bytes, |size| bytes.min(size.into()));
        let payload = frame.get(datagram.payload_offset()..datagram.end());
        let payload = payload.unwrap_or_default();
        let seen = payload.len().min(length).min(Guess::BYTES);
        stream.guess.look(&payload[..seen], length);
    }

    fn note_pgm(&mut self, interface: usize, link: Link, frame: &[u8]) {
        if self.pgm.len() < LIMIT {
            self.pgm
                .extend(pgm_group(link, frame).map(|group| (interface, group)));
        }
    }
}

/// The group of a packet of PGM, whose protocol is as UDP is.
fn pgm_group(link: Link, frame: &[u8]) -> Option<IpAddr> {
    let at = match link {
        Link::Ethernet => ethernet::HEADER,
        Link::None => 0,
    };
    let packet = frame.get(at..)?;
    let (protocol, group): (u8, IpAddr) = match packet.first()? >> 4 {
        4 => {
            let header = ipv4::Header::parse(packet).ok()?;
            (header.protocol(), header.destination().into())
        }
        _ => {
            let header = ipv6::Header::parse(packet).ok()?;
            (header.next_header(), header.destination().into())
        }
    };
    (protocol == PGM && group.is_multicast()).then_some(group)
}

/// As the header claims: of the payload itself little was captured.
fn payload_bytes(datagram: &Datagram) -> usize {
    usize::from(datagram.udp_length).saturating_sub(udp::HEADER)
}

fn packets(datagram: &Datagram, segment: Option<u16>) -> u64 {
    let size = segment.filter(|size| *size > 0);
    let segments = size.map_or(1, |size| payload_bytes(datagram).div_ceil(size.into()));
    segments.max(1) as u64
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use packet::craft::Craft;

    use super::*;

    fn frame(source: &str, destination: &str, bytes: usize) -> Vec<u8> {
        let source: SocketAddr = source.parse().unwrap();
        Craft::new(source, destination.parse().unwrap(), vec![7; bytes]).frame()
    }

    #[test]
    fn streams_are_told_apart_by_source_group_port_and_vlan() {
        let mut streams = Streams::default();
        let mut note = |frame: &[u8], vlan: Option<u16>, segment: Option<u16>| {
            let about = Sniffed {
                vlan,
                segment,
                ..Sniffed::default()
            };
            streams.note(0, Link::Ethernet, frame, about);
        };
        let one = frame("10.0.0.5:4000", "239.1.1.1:5001", 100);
        note(&one, None, None);
        note(&one[..60], None, None);
        note(&one, Some(7), None);
        note(&one, None, Some(30));
        note(&frame("10.0.0.5:4000", "239.1.1.1:5002", 10), None, None);
        note(&frame("10.0.0.6:4000", "239.1.1.1:5001", 10), None, None);
        note(&frame("[fd00::5]:4000", "[ff0e::1]:5001", 10), None, None);
        note(&frame("10.0.0.5:4000", "10.0.0.9:5001", 10), None, None);
        assert_eq!(streams.known.len(), 5);
        let key = |vlan| Key {
            interface: 0,
            vlan,
            group: "239.1.1.1".parse().unwrap(),
            port: 5001,
            source: "10.0.0.5".parse().unwrap(),
            sent: false,
        };
        let counted = |vlan| {
            (
                streams.known[&key(vlan)].packets,
                streams.known[&key(vlan)].bytes,
            )
        };
        assert_eq!(counted(None), (1 + 1 + 4, 300));
        assert_eq!(counted(Some(7)), (1, 100));
    }

    #[test]
    fn of_what_leaves_only_what_this_host_sends_is_a_stream() {
        let mut streams = Streams {
            own: ["10.0.0.5".parse().unwrap()].into(),
            ..Streams::default()
        };
        let about = Sniffed {
            outgoing: true,
            ..Sniffed::default()
        };
        for (source, group) in [
            ("10.0.0.5:4000", "239.1.1.1:5001"),
            ("10.0.0.6:4000", "239.1.1.1:5001"),
            ("10.0.0.5:4000", "224.0.0.251:5353"),
        ] {
            streams.note(0, Link::Ethernet, &frame(source, group, 10), about);
        }
        let known: Vec<_> = streams
            .known
            .keys()
            .map(|key| (key.source, key.sent))
            .collect();
        assert_eq!(known, [("10.0.0.5".parse().unwrap(), true)]);
    }

    #[test]
    fn streams_beyond_the_limit_are_counted_and_not_kept() {
        let mut streams = Streams::default();
        for port in 1..=LIMIT as u16 + 10 {
            let frame = frame("10.0.0.5:4000", &format!("239.1.1.1:{port}"), 10);
            streams.note(0, Link::Ethernet, &frame, Sniffed::default());
        }
        assert_eq!((streams.known.len(), streams.not_listed), (LIMIT, 10));
    }
}
