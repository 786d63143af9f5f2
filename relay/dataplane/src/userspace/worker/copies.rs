//! The part of a run that one output sends, and its cost for a limit.

use packet::datagram::Part;

use super::coalesce::Payloads;
use super::headers::Headers;
use super::rewrite::CompiledOutput;
use crate::userspace::shared::limits::Cost;

const UDP_HEADER: u16 = packet::udp::HEADER as u16;

/// The part of a run that one output sends.
pub(super) struct Copies<'h, 'p> {
    /// The output.
    pub(super) output: &'h CompiledOutput,
    /// Their headers.
    pub(super) head: &'h Headers,
    /// The extension headers that the head omits.
    pub(super) extensions: &'p [u8],
    /// Their payloads.
    pub(super) payloads: Payloads<'p>,
    /// Datagrams.
    pub(super) packets: u32,
    /// Their payload bytes.
    pub(super) bytes: u32,
}

impl Copies<'_, '_> {
    /// What the datagrams of `head` cost.
    pub(super) fn cost(&self, head: &Headers) -> Cost {
        let datagram = &head.datagram;
        let bytes = match datagram.part {
            Part::Whole => datagram.udp_length.saturating_sub(UDP_HEADER).into(),
            Part::First | Part::Later => self.bytes,
        };
        Cost {
            packets: datagram.packets(),
            bytes,
            size: datagram.gso.map_or(bytes, |gso| gso.size.into()),
        }
    }
}
