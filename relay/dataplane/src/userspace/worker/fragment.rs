//! Fragments copies that are above the MTU of an output which allows it, and finishes their UDP
//! checksum.
//!
//! IPv4 without DF only, as any router would; in IPv6 only the sender may.

use packet::checksum;
use packet::datagram::{Datagram, Part};
use packet::fragment;
use packet::ipv4;
use packet::parse::ChecksumState;

use super::headers::{CopyHeaders, HEADERS_ROOM, Headers};

/// One piece of a copy, ready to send.
#[derive(Debug)]
pub(super) struct PieceOf<'p> {
    /// What follows its headers.
    pub(super) payload: &'p [u8],
    /// More pieces of the copy follow.
    pub(super) more: bool,
    bytes: [u8; HEADERS_ROOM],
    length: usize,
}

impl PieceOf<'_> {
    /// Its headers.
    pub(super) fn head(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Returns whether a datagram, or a fragment of one, may be cut.
pub(super) fn is_allowed(datagram: &Datagram) -> bool {
    datagram.source.is_ipv4() && !datagram.dont_fragment
}

/// The datagrams of a packet or of a run, one unless it is a super-packet, each with its own headers.
pub(super) fn datagrams<'p>(
    head: &Headers,
    payloads: impl Iterator<Item = &'p [u8]>,
) -> impl Iterator<Item = (Headers, &'p [u8])> {
    let size = head.datagram.gso.map(|gso| usize::from(gso.size));
    payloads
        .flat_map(move |payload| {
            let size = size.unwrap_or(payload.len()).max(1);
            // One without payload is a datagram too.
            let starts = (0..payload.len().max(1)).step_by(size);
            starts.map(move |start| {
                let end = payload.len().min(start + size);
                payload.get(start..end).unwrap_or_default()
            })
        })
        .enumerate()
        .map(move |(index, payload)| {
            let single = head.datagram.gso.is_none();
            let head = if single {
                *head
            } else {
                head.segment(index as u16, payload.len() as u16)
            };
            (head, payload)
        })
}

/// Cuts one datagram's copy into pieces for `mtu`.
pub(super) fn pieces<'p>(
    copy: &CopyHeaders,
    datagram: &Datagram,
    payload: &'p [u8],
    mtu: usize,
) -> impl Iterator<Item = PieceOf<'p>> {
    let mut copy = *copy;
    copy.forget_offload();
    finish(&mut copy, datagram, payload);
    let ip_header = datagram.udp_offset - datagram.ip_offset;
    let udp_header = datagram.payload_offset() - datagram.udp_offset;
    let pieces = fragment::pieces(ip_header, udp_header + payload.len(), mtu);
    pieces.filter_map(move |piece| {
        let first = piece.offset == 0;
        let start = piece.offset.saturating_sub(udp_header);
        let end = piece.offset + piece.length - udp_header;
        let (mut bytes, length) = copy.without(if first { 0 } else { udp_header });
        let ip = bytes.get_mut(copy.ip_at()..length)?;
        let parsed = ipv4::Header::parse(ip).ok()?;
        let position = fragment::Piece {
            offset: usize::from(parsed.fragment_offset()) + piece.offset,
            more: parsed.more_fragments() || piece.more,
            ..piece
        };
        fragment::write_piece_header(ip, position)?;
        Some(PieceOf {
            payload: payload.get(start..end)?,
            more: piece.more,
            bytes,
            length,
        })
    })
}

/// Completes a datagram's checksum where it is partial. That of a fragment is whole: it covers what is
/// in other fragments.
pub(super) fn finish(copy: &mut CopyHeaders, datagram: &Datagram, payload: &[u8]) {
    if datagram.checksum == ChecksumState::Partial && datagram.part == Part::Whole {
        finish_checksum(copy.udp_mut(), payload);
    }
}

/// Turns a partial checksum in `header` into a complete one.
fn finish_checksum(header: &mut [u8], payload: &[u8]) {
    let sum = u32::from(checksum::sum(header)) + u32::from(checksum::sum(payload));
    let finished = checksum::transmitted_udp(!checksum::fold(sum));
    if let Some(field) = header.get_mut(6..8) {
        field.copy_from_slice(&finished.to_be_bytes());
    }
}
