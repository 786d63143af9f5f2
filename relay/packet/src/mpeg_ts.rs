//! The header of an MPEG-TS packet (ISO/IEC 13818-1, 2.4.3), read in place.

/// Bytes of a packet.
pub const PACKET: usize = 188;
/// First byte of each.
pub const SYNC: u8 = 0x47;
/// PID of stuffing packets, whose counters are meaningless.
pub const NULL_PID: u16 = 0x1fff;
/// Adaptation field control: payload.
pub const PAYLOAD: u8 = 1;
/// Adaptation field control: adaptation field.
pub const ADAPTATION: u8 = 2;

/// A packet's header and its adaptation field's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender marks the packet as broken; the rest of it is not to be trusted.
    pub transport_error: bool,
    /// Packet identifier, 13 bits.
    pub pid: u16,
    /// [`PAYLOAD`], [`ADAPTATION`], both or, which is reserved, neither.
    pub adaptation: u8,
    /// Continuity counter, 4 bits.
    pub counter: u8,
    /// The counter may jump here (discontinuity indicator).
    pub may_jump: bool,
}

impl Header {
    /// Reads the header of a whole packet; `None` if it does not begin with the sync byte.
    #[inline]
    pub fn read(packet: &[u8]) -> Option<Self> {
        let [SYNC, high, low, control, length, flags, ..] = *packet else {
            return None;
        };
        let adaptation = control >> 4 & 3;
        Some(Self {
            transport_error: high & 0x80 != 0,
            pid: u16::from_be_bytes([high & 0x1f, low]),
            adaptation,
            counter: control & 0x0f,
            may_jump: adaptation & ADAPTATION != 0 && length > 0 && flags & 0x80 != 0,
        })
    }
}

/// Makes a packet, for tests.
#[cfg(any(test, feature = "test-support"))]
pub fn packet(pid: u16, counter: u8, adaptation: u8) -> [u8; PACKET] {
    let mut packet = [0xff; PACKET];
    let [high, low] = pid.to_be_bytes();
    packet[..4].copy_from_slice(&[SYNC, high, low, adaptation << 4 | counter & 0x0f]);
    if adaptation & ADAPTATION != 0 {
        packet[4] = if adaptation & PAYLOAD == 0 { 183 } else { 7 };
        packet[5] = 0;
    }
    packet
}
