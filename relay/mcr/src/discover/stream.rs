//! Received packets, counted by stream in bounded memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use packet::content::Guess;
use packet::datagram::{Datagram, Part};
use packet::parse::{Link, Meta, NotOurs, Parsed, parse};
use packet::{ethernet, ipv4, ipv6, udp};
use rules::net::Prefix;
use rules::ruleset::is_link_local;
use sys::sniffer::Sniffed;

/// Streams that are counted individually; packets of further ones are only summed up.
pub(crate) const LIMIT: usize = 4096;

/// The IP protocol of PGM (RFC 3208).
const PGM: u8 = 113;

/// What identifies a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Index of the interface in the listener's list.
    pub(crate) interface: usize,
    pub(crate) vlan: Option<u16>,
    pub(crate) group: IpAddr,
    pub(crate) port: u16,
    pub(crate) source: IpAddr,
    /// Whether a local program sends it: it leaves by the interface.
    pub(crate) sent: bool,
}

/// What was received of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stream {
    /// Datagrams; of a fragmented one only the first fragment counts.
    pub(crate) packets: u64,
    /// Bytes of UDP payload.
    pub(crate) bytes: u64,
    /// TTL or hop limit of the last packet.
    pub(crate) ttl: u8,
    pub(crate) guess: Guess,
}

/// Everything that was received.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) known: BTreeMap<Key, Stream>,
    /// Packets of streams beyond [`LIMIT`].
    pub(crate) not_listed: u64,
    /// Groups that PGM packets arrived for, with the interface.
    pub(crate) pgm: BTreeSet<(usize, IpAddr)>,
    /// The addresses of this host: outgoing packets of other sources are forwarded.
    pub(crate) own: BTreeSet<IpAddr>,
}

impl Streams {
    /// Counts a packet; ignores what is not multicast UDP.
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
        let is_own = self.own.contains(&datagram.source);
        // Link-local packets are the host's own protocols. A tagged packet has already left by the
        // interface of its VLAN.
        let is_ignored = about.vlan.is_some() || is_link_local(Prefix::host(datagram.destination));
        if sent && (!is_own || is_ignored) {
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
        // The first datagram of a super-packet stands for all.
        let length = about.segment.map_or(bytes, |size| bytes.min(size.into()));
        let payload = frame
            .get(datagram.payload_offset()..datagram.end())
            .unwrap_or_default();
        let captured = payload.len().min(length).min(Guess::BYTES);
        stream.guess.look(&payload[..captured], length);
    }

    fn note_pgm(&mut self, interface: usize, link: Link, frame: &[u8]) {
        if self.pgm.len() < LIMIT {
            self.pgm
                .extend(pgm_group(link, frame).map(|group| (interface, group)));
        }
    }
}

/// The group of a PGM packet, which is an IP protocol as UDP is.
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

/// The length according to the header, as only the beginning of the payload was captured.
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
    fn streams_differ_by_source_group_port_and_vlan() {
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
    fn outgoing_packets_count_only_if_this_host_sends_them() {
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
        let listed: Vec<_> = streams
            .known
            .keys()
            .map(|key| (key.source, key.sent))
            .collect();
        assert_eq!(listed, [("10.0.0.5".parse().unwrap(), true)]);
    }

    #[test]
    fn streams_beyond_the_limit_are_counted_and_not_listed() {
        let mut streams = Streams::default();
        for port in 1..=LIMIT as u16 + 10 {
            let frame = frame("10.0.0.5:4000", &format!("239.1.1.1:{port}"), 10);
            streams.note(0, Link::Ethernet, &frame, Sniffed::default());
        }
        assert_eq!((streams.known.len(), streams.not_listed), (LIMIT, 10));
    }
}
