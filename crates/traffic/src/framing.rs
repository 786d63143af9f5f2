//! What stands in a UDP payload around the generator's own header: nothing, RTP, MPEG-TS or both.
//!
//! The generator writes it, the receiver finds its way through it and reads the sequence numbers
//! of other tools' streams. RTP: RFC 3550; MPEG-TS in RTP: RFC 2250; TS packets: ISO/IEC 13818-1.

use packet::{mpeg_ts, rtp};

use crate::payload::{HEADER_BYTES, Stamp};

/// The generator's elementary stream.
const TS_PID: u16 = 0x100;
const TS_HEADER_BYTES: usize = 4;

/// How a payload is framed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// The generator's own header alone.
    #[default]
    Own,
    /// RTP, payload type 96.
    Rtp,
    /// MPEG-TS packets, one PID with a continuity counter.
    Ts,
    /// MPEG-TS packets in RTP, payload type 33.
    RtpTs,
}

impl Framing {
    /// The usual size of a payload in bytes: 7 TS packets where there are any.
    #[must_use]
    pub fn usual_size(self) -> usize {
        match self {
            Self::Own | Self::Rtp => 1024,
            Self::Ts => 7 * mpeg_ts::PACKET,
            Self::RtpTs => rtp::HEADER + 7 * mpeg_ts::PACKET,
        }
    }

    /// The sizes that can be framed so, in words.
    pub(crate) fn sizes(self) -> &'static str {
        match self {
            Self::Own => "mcr's header needs 32 bytes, and UDP takes 65507",
            Self::Rtp => "RTP and mcr's header need 44 bytes, and UDP takes 65507",
            Self::Ts => "MPEG-TS needs a multiple of 188 bytes, such as 1316, and no range",
            Self::RtpTs => "RTP needs 12 and MPEG-TS a multiple of 188 bytes, as in 1328, no range",
        }
    }

    /// Says whether a payload of `size` bytes can be framed so.
    #[must_use]
    pub fn fits(self, size: usize) -> bool {
        let framed = size.saturating_sub(self.ts_offset());
        match self {
            Self::Own | Self::Rtp => size >= self.own_offset() + HEADER_BYTES,
            Self::Ts | Self::RtpTs => framed > 0 && framed.is_multiple_of(mpeg_ts::PACKET),
        }
    }

    /// Where the generator's own header starts.
    #[must_use]
    pub const fn own_offset(self) -> usize {
        match self {
            Self::Own => 0,
            Self::Rtp => rtp::HEADER,
            Self::Ts => TS_HEADER_BYTES,
            Self::RtpTs => rtp::HEADER + TS_HEADER_BYTES,
        }
    }

    /// Says whether the bytes behind the own header are the same in every payload of one size.
    pub(crate) const fn has_constant_body(self) -> bool {
        matches!(self, Self::Own | Self::Rtp)
    }

    /// Writes everything in front of and behind the own header that is not its body.
    pub(crate) fn write(self, payload: &mut [u8], stamp: &Stamp) {
        if matches!(self, Self::Rtp | Self::RtpTs) {
            let kind = if self == Self::Rtp {
                rtp::DYNAMIC
            } else {
                rtp::MP2T
            };
            write_rtp(&mut payload[..rtp::HEADER], kind, stamp);
        }
        if matches!(self, Self::Ts | Self::RtpTs) {
            write_ts(&mut payload[self.ts_offset()..], stamp.sequence);
        }
    }

    const fn ts_offset(self) -> usize {
        match self {
            Self::Own | Self::Rtp | Self::Ts => 0,
            Self::RtpTs => rtp::HEADER,
        }
    }
}

fn write_rtp(header: &mut [u8], kind: u8, stamp: &Stamp) {
    header[0] = rtp::VERSION;
    header[1] = kind;
    header[2..4].copy_from_slice(&(stamp.sequence as u16).to_be_bytes());
    // A 90 kHz clock, as every video payload format has: 9 ticks in 100,000 ns.
    let ticks = u128::from(stamp.intended_ns) * 9 / 100_000;
    header[4..8].copy_from_slice(&(ticks as u32).to_be_bytes());
    let source = u32::from(stamp.run) << 16 | (stamp.stream & 0xffff);
    header[8..12].copy_from_slice(&source.to_be_bytes());
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

/// What the receiver found around a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framed<'a> {
    /// How it is framed.
    pub framing: Framing,
    /// The RTP header, if there is one.
    pub rtp: Option<rtp::Header>,
    /// The TS packets, if there are any.
    pub ts: Option<&'a [u8]>,
}

/// Says how `payload` is framed, going by what stands in it.
#[must_use]
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

/// Reads an RTP header and hands back what follows its contributors and extension.
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
    fn each_framing_is_recognised_again() {
        for framing in [Framing::Rtp, Framing::Ts, Framing::RtpTs] {
            let mut payload = vec![0; framing.usual_size()];
            framing.write(&mut payload, &stamp(70_000));
            let framed = recognise(&payload);
            assert_eq!(framed.framing, framing);
            if let Some(rtp) = framed.rtp {
                assert_eq!(rtp.ssrc, 0x1_0002);
                assert_eq!(rtp.sequence, (70_000 % 65_536) as u16);
            }
        }
    }

    #[test]
    fn continuity_counters_go_on_from_payload_to_payload() {
        let counters: Vec<u8> = (0..5)
            .flat_map(|sequence| {
                let mut payload = vec![0; 7 * mpeg_ts::PACKET];
                Framing::Ts.write(&mut payload, &stamp(sequence));
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
