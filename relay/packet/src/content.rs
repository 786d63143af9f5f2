//! What a stream carries, judged from some of its payloads: MPEG-TS, RTP, both, or neither. Bounded
//! memory, and no payload is stored.
//!
//! RTP has no distinguishing mark ([`crate::rtp`]), so one packet proves nothing: two of one source must be
//! consecutive.

use crate::mpeg_ts;
use crate::rtp::{self, Header};

/// Greatest distance of the sequence numbers of two packets of a stream that are seen one after the other.
const CLOSE: u16 = 64;

/// What a stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// RTP (RFC 3550).
    Rtp,
    /// MPEG-TS in RTP.
    RtpTs,
    /// MPEG-TS, bare in UDP.
    Ts,
    /// Neither, or too few packets to tell.
    Other,
}

impl Content {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rtp => "rtp",
            Self::RtpTs => "rtp/mpeg-ts",
            Self::Ts => "mpeg-ts",
            Self::Other => "other",
        }
    }
}

/// The findings from the payloads so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guess {
    payloads: u32,
    ts: u32,
    /// Those that continue the one before them.
    rtp: u32,
    rtp_ts: u32,
    last: Option<Header>,
}

impl Guess {
    /// Bytes of a payload that are inspected: an RTP header with contributors and extension, and the
    /// first sync bytes behind it.
    pub const BYTES: usize = 320;

    /// Inspects the first bytes of a payload that is `length` bytes long.
    pub fn look(&mut self, payload: &[u8], length: usize) {
        self.payloads = self.payloads.saturating_add(1);
        if begins_like_ts(payload, length) {
            self.ts += 1;
            return;
        }
        let Some(header) = Header::read(payload) else {
            return;
        };
        let before = self.last.replace(header);
        if !before.is_some_and(|before| continued(before, header)) {
            return;
        }
        self.rtp += 1;
        let media = rtp::media(payload);
        let inside = media.filter(|media| {
            let headers = payload.len() - media.len();
            begins_like_ts(media, length.saturating_sub(headers))
        });
        self.rtp_ts += u32::from(inside.is_some());
    }

    /// What the stream carries: the content of most of its payloads.
    pub const fn content(&self) -> Content {
        // The first packet of a source continues none.
        if self.ts > self.payloads / 2 {
            Content::Ts
        } else if self.rtp == 0 || self.rtp < self.payloads / 2 {
            Content::Other
        } else if self.rtp_ts > self.rtp / 2 {
            Content::RtpTs
        } else {
            Content::Rtp
        }
    }
}

fn continued(before: Header, now: Header) -> bool {
    let step = now.sequence.wrapping_sub(before.sequence);
    before.ssrc == now.ssrc && (step.wrapping_add(CLOSE) <= 2 * CLOSE)
}

/// Returns whether a payload is a whole number of packets, of which each present one begins with the sync byte.
fn begins_like_ts(payload: &[u8], length: usize) -> bool {
    let mut starts = payload.iter().step_by(mpeg_ts::PACKET);
    length > 0
        && length.is_multiple_of(mpeg_ts::PACKET)
        && starts.len() > 0
        && starts.all(|first| *first == mpeg_ts::SYNC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rtp(sequence: u16, ssrc: u8, media: &[u8]) -> Vec<u8> {
        let mut packet = vec![rtp::VERSION, 96, 0, 0, 0, 0, 0, 0, 0, 0, 0, ssrc];
        packet[2..4].copy_from_slice(&sequence.to_be_bytes());
        packet.extend(media);
        packet
    }

    fn guessed(payloads: &[Vec<u8>]) -> Content {
        let mut guess = Guess::default();
        for payload in payloads {
            let seen = payload.len().min(Guess::BYTES);
            guess.look(&payload[..seen], payload.len());
        }
        guess.content()
    }

    #[test]
    fn distinguishes_transport_streams_rtp_and_others() {
        let ts = [mpeg_ts::packet(1, 0, mpeg_ts::PAYLOAD); 7].concat();
        assert_eq!(guessed(&[]), Content::Other);
        assert_eq!(guessed(std::slice::from_ref(&ts)), Content::Ts);
        let inside = [rtp(65_535, 1, &ts), rtp(0, 1, &ts), rtp(1, 1, &ts)];
        assert_eq!(guessed(&inside), Content::RtpTs);
        let plain = [7, 8, 10, 9, 12].map(|n| rtp(n, 1, b"media"));
        assert_eq!(guessed(&plain), Content::Rtp);
        // A payload of that length that begins with the sync byte by chance.
        let mut chance = vec![0; 7 * 188];
        chance[0] = mpeg_ts::SYNC;
        assert_eq!(guessed(&[chance]), Content::Other);
        assert_eq!(guessed(&[b"text".to_vec()]), Content::Other);
    }

    #[test]
    fn what_only_looks_like_rtp_is_not() {
        // A single packet, and packets with random numbers.
        assert_eq!(guessed(&[rtp(1, 1, b"")]), Content::Other);
        let chance = [3, 9_000, 41_000, 200, 60_000].map(|n| rtp(n, 1, b"?"));
        assert_eq!(guessed(&chance), Content::Other);
        let other = [b"text".to_vec(), b"text".to_vec(), b"text".to_vec()];
        let few = [rtp(1, 1, b""), rtp(2, 1, b"")];
        let mixed: Vec<Vec<u8>> = other.iter().chain(&few).chain(&other).cloned().collect();
        assert_eq!(guessed(&mixed), Content::Other);
    }
}
