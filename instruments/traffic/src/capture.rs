//! The UDP datagrams of a pcap or pcapng file, with their times.

mod datagram;
mod skipped;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};
use thiserror::Error;

pub use self::skipped::Skipped;

/// Longer than any packet block of a sane capture (the largest snapshot length is 262,144).
const READ_BYTES: usize = 1 << 20;
const SECOND_NS: u64 = 1_000_000_000;
/// The first bytes of a pcapng file, in either byte order.
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// A capture, wholly in memory.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    payloads: Vec<u8>,
    pub(crate) datagrams: Vec<Datagram>,
    /// Destinations in the order of their first datagram; each is a flow.
    pub flows: Vec<SocketAddr>,
    /// Packets left out.
    pub skipped: Skipped,
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
        /// The parser's reason.
        reason: String,
    },
    /// The capture holds nothing to send.
    #[error("{path}: holds no whole UDP datagram{skipped}")]
    Empty {
        /// The file.
        path: PathBuf,
        /// Packets it does hold.
        skipped: Skipped,
    },
}

impl Capture {
    /// Reads a file. One that ends in the middle of a packet counts as far as it goes.
    ///
    /// # Errors
    /// If the file cannot be read or holds no UDP datagram.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let capture = Self::read(opened(path)?).map_err(|reason| Error::Format {
            path: path.to_owned(),
            reason,
        })?;
        if capture.datagrams.is_empty() {
            return Err(Error::Empty {
                path: path.to_owned(),
                skipped: capture.skipped,
            });
        }
        Ok(capture)
    }

    /// Reads a capture; it may hold no datagram at all.
    ///
    /// # Errors
    /// The reason, if it is not a capture or is damaged.
    pub fn read(from: impl Read + Send) -> Result<Self, String> {
        Reader::default().read(from).map(|reader| reader.capture)
    }

    /// Reads the IP packets of a file, whatever they are, each with an Ethernet header.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn frames(path: &Path) -> Result<Vec<Vec<u8>>, Error> {
        let empty = Reader {
            frames: Some(Vec::new()),
            ..Reader::default()
        };
        let reader = empty.read(opened(path)?).map_err(|reason| Error::Format {
            path: path.to_owned(),
            reason,
        })?;
        Ok(reader.frames.unwrap_or_default())
    }

    /// Number of datagrams.
    pub fn datagrams(&self) -> usize {
        self.datagrams.len()
    }

    /// The longest payload, in bytes.
    pub fn largest_payload(&self) -> usize {
        let lengths = self.datagrams.iter().map(|datagram| datagram.payload.len());
        lengths.max().unwrap_or(0)
    }

    /// Time from the first datagram to the last, in nanoseconds.
    pub fn length_ns(&self) -> u64 {
        self.datagrams.last().map_or(0, |last| last.after_ns)
    }

    pub(crate) fn payload(&self, datagram: &Datagram) -> &[u8] {
        &self.payloads[datagram.payload.clone()]
    }
}

fn opened(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::Open {
        path: path.to_owned(),
        source,
    })
}

/// What the blocks read so far define for those that follow.
#[derive(Default)]
struct Reader {
    capture: Capture,
    flows: HashMap<SocketAddr, usize>,
    interfaces: Vec<Interface>,
    start_ns: Option<u64>,
    /// Whole packets with Ethernet headers, where those are requested instead of datagrams.
    frames: Option<Vec<Vec<u8>>>,
}

struct Interface {
    link: Linktype,
    /// Timestamp units per second.
    resolution: u64,
    offset_seconds: i64,
}

/// Returns whether the next block is shorter than its type and its two length fields, which the
/// parser does not check for every type of block. Works in either byte order: read the other way
/// round, the length of such a block exceeds what is ever read at once.
fn is_too_short(block: &[u8]) -> bool {
    let length = block.get(4..8).and_then(|bytes| bytes.first_chunk());
    let least = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes).min(u32::from_be_bytes(*bytes));
    length.is_some_and(|bytes| least(bytes) < 12)
}

impl Reader {
    fn read(mut self, from: impl Read + Send) -> Result<Self, String> {
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
                Err(PcapError::Eof | PcapError::UnexpectedEof) => return Ok(self),
                Err(PcapError::Incomplete(_)) if exhausted => {
                    return Ok(self);
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
                    resolution: resolution(description.if_tsresol),
                    offset_seconds: description.ts_offset(),
                });
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let index = packet.if_id as usize;
                let Some(interface) = self.interfaces.get(index) else {
                    self.capture.skipped.untimed += 1;
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
            PcapBlockOwned::NG(Block::SimplePacket(_)) => self.capture.skipped.untimed += 1,
            PcapBlockOwned::NG(_) => {}
        }
    }

    fn take_packet(&mut self, interface: usize, time_ns: u64, frame: &[u8]) {
        let link = self.interfaces[interface].link;
        if let Some(frames) = &mut self.frames {
            return frames.extend(datagram::framed(link, frame));
        }
        let (destination, payload) = match datagram::parse(link, frame) {
            Ok(parsed) => parsed,
            Err(reason) => return self.capture.skipped.count(reason),
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

/// Timestamp units per second, by `if_tsresol`: a negative power of 10 or, with the upper bit set,
/// of 2, which the parser's own conversion ignores.
fn resolution(tsresol: u8) -> u64 {
    let exponent = u32::from(tsresol & 0x7f);
    let base: u64 = if tsresol & 0x80 == 0 { 10 } else { 2 };
    // Finer units than 64 bits can count do not occur in a time of 64 bits.
    base.checked_pow(exponent).unwrap_or(u64::MAX)
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
