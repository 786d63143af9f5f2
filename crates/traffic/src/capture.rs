//! The UDP datagrams of a pcap or pcapng file, with their times.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use packet::{ipv4, ipv6, udp};
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};
use thiserror::Error;

/// Longer than any packet block of a sane capture (the largest snapshot length is 262,144).
const READ_BYTES: usize = 1 << 20;
const SECOND_NS: u64 = 1_000_000_000;
/// What a pcapng file begins with, in either byte order.
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// A capture, wholly in memory.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    payloads: Vec<u8>,
    pub(crate) datagrams: Vec<Datagram>,
    /// Destinations in the order of their first datagram; each is a flow.
    pub flows: Vec<SocketAddr>,
    /// Packets left out: not UDP over IP, fragments, or cut short by the capture.
    pub skipped: u64,
}

/// One datagram of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    /// Time since the first datagram; never falls.
    pub(crate) after_ns: u64,
    /// Index of its flow.
    pub(crate) flow: usize,
    payload: Range<usize>,
}

/// Why a capture cannot be used.
#[derive(Debug, Error)]
pub enum Error {
    /// The file cannot be opened.
    #[error("{path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The file is not a capture, or is damaged.
    #[error("{path}: not a readable pcap or pcapng file: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What the parser found.
        reason: String,
    },
    /// The capture holds nothing to send.
    #[error("{path}: no whole UDP datagram among its {packets} packets")]
    Empty {
        /// The file.
        path: PathBuf,
        /// Packets it does hold.
        packets: u64,
    },
}

impl Capture {
    /// Reads a file. One that ends in the middle of a packet counts as far as it goes.
    ///
    /// # Errors
    /// If the file cannot be read or holds no UDP datagram.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|source| Error::Open {
            path: path.to_owned(),
            source,
        })?;
        let capture = Self::read(file).map_err(|reason| Error::Format {
            path: path.to_owned(),
            reason,
        })?;
        if capture.datagrams.is_empty() {
            return Err(Error::Empty {
                path: path.to_owned(),
                packets: capture.skipped,
            });
        }
        Ok(capture)
    }

    /// Reads a capture; it may hold no datagram at all.
    ///
    /// # Errors
    /// What is wrong with it, if it is not a capture or damaged.
    pub fn read(from: impl Read + Send) -> Result<Self, String> {
        Reader::default().read(from)
    }

    /// Number of datagrams.
    #[must_use]
    pub fn datagrams(&self) -> usize {
        self.datagrams.len()
    }

    /// The longest payload, in bytes.
    #[must_use]
    pub fn largest_payload(&self) -> usize {
        let lengths = self.datagrams.iter().map(|datagram| datagram.payload.len());
        lengths.max().unwrap_or(0)
    }

    /// Time from the first datagram to the last, in nanoseconds.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.datagrams.last().map_or(0, |last| last.after_ns)
    }

    pub(crate) fn payload(&self, datagram: &Datagram) -> &[u8] {
        &self.payloads[datagram.payload.clone()]
    }
}

/// What the blocks read so far say about those that follow.
#[derive(Default)]
struct Reader {
    capture: Capture,
    flows: HashMap<SocketAddr, usize>,
    interfaces: Vec<Interface>,
    start_ns: Option<u64>,
}

struct Interface {
    link: Linktype,
    /// Timestamp units per second.
    resolution: u64,
    offset_seconds: i64,
}

/// Says whether the next block is shorter than the type and the two lengths around it, which the
/// parser does not look at for every type of block. In either byte order: who reads the length of
/// such a block the other way round gets more than is ever read at once.
fn is_too_short(block: &[u8]) -> bool {
    let length = block.get(4..8).and_then(|bytes| bytes.first_chunk());
    let least = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes).min(u32::from_be_bytes(*bytes));
    length.is_some_and(|bytes| least(bytes) < 12)
}

impl Reader {
    fn read(mut self, from: impl Read + Send) -> Result<Capture, String> {
        let mut reader = create_reader(READ_BYTES, from).map_err(describe)?;
        let has_blocks = reader.data().starts_with(&SECTION_HEADER);
        loop {
            let exhausted = reader.reader_exhausted();
            if has_blocks && is_too_short(reader.data()) {
                return Err("a block that is shorter than its own frame".to_owned());
            }
            match reader.next() {
                Ok((offset, block)) => {
                    self.take_block(&block);
                    reader.consume(offset);
                }
                Err(PcapError::Eof | PcapError::UnexpectedEof) => return Ok(self.capture),
                Err(PcapError::Incomplete(_)) if exhausted => {
                    return Ok(self.capture);
                }
                Err(PcapError::Incomplete(_)) => reader.refill().map_err(describe)?,
                Err(error) => return Err(describe(error)),
            }
        }
    }

    fn take_block(&mut self, block: &PcapBlockOwned<'_>) {
        match block {
            PcapBlockOwned::LegacyHeader(header) => self.interfaces.push(Interface {
                link: header.network,
                resolution: if header.is_nanosecond_precision() {
                    SECOND_NS
                } else {
                    1_000_000
                },
                offset_seconds: 0,
            }),
            PcapBlockOwned::Legacy(packet) => {
                let Some(interface) = self.interfaces.first() else {
                    return;
                };
                let fraction = u64::from(packet.ts_usec) * (SECOND_NS / interface.resolution);
                let time = u64::from(packet.ts_sec) * SECOND_NS + fraction;
                let length = packet.data.len().min(packet.caplen as usize);
                self.take_packet(0, time, &packet.data[..length]);
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => self.interfaces.clear(),
            PcapBlockOwned::NG(Block::InterfaceDescription(description)) => {
                self.interfaces.push(Interface {
                    link: description.linktype,
                    resolution: description.ts_resolution().unwrap_or(1_000_000).max(1),
                    offset_seconds: description.ts_offset(),
                });
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let index = packet.if_id as usize;
                let Some(interface) = self.interfaces.get(index) else {
                    self.capture.skipped += 1;
                    return;
                };
                let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                let time =
                    u128::from(units) * u128::from(SECOND_NS) / u128::from(interface.resolution);
                let offset = interface.offset_seconds.saturating_mul(SECOND_NS as i64);
                let time = (time as u64).saturating_add_signed(offset);
                let length = packet.data.len().min(packet.caplen as usize);
                self.take_packet(index, time, &packet.data[..length]);
            }
            // Simple packets carry no time.
            PcapBlockOwned::NG(Block::SimplePacket(_)) => self.capture.skipped += 1,
            PcapBlockOwned::NG(_) => {}
        }
    }

    fn take_packet(&mut self, interface: usize, time_ns: u64, frame: &[u8]) {
        let link = self.interfaces[interface].link;
        let Some((destination, payload)) = ip_packet(link, frame).and_then(udp_payload) else {
            self.capture.skipped += 1;
            return;
        };
        let capture = &mut self.capture;
        let start = *self.start_ns.get_or_insert(time_ns);
        // Captures of several interfaces are not always in order; time never runs backwards here.
        let after_ns = time_ns.saturating_sub(start).max(capture.length_ns());
        let next = capture.flows.len();
        let flow = *self.flows.entry(destination).or_insert(next);
        if flow == next {
            capture.flows.push(destination);
        }
        let begin = capture.payloads.len();
        capture.payloads.extend(payload);
        capture.datagrams.push(Datagram {
            after_ns,
            flow,
            payload: begin..begin + payload.len(),
        });
    }
}

fn describe<I: std::fmt::Debug>(error: PcapError<I>) -> String {
    match error {
        PcapError::HeaderNotRecognized | PcapError::Eof | PcapError::Incomplete(_) => {
            "it does not begin like one".to_owned()
        }
        PcapError::BufferTooSmall => format!("a block is longer than {READ_BYTES} bytes"),
        PcapError::ReadError => "reading failed".to_owned(),
        _ => "a block is damaged".to_owned(),
    }
}

/// Finds the IP packet behind the link-layer header (and VLAN tags) of a captured frame.
fn ip_packet(link: Linktype, frame: &[u8]) -> Option<&[u8]> {
    let (mut protocol, mut rest) = match link {
        Linktype::ETHERNET => (frame.get(12..14)?, frame.get(14..)?),
        Linktype::LINUX_SLL => (frame.get(14..16)?, frame.get(16..)?),
        Linktype::LINUX_SLL2 => (frame.get(..2)?, frame.get(20..)?),
        Linktype::NULL | Linktype::LOOP => return frame.get(4..),
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => return Some(frame),
        _ => return None,
    };
    while matches!(protocol, [0x81, 0x00] | [0x88, 0xa8]) {
        (protocol, rest) = (rest.get(2..4)?, rest.get(4..)?);
    }
    matches!(protocol, [0x08, 0x00] | [0x86, 0xdd]).then_some(rest)
}

/// Finds destination and payload of an unfragmented UDP datagram that is wholly there.
fn udp_payload(packet: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (destination, offset) = match packet.first()? >> 4 {
        4 => {
            let header = ipv4::Header::parse(packet).ok()?;
            let whole = !header.more_fragments() && header.fragment_offset() == 0;
            let ours = whole && header.protocol() == udp::PROTOCOL;
            (
                ours.then(|| IpAddr::V4(header.destination()))?,
                header.length(),
            )
        }
        6 => {
            let header = ipv6::Header::parse(packet).ok()?;
            let upper = ipv6::upper(packet, header.next_header()).ok()?;
            let whole = upper.fragment.is_none();
            (
                whole.then(|| IpAddr::V6(header.destination()))?,
                upper.offset,
            )
        }
        _ => return None,
    };
    let header = udp::Header::parse(packet, offset)?;
    let end = offset + usize::from(header.length);
    let payload = packet.get(offset + udp::HEADER..end)?;
    Some((
        SocketAddr::new(destination, header.destination_port),
        payload,
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use packet::craft::Craft;

    use super::*;

    /// A classic capture with microseconds, little-endian, Ethernet.
    fn pcap(packets: &[(u64, Vec<u8>)]) -> tempfile::NamedTempFile {
        let mut bytes = Vec::new();
        let word = |bytes: &mut Vec<u8>, word: u32| bytes.extend(word.to_le_bytes());
        word(&mut bytes, 0xa1b2_c3d4);
        bytes.extend([2, 0, 4, 0]);
        for value in [0, 0, 65535, 1] {
            word(&mut bytes, value);
        }
        for (micros, frame) in packets {
            word(&mut bytes, (micros / 1_000_000) as u32);
            word(&mut bytes, (micros % 1_000_000) as u32);
            word(&mut bytes, frame.len() as u32);
            word(&mut bytes, frame.len() as u32);
            bytes.extend(frame);
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        file
    }

    fn frame(destination: &str, payload: &[u8]) -> Vec<u8> {
        let source = "10.0.0.1:4000".parse().unwrap();
        Craft::new(source, destination.parse().unwrap(), payload.to_vec()).frame()
    }

    /// A process information block, of which the parser believes any length.
    #[test]
    fn a_block_shorter_than_its_own_frame_is_damage() {
        let mut bytes = vec![0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a];
        bytes.extend([1, 0, 0, 0]);
        bytes.extend([0xff; 8]);
        bytes.extend([28, 0, 0, 0]);
        assert!(Capture::read(&*bytes).is_ok());
        bytes.extend([1, 0, 0, 0x80, 4, 0, 0, 0, 1, 0, 0, 0]);
        let error = Capture::read(&*bytes).unwrap_err();
        assert!(error.contains("shorter"), "{error}");
    }

    #[test]
    fn datagrams_come_with_their_times_and_flows() {
        let mut tagged = frame("239.1.1.2:5002", b"tagged");
        tagged.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
        let file = pcap(&[
            (1_700_000_000_000_100, frame("239.1.1.1:5001", b"one")),
            (1_700_000_000_000_350, tagged),
            (1_700_000_001_000_100, frame("239.1.1.1:5001", b"")),
            (1_700_000_001_000_200, vec![0; 60]),
        ]);
        let capture = Capture::open(file.path()).unwrap();
        let seen: Vec<_> = capture
            .datagrams
            .iter()
            .map(|d| (d.after_ns, d.flow, capture.payload(d)))
            .collect();
        assert_eq!(
            seen,
            [
                (0, 0, &b"one"[..]),
                (250_000, 1, &b"tagged"[..]),
                (1_000_000_000, 0, &b""[..])
            ]
        );
        assert_eq!((capture.skipped, capture.flows.len()), (1, 2));
    }

    #[test]
    fn a_capture_cut_in_a_packet_counts_as_far_as_it_goes() {
        let file = pcap(&[
            (1, frame("239.1.1.1:5001", b"one")),
            (2, frame("239.1.1.1:5001", b"two")),
        ]);
        let length = file.as_file().metadata().unwrap().len();
        file.as_file().set_len(length - 5).unwrap();
        assert_eq!(Capture::open(file.path()).unwrap().datagrams(), 1);
    }

    #[test]
    fn what_is_no_capture_is_refused_by_name() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"certainly not a capture file").unwrap();
        let error = Capture::open(file.path()).unwrap_err().to_string();
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        assert!(matches!(
            Capture::open(pcap(&[]).path()),
            Err(Error::Empty { .. })
        ));
    }
}
