//! One's-complement checksums: whole sums (RFC 1071), incremental updates (RFC 1624), pseudo
//! headers, and the zero rules of UDP (RFC 768, RFC 8200 section 8.1).

use std::net::IpAddr;

/// UDP's protocol number, part of the pseudo header.
const PROTOCOL_UDP: u32 = 17;

/// Adds up `bytes` as big-endian 16-bit words, an odd last byte padded with zero, folded to 16 bit
/// and not complemented.
pub fn sum(bytes: &[u8]) -> u16 {
    let mut words = bytes.chunks_exact(2);
    // A u64 holds the sum of far more words than any packet has.
    let total: u64 = words
        .by_ref()
        .map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let last = words.remainder().first().map_or(0, |b| u64::from(*b) << 8);
    fold64(total + last)
}

/// Folds a sum of 16-bit words to 16 bit, carries added back in.
#[inline]
pub const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

const fn fold64(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    fold(sum as u32)
}

/// Sums the UDP pseudo header, not complemented: what a partial checksum field holds.
///
/// Addresses of different families give a meaningless sum.
pub fn pseudo_header(source: IpAddr, destination: IpAddr, udp_length: u16) -> u16 {
    let total =
        address_sum(source) + address_sum(destination) + PROTOCOL_UDP + u32::from(udp_length);
    fold(total)
}

/// Computes the UDP checksum of `datagram` (header and payload) as transmitted: never 0. The
/// field's present value is not part of the sum.
pub fn udp(source: IpAddr, destination: IpAddr, datagram: &[u8]) -> u16 {
    let length = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
    let (ports, rest) = datagram.split_at(datagram.len().min(6));
    let rest = rest.get(2..).unwrap_or_default();
    let total = u32::from(pseudo_header(source, destination, length))
        + u32::from(sum(ports))
        + u32::from(sum(rest));
    transmitted_udp(!fold(total))
}

/// Returns whether `datagram` (header and payload) carries a correct UDP checksum. Zero means "none":
/// right on IPv4, wrong on IPv6.
pub fn udp_is_valid(source: IpAddr, destination: IpAddr, datagram: &[u8]) -> bool {
    match datagram.get(6..8) {
        None => false,
        Some([0, 0]) => source.is_ipv4(),
        Some(_) => {
            let length = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
            let pseudo = pseudo_header(source, destination, length);
            fold(u32::from(pseudo) + u32::from(sum(datagram))) == 0xffff
        }
    }
}

/// Returns whether an IPv4 header, options included, carries a correct checksum.
pub fn ipv4_header_is_valid(header: &[u8]) -> bool {
    sum(header) == 0xffff
}

/// A computed UDP checksum as transmitted: 0 would mean "none", so it becomes 0xffff.
#[inline]
pub const fn transmitted_udp(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// What a set of replaced words adds to a checksum: `~m + m'` of RFC 1624, summed up once and then
/// applied to any number of copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta(u32);

impl Delta {
    /// Adds the replacement of one 16-bit word.
    #[inline]
    pub const fn replace(&mut self, old: u16, new: u16) {
        // Intermediate folding is not needed: the sum of all words of two IPv6 addresses and both
        // ports stays below 2^23.
        self.0 += !old as u32 + new as u32;
    }

    /// Adds the replacement of an address by another one of the same family.
    #[inline]
    pub fn replace_address(&mut self, old: IpAddr, new: IpAddr) {
        match (old, new) {
            (IpAddr::V4(old), IpAddr::V4(new)) => {
                let (old, new) = (old.to_bits(), new.to_bits());
                self.replace((old >> 16) as u16, (new >> 16) as u16);
                self.replace(old as u16, new as u16);
            }
            (IpAddr::V6(old), IpAddr::V6(new)) => {
                for (old, new) in old.segments().into_iter().zip(new.segments()) {
                    self.replace(old, new);
                }
            }
            _ => {}
        }
    }

    /// Updates a finished (complemented) checksum, equation 3 of RFC 1624.
    #[inline]
    pub const fn apply(self, checksum: u16) -> u16 {
        !fold(!checksum as u32 + self.0)
    }

    /// Updates a partial checksum: the bare sum of the pseudo header, not complemented.
    #[inline]
    pub const fn apply_partial(self, sum: u16) -> u16 {
        fold(sum as u32 + self.0)
    }
}

/// Finishes a partial checksum as a device would (virtio's `csum_start` and `csum_offset`): sums
/// `packet` from `start` to its end and writes the complement at `start + offset`. `None`, with
/// nothing written, if the field is outside the packet.
pub fn finish_partial(packet: &mut [u8], start: usize, offset: usize) -> Option<()> {
    let covered = packet.get_mut(start..)?;
    let checksum = transmitted_udp(!sum(covered));
    crate::bytes::write_u16(covered, offset, checksum)
}

fn address_sum(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => {
            let bits = address.to_bits();
            (bits >> 16) + (bits & 0xffff)
        }
        IpAddr::V6(address) => address.segments().into_iter().map(u32::from).sum(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sums_the_example_of_rfc_1071() {
        assert_eq!(
            sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
            0xddf2
        );
    }

    #[test]
    fn pads_an_odd_byte_with_zero() {
        assert_eq!(sum(&[0x12, 0x34, 0x56]), 0x1234 + 0x5600);
    }

    #[test]
    fn updates_the_example_of_rfc_1624() {
        let mut delta = Delta::default();
        delta.replace(0x5555, 0x3285);
        assert_eq!(delta.apply(0xdd2f), 0x0000);
    }

    #[test]
    fn finishing_outside_the_packet_writes_nothing() {
        let mut packet = [1, 2, 3, 4];
        assert_eq!(finish_partial(&mut packet, 2, 6), None);
        assert_eq!(finish_partial(&mut packet, 9, 0), None);
        assert_eq!(packet, [1, 2, 3, 4]);
    }

    proptest! {
        #[test]
        fn incremental_equals_recomputed(
            mut words in proptest::collection::vec(any::<u16>(), 1..64),
            at in any::<prop::sample::Index>(),
            new in any::<u16>(),
        ) {
            // A sum of 0 takes all-zero words; IP and UDP never have that.
            words.push(1);
            let bytes = |words: &[u16]| -> Vec<u8> {
                words.iter().flat_map(|word| word.to_be_bytes()).collect()
            };
            let before = !sum(&bytes(&words));
            let at = at.index(words.len() - 1);
            let mut delta = Delta::default();
            delta.replace(words[at], new);
            words[at] = new;
            prop_assert_eq!(delta.apply(before), !sum(&bytes(&words)));
        }

        #[test]
        fn a_finished_partial_checksum_is_valid(
            source in any::<u32>(), destination in any::<u32>(),
            mut datagram in proptest::collection::vec(any::<u8>(), 8..200),
        ) {
            let (source, destination) =
                (IpAddr::V4(source.into()), IpAddr::V4(destination.into()));
            let pseudo = pseudo_header(source, destination, datagram.len() as u16);
            datagram[6..8].copy_from_slice(&pseudo.to_be_bytes());
            finish_partial(&mut datagram, 0, 6).unwrap();
            prop_assert!(udp_is_valid(source, destination, &datagram));
            prop_assert_eq!(
                &udp(source, destination, &datagram).to_be_bytes()[..], &datagram[6..8]
            );
        }
    }
}
