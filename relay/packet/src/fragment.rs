//! Fragments: what identifies their datagram, and how a datagram is cut to an MTU.
//!
//! Cutting is IPv4 only (in IPv6 only the sender fragments) and works on a finished datagram: the
//! UDP checksum, which covers all pieces, must be complete.

use crate::bytes::write_u16;
use crate::checksum;
use crate::datagram::{Datagram, Part};
use crate::fragment_cache::FragmentCache;
use crate::ipv4;

pub use crate::fragment_cache::FragmentKey;

/// One fragment of a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The datagram it belongs to.
    pub key: FragmentKey,
    /// Its offset in the datagram, in bytes.
    pub offset: u16,
    /// Whether more fragments follow it.
    pub more: bool,
    /// Its headers; `None` in a first fragment that is too short to hold UDP's.
    pub datagram: Option<Datagram>,
}

/// Whether a fragment's ports are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribution {
    /// They are in its headers: its own, or those that its datagram's first fragment had.
    Known(Datagram),
    /// Its first fragment has not arrived, or is no longer recorded: only the group can determine its rule.
    Orphan(Datagram),
}

impl Fragment {
    /// The fragment's headers with the datagram's ports: its own in the first fragment, which `memory` records,
    /// recorded ones in the others. `None` for a first fragment without a UDP header. To be called only where
    /// some route has the group, so that a flood of other fragments costs nothing.
    pub fn attribute(
        &self,
        memory: &mut FragmentCache,
        ingress: u32,
        now_ns: u64,
    ) -> Option<Attribution> {
        let mut datagram = self.datagram?;
        if datagram.part == Part::Later {
            let Some(ports) = memory.recall(ingress, self.key, now_ns) else {
                return Some(Attribution::Orphan(datagram));
            };
            (datagram.source_port, datagram.destination_port) = ports;
        } else {
            let ports = (datagram.source_port, datagram.destination_port);
            memory.remember(ingress, self.key, ports, now_ns);
        }
        Some(Attribution::Known(datagram))
    }
}

/// One piece of a datagram that is being cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where the piece starts in the IP payload, a multiple of 8.
    pub offset: usize,
    /// Its bytes of IP payload.
    pub length: usize,
    /// Whether more pieces follow.
    pub more: bool,
}

/// Cuts an IP payload of `payload` bytes behind a header of `header` bytes into pieces for `mtu`.
/// Returns no pieces if not even 8 bytes fit.
pub fn pieces(header: usize, payload: usize, mtu: usize) -> impl Iterator<Item = Piece> {
    let room = mtu.saturating_sub(header) & !7;
    let end = if room == 0 { 0 } else { payload };
    (0..end).step_by(room.max(8)).map(move |offset| Piece {
        offset,
        length: room.min(payload - offset),
        more: offset + room < payload,
    })
}

/// Turns the IPv4 header in `header` (options included, a copy of the datagram's) into that of
/// `piece`: length, offset, flags and checksum. In all pieces but the first, options that are not
/// to be copied become no-operations, so that every piece has the same header length, as in Linux
/// (`ip_options_fragment`). `None` if the header is cut off.
pub fn write_piece_header(header: &mut [u8], piece: Piece) -> Option<()> {
    let length = ipv4::Header::parse(header).ok()?.length();
    let header = header.get_mut(..length)?;
    if piece.offset != 0 {
        blank_uncopied_options(header.get_mut(ipv4::HEADER..)?);
    }
    let flags = if piece.more { 0x2000 } else { 0 };
    write_u16(
        header,
        ipv4::field::TOTAL_LENGTH,
        u16::try_from(length + piece.length).ok()?,
    )?;
    write_u16(
        header,
        ipv4::field::FRAGMENT,
        u16::try_from(piece.offset / 8).ok()? | flags,
    )?;
    write_u16(header, ipv4::field::CHECKSUM, 0)?;
    let sum = checksum::sum(header);
    write_u16(header, ipv4::field::CHECKSUM, !sum)
}

fn blank_uncopied_options(options: &mut [u8]) {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const COPIED: u8 = 0x80;
    let mut rest = options;
    while let Some(&kind) = rest.first() {
        let length = match kind {
            END => return,
            NO_OPERATION => 1,
            _ => match rest.get(1) {
                Some(&length) if length >= 2 => usize::from(length).min(rest.len()),
                _ => return,
            },
        };
        let (option, following) = rest.split_at_mut(length);
        if kind & COPIED == 0 {
            option.fill(NO_OPERATION);
        }
        rest = following;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_cover_the_payload_without_gap_or_overlap(
            header in 20usize..=60, payload in 8usize..9000, mtu in 68usize..2000,
        ) {
            let mut next = 0;
            for piece in pieces(header, payload, mtu) {
                prop_assert_eq!(piece.offset, next);
                prop_assert_eq!(piece.offset % 8, 0);
                prop_assert!(header + piece.length <= mtu);
                next += piece.length;
                prop_assert_eq!(piece.more, next < payload);
            }
            prop_assert_eq!(next, payload);
        }

        #[test]
        fn a_piece_header_is_valid(options in proptest::collection::vec(any::<u8>(), 0..=10)) {
            let words = options.len();
            let mut header = vec![0; 20 + words * 4];
            header[0] = 0x45 + words as u8;
            for (word, byte) in options.iter().enumerate() {
                header[20 + word * 4] = *byte;
            }
            let piece = Piece { offset: 1480, length: 500, more: true };
            write_piece_header(&mut header, piece).unwrap();
            let header = ipv4::Header::parse(&header).unwrap();
            prop_assert!(header.checksum_is_valid());
            prop_assert_eq!(header.fragment_offset(), 1480);
            prop_assert!(header.more_fragments());
        }
    }

    #[test]
    fn an_mtu_without_room_gives_no_pieces() {
        assert_eq!(pieces(60, 100, 67).count(), 0);
        assert_eq!(pieces(60, 100, 20).count(), 0);
    }

    #[test]
    fn later_pieces_keep_only_copied_options() {
        // Record route (not copied), no-operation, stream identifier (copied), end of list.
        let mut options = [7, 3, 4, 1, 0x88, 4, 0, 9, 0, 0, 0, 0];
        blank_uncopied_options(&mut options);
        assert_eq!(options, [1, 1, 1, 1, 0x88, 4, 0, 9, 0, 0, 0, 0]);
    }
}
