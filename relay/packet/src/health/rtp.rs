//! RTP: lost, late and duplicate packets, and how evenly packets arrive (RFC 3550, appendices A.1 and A.8).
//!
//! The last 64 sequence numbers are recorded: a packet that did not arrive within them is lost, one that
//! arrived late within them was only reordered, and one that arrived again is a duplicate. So every counter
//! only grows, and a loss is counted when 64 later packets have arrived.

use crate::rtp::{Header, clock_hz};

/// The least step forward that counts as a restart of the sender (RFC 3550 A.1).
pub const MAX_DROPOUT: u16 = 3000;
/// Numbers within which the next packet of a source that is not followed yet continues from the one before.
pub const CONFIRM: u16 = 16;
/// Packets of others that may be between two of a source that is not followed yet.
pub const PATIENCE: u16 = 8;
/// Sequence numbers that are recorded.
pub const WINDOW: u16 = 64;
/// Ticks are counted in nanoseconds times 2 to this power.
const TICK_SHIFT: u32 = 16;

/// Follows the source that sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rtp {
    /// Packets of the sources followed, each once; the first of a source as soon as the second has arrived.
    pub packets: u64,
    /// Packets that never arrived.
    pub lost: u64,
    /// Packets that arrived after a later one.
    pub reordered: u64,
    /// Packets that arrived again.
    pub duplicated: u64,
    /// Times the sequence numbers began anew without another source.
    pub restarts: u64,
    /// Times another source took over.
    pub ssrc_changes: u64,
    /// Interarrival jitter in nanoseconds, times 16.
    pub jitter_ns_16: u64,
    /// The source.
    pub ssrc: u32,
    /// Payload type of its last packet.
    pub payload_type: u8,
    /// Whether there is a source yet.
    pub is_followed: bool,
    /// How many packets of others arrived since the candidate, plus one; 0 without a candidate.
    has_candidate: u16,
    highest: u16,
    candidate_next: u16,
    candidate_ssrc: u32,
    timestamp: u32,
    arrival_ns: u64,
    /// Bit n: whether `highest - n` arrived.
    window: u64,
}

/// Nanoseconds per tick, times 2^16.
pub fn per_tick(clock_hz: u32) -> u64 {
    (1_000_000_000 << TICK_SHIFT) / u64::from(clock_hz.max(1))
}

impl Rtp {
    /// Takes one packet; `other` is the tick of payload types without a defined one. `false` if nothing is
    /// followed and it continues nothing.
    pub fn packet(&mut self, header: &Header, now_ns: u64, other: u64) -> bool {
        if !self.is_followed || header.ssrc != self.ssrc {
            let is_first = self.has_candidate == 0 || self.continues(header);
            if self.follows_candidate(header) {
                self.ssrc_changes += u64::from(self.is_followed);
                self.follow(header, now_ns);
            }
            return self.is_followed || is_first;
        }
        let ahead = header.sequence.wrapping_sub(self.highest);
        let behind = self.highest.wrapping_sub(header.sequence);
        if ahead != 0 && ahead < MAX_DROPOUT {
            self.advance(ahead);
            self.highest = header.sequence;
        } else if behind < WINDOW {
            let bit = 1 << behind;
            if self.window & bit != 0 {
                self.duplicated += 1;
                self.has_candidate = 0;
                return true;
            }
            self.window |= bit;
            self.reordered += 1;
        } else {
            if self.follows_candidate(header) {
                self.restarts += 1;
                self.follow(header, now_ns);
            }
            return true;
        }
        self.has_candidate = 0;
        self.packets += 1;
        self.payload_type = header.payload_type;
        self.time(header, now_ns, other);
        true
    }

    /// Returns whether the packet continues the candidate, even after a loss.
    const fn continues(&self, header: &Header) -> bool {
        let ahead = header.sequence.wrapping_sub(self.candidate_next);
        self.has_candidate > 0 && header.ssrc == self.candidate_ssrc && ahead < CONFIRM
    }

    /// Returns whether the packet is the second of two in a row of the candidate. Some packets of others may be
    /// between them: sources that send in turn.
    fn follows_candidate(&mut self, header: &Header) -> bool {
        let continues = self.continues(header);
        if continues && header.sequence == self.candidate_next {
            return true;
        }
        if self.has_candidate > 0 && !continues && self.has_candidate < PATIENCE {
            self.has_candidate += 1;
            return false;
        }
        self.has_candidate = 1;
        self.candidate_ssrc = header.ssrc;
        self.candidate_next = header.sequence.wrapping_add(1);
        false
    }

    fn follow(&mut self, header: &Header, now_ns: u64) {
        self.is_followed = true;
        self.has_candidate = 0;
        self.ssrc = header.ssrc;
        self.payload_type = header.payload_type;
        self.highest = header.sequence;
        self.window = u64::MAX;
        self.timestamp = header.timestamp;
        self.arrival_ns = now_ns;
        // This one and the candidate.
        self.packets += 2;
    }

    /// Moves the window; numbers that leave it without having arrived are lost.
    fn advance(&mut self, step: u16) {
        if step < WINDOW {
            let leaving = self.window >> (WINDOW - step);
            self.lost += u64::from(step) - u64::from(leaving.count_ones());
            self.window = self.window << step | 1;
        } else {
            self.lost += u64::from(self.window.count_zeros()) + u64::from(step - WINDOW);
            self.window = 1;
        }
    }

    /// RFC 3550 A.8, in nanoseconds instead of ticks.
    fn time(&mut self, header: &Header, now_ns: u64, other: u64) {
        let tick = clock_hz(header.payload_type).map_or(other, per_tick);
        let ticks = header.timestamp.wrapping_sub(self.timestamp).cast_signed();
        let sent = (i64::from(ticks) * tick.cast_signed()) >> TICK_SHIFT;
        let elapsed = now_ns.wrapping_sub(self.arrival_ns).cast_signed();
        let deviation = elapsed.wrapping_sub(sent).unsigned_abs();
        let smoothed = (self.jitter_ns_16 + 8) >> 4;
        self.jitter_ns_16 = (self.jitter_ns_16 + deviation).saturating_sub(smoothed);
        self.timestamp = header.timestamp;
        self.arrival_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(ssrc: u32, sequence: u16) -> Header {
        Header {
            payload_type: 96,
            sequence,
            timestamp: u32::from(sequence) * 90,
            ssrc,
        }
    }

    fn run(sequences: impl IntoIterator<Item = u16>) -> Rtp {
        let mut rtp = Rtp::default();
        for sequence in sequences {
            rtp.packet(
                &header(7, sequence),
                u64::from(sequence) * 1_000_000,
                per_tick(90_000),
            );
        }
        rtp
    }

    #[test]
    fn counts_nothing_while_all_arrive_in_order_even_around_zero() {
        let rtp = run((65_000..=u16::MAX).chain(0..1000));
        assert_eq!((rtp.packets, rtp.lost, rtp.reordered), (1536, 0, 0));
        assert_eq!((rtp.duplicated, rtp.restarts, rtp.ssrc_changes), (0, 0, 0));
    }

    #[test]
    fn counts_a_loss_once_64_later_packets_have_arrived() {
        let without = |last| (0..=last).filter(|n| ![10, 11, 12].contains(n));
        assert_eq!(run(without(73)).lost, 0);
        assert_eq!(run(without(74)).lost, 1);
        assert_eq!(run(without(200)).lost, 3);
    }

    #[test]
    fn counts_a_gap_longer_than_the_window() {
        let rtp = run((0..100).chain(1100..1300));
        assert_eq!((rtp.lost, rtp.packets), (1000, 300));
    }

    #[test]
    fn late_packets_are_reordered_not_lost() {
        let rtp = run((0..50).chain([52, 53, 51, 50]).chain(54..200));
        assert_eq!((rtp.reordered, rtp.lost, rtp.duplicated), (2, 0, 0));
    }

    #[test]
    fn packets_that_arrive_again_are_duplicates() {
        let rtp = run((0..50).chain([49, 40, 40]).chain(50..200));
        assert_eq!((rtp.duplicated, rtp.reordered, rtp.lost), (3, 0, 0));
        assert_eq!(rtp.packets, 200);
    }

    #[test]
    fn a_sequence_that_begins_anew_is_a_restart() {
        let rtp = run((0..100).chain(20_000..20_100));
        assert_eq!((rtp.restarts, rtp.lost, rtp.packets), (1, 0, 200));
        let rtp = run((0..100).chain([20_000]).chain(100..200));
        assert_eq!((rtp.restarts, rtp.lost, rtp.packets), (0, 0, 200));
    }

    #[test]
    fn of_sources_that_send_in_turn_one_is_followed() {
        for sources in [2, 3, 5] {
            let mut rtp = Rtp::default();
            for sequence in 0..100 {
                for ssrc in 0..sources {
                    // Also under one SSRC, with distant numbers.
                    let (ssrc, ahead) = [(ssrc, 0), (7, ssrc as u16 * 5_000)][sources as usize % 2];
                    rtp.packet(&header(ssrc, sequence + ahead), 0, 1);
                }
            }
            assert_eq!((rtp.packets, rtp.lost, rtp.ssrc_changes), (100, 0, 0));
            assert_eq!(rtp.restarts, 0);
        }
    }

    #[test]
    fn another_source_takes_over_after_two_packets() {
        let mut rtp = run(0..100);
        rtp.packet(&header(8, 500), 0, 1);
        rtp.packet(&header(7, 100), 0, 1);
        rtp.packet(&header(8, 501), 0, 1);
        assert_eq!((rtp.ssrc, rtp.ssrc_changes), (7, 0));
        rtp.packet(&header(8, 502), 0, 1);
        assert_eq!((rtp.ssrc, rtp.ssrc_changes, rtp.lost), (8, 1, 0));
        // The first packet of the other source, which arrived alone, is not counted.
        assert_eq!(rtp.packets, 101 + 2);
    }

    #[test]
    fn jitter_is_that_of_rfc_3550() {
        let steady = run(0..100);
        // A millisecond is 90 ticks and the tick is not a whole number of nanoseconds.
        assert!(steady.jitter_ns_16 < 16 * 50, "{}", steady.jitter_ns_16);
        let mut rtp = run(0..2);
        let (mut jitter, mut last) = (0.0_f64, 0.0_f64);
        for sequence in 2..60_u16 {
            let transit = if sequence % 2 == 0 { 1.0e6 } else { 0.0 };
            let now = f64::from(sequence) * 1.0e6 + transit;
            rtp.packet(&header(7, sequence), now as u64, per_tick(90_000));
            jitter += ((transit - last).abs() - jitter) / 16.0;
            last = transit;
        }
        let counted = rtp.jitter_ns_16 as f64 / 16.0;
        assert!((counted - jitter).abs() < 100.0, "{counted} {jitter}");
    }
}
