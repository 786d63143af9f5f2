//! What surrounds the generator's own header in a UDP payload: nothing, RTP, MPEG-TS, both, or the
//! header of an exchange's feed.
//!
//! The generator writes it; the receiver parses it and reads the sequence numbers of other tools'
//! streams. RTP: RFC 3550; MPEG-TS in RTP: RFC 2250; TS packets: ISO/IEC 13818-1;
//! MoldUDP64: Nasdaq, version 1.00; MDP 3.0: CME Globex, binary packet header.

use clap::ValueEnum;
use packet::{mpeg_ts, rtp};

use crate::payload::{HEADER_BYTES, Stamp};

/// The generator's elementary stream.
const TS_PID: u16 = 0x100;
const TS_HEADER_BYTES: usize = 4;
/// Session, sequence number and message count of MoldUDP64, and the length of the one message.
const MOLD_BYTES: usize = 10 + 8 + 2 + 2;
/// Sequence number and sending time of an MDP 3.0 packet, both little-endian.
const MDP_BYTES: usize = 4 + 8;

/// How a payload is framed, as on the command line. The cheapest to recognise stand first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Framing {
    /// Nothing
    #[default]
    Own,
    /// RTP, payload type 96
    Rtp,
    /// MPEG-TS packets of 188 bytes with continuity counters
    Ts,
    /// MPEG-TS packets in RTP, payload type 33
    RtpTs,
    /// One message in a MoldUDP64 packet
    Moldudp64,
    /// The packet header of CME's MDP 3.0, a little-endian number of 32 bits
    Mdp3,
}

/// The sequence number that a payload carries in its framing, and its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// RTP's synchronisation source, MoldUDP64's session; the lower 16 bits are the stream's.
    pub sender: u32,
    /// The number; the framing carries as many of its low bits as fit.
    pub number: u64,
}

impl Label {
    /// Numbers a packet as the generator's own header does, from 0.
    pub fn of(stamp: &Stamp) -> Self {
        Self {
            sender: u32::from(stamp.run) << 16 | (stamp.stream & 0xffff),
            number: stamp.sequence,
        }
    }
}

impl Framing {
    /// Returns whether it has its own numbers.
    pub const fn is_numbered(self) -> bool {
        !matches!(self, Self::Own | Self::Ts)
    }

    /// The number of the first packet, unless the run sets another.
    pub const fn first_number(self) -> u64 {
        match self {
            Self::Moldudp64 | Self::Mdp3 => 1,
            Self::Own | Self::Rtp | Self::Ts | Self::RtpTs => 0,
        }
    }

    /// The usual size of a payload in bytes: 7 TS packets where there are any.
    pub fn usual_size(self) -> usize {
        match self {
            Self::Own | Self::Rtp | Self::Moldudp64 | Self::Mdp3 => 1024,
            Self::Ts => 7 * mpeg_ts::PACKET,
            Self::RtpTs => rtp::HEADER + 7 * mpeg_ts::PACKET,
        }
    }

    /// The payload sizes that fit this framing, as text.
    pub(crate) fn sizes(self) -> &'static str {
        match self {
            Self::Own => "mcr's header needs 32 bytes, and UDP takes 65507",
            Self::Rtp => "RTP and mcr's header need 44 bytes, and UDP takes 65507",
            Self::Ts => "MPEG-TS needs a multiple of 188 bytes, such as 1316, and no range",
            Self::RtpTs => "RTP needs 12 and MPEG-TS a multiple of 188 bytes, as in 1328, no range",
            Self::Moldudp64 => "MoldUDP64 and mcr's header need 54 bytes, and UDP takes 65507",
            Self::Mdp3 => "MDP 3.0 and mcr's header need 44 bytes, and UDP takes 65507",
        }
    }

    /// Returns whether a payload of `size` bytes fits this framing.
    pub fn fits(self, size: usize) -> bool {
        let framed = size.saturating_sub(self.ts_offset());
        match self {
            Self::Own | Self::Rtp | Self::Moldudp64 | Self::Mdp3 => {
                size >= self.own_offset() + HEADER_BYTES
            }
            Self::Ts | Self::RtpTs => framed > 0 && framed.is_multiple_of(mpeg_ts::PACKET),
        }
    }

    /// Where the generator's own header starts.
    pub const fn own_offset(self) -> usize {
        match self {
            Self::Own => 0,
            Self::Rtp => rtp::HEADER,
            Self::Ts => TS_HEADER_BYTES,
            Self::RtpTs => rtp::HEADER + TS_HEADER_BYTES,
            Self::Moldudp64 => MOLD_BYTES,
            Self::Mdp3 => MDP_BYTES,
        }
    }

    /// Returns whether the bytes behind the own header are the same in every payload of one size.
    pub(crate) const fn has_constant_body(self) -> bool {
        !matches!(self, Self::Ts | Self::RtpTs)
    }

    /// Writes everything in front of and behind the own header that is not its body.
    pub(crate) fn write(self, payload: &mut [u8], stamp: &Stamp, label: &Label) {
        match self {
            Self::Own | Self::Ts => {}
            Self::Rtp => write_rtp(payload, rtp::DYNAMIC, stamp, label),
            Self::RtpTs => write_rtp(payload, rtp::MP2T, stamp, label),
            Self::Moldudp64 => write_mold(payload, label),
            Self::Mdp3 => write_mdp(payload, stamp, label),
        }
        if matches!(self, Self::Ts | Self::RtpTs) {
            write_ts(&mut payload[self.ts_offset()..], stamp.sequence);
        }
    }

    const fn ts_offset(self) -> usize {
        match self {
            Self::RtpTs => rtp::HEADER,
            _ => 0,
        }
    }
}

fn write_rtp(payload: &mut [u8], kind: u8, stamp: &Stamp, label: &Label) {
    let header = &mut payload[..rtp::HEADER];
    header[0] = rtp::VERSION;
    header[1] = kind;
    header[2..4].copy_from_slice(&(label.number as u16).to_be_bytes());
    // A 90 kHz clock, as every video payload format has: 9 ticks in 100,000 ns.
    let ticks = u128::from(stamp.intended_ns) * 9 / 100_000;
    header[4..8].copy_from_slice(&(ticks as u32).to_be_bytes());
    header[8..12].copy_from_slice(&label.sender.to_be_bytes());
}

/// The session is `M` and nine hexadecimal digits.
fn write_mold(payload: &mut [u8], label: &Label) {
    let message = (payload.len() - MOLD_BYTES) as u16;
    let header = &mut payload[..MOLD_BYTES];
    header[..2].copy_from_slice(b"M0");
    for (index, digit) in header[2..10].iter_mut().enumerate() {
        let nibble = (label.sender >> (28 - 4 * index)) & 0xf;
        *digit = b"0123456789ABCDEF"[nibble as usize];
    }
    header[10..18].copy_from_slice(&label.number.to_be_bytes());
    header[18..20].copy_from_slice(&1u16.to_be_bytes());
    header[20..22].copy_from_slice(&message.to_be_bytes());
}

fn write_mdp(payload: &mut [u8], stamp: &Stamp, label: &Label) {
    let header = &mut payload[..MDP_BYTES];
    header[..4].copy_from_slice(&(label.number as u32).to_le_bytes());
    header[4..].copy_from_slice(&stamp.intended_ns.to_le_bytes());
}

fn write_ts(packets: &mut [u8], sequence: u64) {
    let count = packets.len() / mpeg_ts::PACKET;
    let first = sequence.wrapping_mul(count as u64);
    for (index, packet) in packets.chunks_exact_mut(mpeg_ts::PACKET).enumerate() {
        packet[0] = mpeg_ts::SYNC;
        packet[1..3].copy_from_slice(&TS_PID.to_be_bytes());
        // Payload only, no adaptation field.
        packet[3] = mpeg_ts::PAYLOAD << 4 | (first.wrapping_add(index as u64) & 0x0f) as u8;
    }
}

/// A payload's framing as the receiver recognised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framed<'a> {
    /// How it is framed.
    pub framing: Framing,
    /// The RTP header, if there is one.
    pub rtp: Option<rtp::Header>,
    /// The TS packets, if there are any.
    pub ts: Option<&'a [u8]>,
}

/// Recognises how `payload` is framed from its content.
pub fn recognise(payload: &[u8]) -> Framed<'_> {
    let (rtp, rest) = match read_rtp(payload) {
        Some((rtp, rest)) => (Some(rtp), rest),
        None => (None, payload),
    };
    let ts = is_ts(rest).then_some(rest);
    let framing = match (rtp, ts) {
        (None, None) => Framing::Own,
        (Some(_), None) => Framing::Rtp,
        (None, Some(_)) => Framing::Ts,
        (Some(_), Some(_)) => Framing::RtpTs,
    };
    Framed { framing, rtp, ts }
}

/// Reads the headers of the TS packets.
pub fn ts_packets(packets: &[u8]) -> impl Iterator<Item = mpeg_ts::Header> + '_ {
    packets
        .chunks_exact(mpeg_ts::PACKET)
        .filter_map(mpeg_ts::Header::read)
}

fn is_ts(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && bytes.len().is_multiple_of(mpeg_ts::PACKET)
        && bytes
            .chunks_exact(mpeg_ts::PACKET)
            .all(|packet| packet[0] == mpeg_ts::SYNC)
}

/// Reads an RTP header and returns what follows its contributors and extension.
fn read_rtp(payload: &[u8]) -> Option<(rtp::Header, &[u8])> {
    rtp::Header::read(payload).zip(rtp::media(payload))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stamp(sequence: u64) -> Stamp {
        Stamp {
            run: 1,
            stream: 2,
            sequence,
            intended_ns: 1_000_000_000,
        }
    }

    #[test]
    fn each_framing_is_recognised() {
        for framing in [Framing::Rtp, Framing::Ts, Framing::RtpTs] {
            let mut payload = vec![0; framing.usual_size()];
            framing.write(&mut payload, &stamp(70_000), &Label::of(&stamp(70_000)));
            let framed = recognise(&payload);
            assert_eq!(framed.framing, framing);
            if let Some(rtp) = framed.rtp {
                assert_eq!(rtp.ssrc, 0x1_0002);
                assert_eq!(rtp.sequence, (70_000 % 65_536) as u16);
            }
        }
    }

    #[test]
    fn feeds_are_numbered_as_their_exchanges_specify() {
        let label = Label {
            sender: 0xabcd_0001,
            number: 0x1_0203_0405,
        };
        let mut payload = vec![0; 122];
        Framing::Moldudp64.write(&mut payload, &stamp(0), &label);
        assert_eq!(payload[..10], *b"M0ABCD0001");
        assert_eq!(payload[10..18], label.number.to_be_bytes());
        assert_eq!(payload[18..22], [0, 1, 0, 100]);
        Framing::Mdp3.write(&mut payload, &stamp(0), &label);
        assert_eq!(payload[..4], [5, 4, 3, 2]);
        assert_eq!(payload[4..12], 1_000_000_000_u64.to_le_bytes());
    }

    #[test]
    fn continuity_counters_go_on_from_payload_to_payload() {
        let counters: Vec<u8> = (0..5)
            .flat_map(|sequence| {
                let mut payload = vec![0; 7 * mpeg_ts::PACKET];
                Framing::Ts.write(&mut payload, &stamp(sequence), &Label::of(&stamp(sequence)));
                ts_packets(&payload)
                    .map(|ts| ts.counter)
                    .collect::<Vec<_>>()
            })
            .collect();
        let expected: Vec<u8> = (0..35).map(|n| n % 16).collect();
        assert_eq!(counters, expected);
    }

    #[test]
    fn sizes_must_hold_whole_ts_packets() {
        assert!(Framing::Ts.fits(1316) && Framing::RtpTs.fits(1328) && Framing::Ts.fits(188));
        assert!(!Framing::Ts.fits(1300) && !Framing::RtpTs.fits(1316) && !Framing::Ts.fits(0));
        assert!(Framing::Own.fits(32) && !Framing::Own.fits(31) && !Framing::Rtp.fits(43));
    }

    #[test]
    fn rtp_with_sources_and_extension_is_skipped_whole() {
        let mut payload = vec![0; rtp::HEADER + 8 + 4 + 4];
        payload[0] = rtp::VERSION | 0x10 | 2;
        payload[1] = rtp::MP2T;
        payload[rtp::HEADER + 8 + 3] = 1;
        let mut packets = vec![0; 2 * mpeg_ts::PACKET];
        write_ts(&mut packets, 0);
        payload.extend(packets);
        assert_eq!(recognise(&payload).framing, Framing::RtpTs);
    }

    proptest! {
        #[test]
        fn never_panics_on_foreign_bytes(bytes: Vec<u8>) {
            let framed = recognise(&bytes);
            framed.ts.into_iter().flat_map(ts_packets).for_each(drop);
        }
    }
}
