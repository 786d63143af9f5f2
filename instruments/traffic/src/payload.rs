//! The generator's own payload: enough to detect loss, order, duplication, corruption and latency.
//!
//! ```text
//! byte  0  magic "MCRt"          4  version, 1      5  reserved, 0     6  run, u16
//!       8  stream, u32          12  sequence, u64  20  intended send time, u64 ns of CLOCK_REALTIME
//!      28  CRC-32 of the bytes behind the header, then of bytes 0 to 27
//! ```
//! All big-endian. The smallest payload is only the header, [`HEADER_BYTES`]. CLOCK_REALTIME is
//! the clock of the kernel's receive timestamps and the same in every namespace of a host.

use crc32fast::Hasher;

/// Size of the header, and of the smallest payload that can carry it.
pub const HEADER_BYTES: usize = 32;

const MAGIC: [u8; 4] = *b"MCRt";
const VERSION: u8 = 1;

/// Identity and send time of one datagram, as its header carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the generator's run, so that a restart is not taken for reordering.
    pub run: u16,
    /// Number of the stream within the run, from 0.
    pub stream: u32,
    /// Number of the datagram within the stream, from 0.
    pub sequence: u64,
    /// When the datagram was meant to leave, in nanoseconds of CLOCK_REALTIME.
    pub intended_ns: u64,
}

/// What a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The generator's, whole.
    Good(Stamp),
    /// The generator's, but some byte changed on the way; the stamp may be wrong.
    Corrupt(Stamp),
    /// Another sender's.
    Foreign,
}

/// Checksum of the bytes behind the header, the part of it that is the same for every datagram
/// of one size.
pub fn body_checksum(body: &[u8]) -> u32 {
    crc32fast::hash(body)
}

/// Checksums of the first n bytes of `body`, for n from 0 to its length.
pub fn prefix_checksums(body: &[u8]) -> Vec<u32> {
    let mut checksums = Vec::with_capacity(body.len() + 1);
    checksums.push(0);
    for byte in body {
        let before = checksums.last().copied().unwrap_or(0);
        let mut hasher = Hasher::new_with_initial(before);
        hasher.update(std::slice::from_ref(byte));
        checksums.push(hasher.finalize());
    }
    checksums
}

/// Writes the header over the first [`HEADER_BYTES`] bytes of `payload`; `body_checksum` is that
/// of the bytes behind them.
///
/// # Panics
/// If `payload` is shorter than the header.
pub fn write(payload: &mut [u8], stamp: &Stamp, body_checksum: u32) {
    let header = &mut payload[..HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4] = VERSION;
    header[5] = 0;
    header[6..8].copy_from_slice(&stamp.run.to_be_bytes());
    header[8..12].copy_from_slice(&stamp.stream.to_be_bytes());
    header[12..20].copy_from_slice(&stamp.sequence.to_be_bytes());
    header[20..28].copy_from_slice(&stamp.intended_ns.to_be_bytes());
    let mut hasher = Hasher::new_with_initial(body_checksum);
    hasher.update(&header[..28]);
    header[28..].copy_from_slice(&hasher.finalize().to_be_bytes());
}

/// Reads a payload and checks every byte of it.
pub fn read(payload: &[u8]) -> Payload {
    let Some((header, body)) = payload.split_first_chunk::<HEADER_BYTES>() else {
        return Payload::Foreign;
    };
    if header[..4] != MAGIC || header[4] != VERSION {
        return Payload::Foreign;
    }
    let stamp = Stamp {
        run: u16::from_be_bytes(array(header, 6)),
        stream: u32::from_be_bytes(array(header, 8)),
        sequence: u64::from_be_bytes(array(header, 12)),
        intended_ns: u64::from_be_bytes(array(header, 20)),
    };
    let mut hasher = Hasher::new();
    hasher.update(body);
    hasher.update(&header[..28]);
    if hasher.finalize() == u32::from_be_bytes(array(header, 28)) {
        Payload::Good(stamp)
    } else {
        Payload::Corrupt(stamp)
    }
}

fn array<const N: usize>(header: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(stamp: &Stamp, size: usize) -> Vec<u8> {
        let mut payload: Vec<u8> = (0..size).map(|i| i as u8).collect();
        let checksum = body_checksum(&payload[HEADER_BYTES..]);
        write(&mut payload, stamp, checksum);
        payload
    }

    proptest! {
        #[test]
        fn reads_back_what_was_written(run: u16, stream: u32, sequence: u64, intended_ns: u64,
                                       size in HEADER_BYTES..2000) {
            let stamp = Stamp { run, stream, sequence, intended_ns };
            prop_assert_eq!(read(&written(&stamp, size)), Payload::Good(stamp));
        }

        #[test]
        fn any_flipped_bit_after_the_version_is_corruption(sequence: u64, bit in 40usize..1000) {
            let stamp = Stamp { run: 1, stream: 2, sequence, intended_ns: 3 };
            let mut payload = written(&stamp, 125);
            payload[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(matches!(read(&payload), Payload::Corrupt(_)));
        }

        #[test]
        fn never_panics_on_foreign_bytes(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn prefix_checksums_are_those_of_the_prefixes() {
        let body: Vec<u8> = (0..300).map(|i| i as u8).collect();
        let checksums = prefix_checksums(&body);
        assert_eq!(checksums.len(), 301);
        assert!((0..=300).all(|n| checksums[n] == body_checksum(&body[..n])));
    }

    #[test]
    fn a_truncated_payload_is_corrupt() {
        let stamp = Stamp {
            run: 1,
            stream: 2,
            sequence: 3,
            intended_ns: 4,
        };
        assert!(matches!(
            read(&written(&stamp, 100)[..99]),
            Payload::Corrupt(_)
        ));
        assert_eq!(read(&written(&stamp, 100)[..31]), Payload::Foreign);
    }
}
