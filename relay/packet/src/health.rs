//! A stream's health, from its own packets: when they arrive, whether RTP sequence numbers (RFC 3550) and
//! MPEG-TS continuity counters (ISO/IEC 13818-1) continue. The reference for both paths.
//!
//! One [`Watch`] follows one route's stream in bounded memory; counters only grow. A watch judges
//! payload, it never changes a packet's verdict.

pub mod rtp;
pub mod ts;

use crate::health::rtp::Rtp;
use crate::health::ts::Ts;
use crate::rtp::{Header, media};

/// Arrival times are compared within epochs of 2 to this power nanoseconds, about a second.
pub const EPOCH_SHIFT: u32 = 30;

/// The form of a payload, with the numbers that `layout.h` gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Content {
    /// Nothing is inspected: only arrival times count.
    #[default]
    None = 0,
    /// Determined from each packet.
    Auto = 1,
    /// RTP, perhaps with MPEG-TS inside.
    Rtp = 2,
    /// MPEG-TS packets, bare in UDP.
    Ts = 3,
}

/// Follows one stream.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    content: Content,
    /// Nanoseconds per tick of RTP timestamps whose payload type does not define it, times 2^16.
    per_tick: u64,
    /// When packets arrive.
    pub arrivals: Arrivals,
    /// What RTP headers show.
    pub rtp: Rtp,
    /// What MPEG-TS headers show.
    pub ts: Ts,
    /// Datagrams that are not of the expected form.
    pub unrecognised: u64,
}

/// When packets arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// The last packet's, in nanoseconds of any clock; 0 if none arrived.
    pub last_ns: u64,
    /// Its epoch: its time shifted by [`EPOCH_SHIFT`].
    pub epoch: u64,
    /// Longest time between two packets of which the second arrived in this epoch.
    pub gap_ns: u64,
    /// The same for the previous epoch.
    pub gap_before_ns: u64,
}

impl Watch {
    /// Begins to follow a stream; `clock_hz` is the RTP clock's where the payload type does not define it.
    pub fn new(content: Content, clock_hz: u32) -> Self {
        Self {
            content,
            per_tick: rtp::per_tick(clock_hz),
            ts: match content {
                Content::None => Ts::default(),
                Content::Auto | Content::Rtp | Content::Ts => Ts::new(),
            },
            ..Self::default()
        }
    }

    /// Notes the arrival of a packet, or of a super-packet as one.
    #[inline]
    pub fn record_arrival(&mut self, now_ns: u64) {
        self.arrivals.note(now_ns);
    }

    /// Inspects the payload of one datagram.
    #[inline]
    pub fn inspect(&mut self, payload: &[u8], now_ns: u64) {
        let recognised = match self.content {
            Content::None => return,
            Content::Ts => self.ts.datagram(payload),
            Content::Rtp => self.rtp(payload, now_ns),
            Content::Auto => self.ts.datagram(payload) || self.rtp(payload, now_ns),
        };
        self.unrecognised += u64::from(!recognised);
    }

    fn rtp(&mut self, payload: &[u8], now_ns: u64) -> bool {
        let Some(header) = Header::read(payload) else {
            return false;
        };
        let recognised = self.rtp.packet(&header, now_ns, self.per_tick);
        if let Some(content) = media(payload) {
            self.ts.datagram(content);
        }
        recognised
    }
}

impl Arrivals {
    #[inline]
    fn note(&mut self, now_ns: u64) {
        let epoch = now_ns >> EPOCH_SHIFT;
        if epoch != self.epoch {
            self.gap_before_ns = if self.epoch + 1 == epoch {
                self.gap_ns
            } else {
                0
            };
            self.gap_ns = 0;
            self.epoch = epoch;
        }
        if self.last_ns != 0 {
            self.gap_ns = self.gap_ns.max(now_ns.saturating_sub(self.last_ns));
        }
        self.last_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpeg_ts;

    #[test]
    fn gaps_are_recorded_for_the_epoch_they_end_in_and_the_next() {
        let second = 1 << EPOCH_SHIFT;
        let mut watch = Watch::default();
        for at in [0, 10, 40, 60] {
            watch.record_arrival(5 * second + at);
        }
        assert_eq!(
            (watch.arrivals.gap_ns, watch.arrivals.gap_before_ns),
            (30, 0)
        );
        watch.record_arrival(6 * second);
        assert_eq!(watch.arrivals.gap_ns, second - 60);
        assert_eq!(watch.arrivals.gap_before_ns, 30);
        watch.record_arrival(9 * second);
        assert_eq!(watch.arrivals.gap_ns, 3 * second);
        assert_eq!(watch.arrivals.gap_before_ns, 0);
    }

    #[test]
    fn finds_ts_behind_contributors_and_extension() {
        let mut payload = vec![0x91, 33];
        payload.resize(12 + 4, 0);
        payload.extend([0xbe, 0xde, 0, 1, 1, 2, 3, 4]);
        payload.extend(mpeg_ts::packet(0x100, 0, mpeg_ts::PAYLOAD));
        let mut watch = Watch::new(Content::Auto, 90_000);
        watch.inspect(&payload, 1);
        assert_eq!((watch.ts.packets, watch.unrecognised), (1, 0));
        payload[3] = 1;
        watch.inspect(&payload[..20], 2);
        assert_eq!((watch.ts.packets, watch.unrecognised), (1, 0));
    }

    #[test]
    fn finds_ts_before_padding() {
        let mut payload = vec![0xa0, 33];
        payload.resize(12, 0);
        payload.extend(mpeg_ts::packet(0x100, 0, mpeg_ts::PAYLOAD));
        payload.extend([0, 0, 0, 4]);
        let mut watch = Watch::new(Content::Auto, 90_000);
        watch.inspect(&payload, 1);
        assert_eq!((watch.ts.packets, watch.unrecognised), (1, 0));
    }

    #[test]
    fn rtp_that_never_continues_is_not_recognised() {
        let mut watch = Watch::new(Content::Rtp, 90_000);
        for now_ns in 0..100 {
            watch.inspect(&[0x80; 12], now_ns);
        }
        assert_eq!((watch.rtp.packets, watch.unrecognised), (0, 99));
    }

    #[test]
    fn counts_what_it_does_not_recognise() {
        for (content, payload, recognised) in [
            (Content::Auto, &[0_u8; 188][..], false),
            (Content::Auto, &[0x80; 12], true),
            (Content::Ts, &[0x80; 12], false),
            (Content::Rtp, &[0x47; 188], false),
            (Content::Rtp, &[0x80; 11], false),
            (Content::None, &[0; 1], true),
        ] {
            let mut watch = Watch::new(content, 90_000);
            watch.inspect(payload, 1);
            assert_eq!(
                watch.unrecognised == 0,
                recognised,
                "{content:?} {payload:?}"
            );
        }
    }
}
