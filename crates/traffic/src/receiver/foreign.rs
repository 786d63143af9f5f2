//! Streams of other tools: RTP by its sequence numbers, bare MPEG-TS by its continuity counters.

use std::collections::HashMap;

use crate::framing::{self, Framed, Rtp, Ts};
use crate::sequence::Sequence;

/// RTP sources remembered at one endpoint: any sender can make up new ones. Those that have shown
/// no sequence yet make room first.
const MAX_SOURCES: usize = 4096;

/// What the sequence numbers said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gaps {
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
}

/// The foreign streams at one endpoint.
#[derive(Default)]
pub(super) struct Foreign {
    rtp: HashMap<u32, RtpSource>,
    continuity: Continuity,
}

impl Foreign {
    /// Takes in one datagram; one that is neither RTP nor MPEG-TS has nothing to check.
    pub(super) fn take(&mut self, framed: &Framed<'_>) {
        match (framed.rtp, framed.ts) {
            (Some(rtp), _) => self.take_rtp(rtp),
            (None, Some(packets)) => self.continuity.take(framing::ts_packets(packets)),
            (None, None) => {}
        }
    }

    fn take_rtp(&mut self, rtp: Rtp) {
        if self.rtp.len() >= MAX_SOURCES && !self.rtp.contains_key(&rtp.source) {
            self.rtp.retain(|_, source| source.is_believed());
            if self.rtp.len() >= MAX_SOURCES {
                return;
            }
        }
        self.rtp.entry(rtp.source).or_default().take(rtp);
    }

    pub(super) fn gaps(&self) -> Gaps {
        let mut gaps = Gaps {
            lost: self.continuity.lost,
            ..Gaps::default()
        };
        for source in self.rtp.values() {
            let (past, sequence) = (source.past, source.sequence.as_ref());
            gaps.add(past);
            gaps.add(sequence.map(Gaps::of).unwrap_or_default());
        }
        gaps
    }
}

impl Gaps {
    pub(super) fn of(sequence: &Sequence) -> Self {
        Self {
            lost: sequence.lost(),
            duplicated: sequence.duplicated(),
            reordered: sequence.reordered(),
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
    }
}

/// One synchronisation source. Believed only after two packets in sequence (RFC 3550 appendix
/// A.1), because any payload may look like RTP by its first bits; a jump too far to be loss is a
/// restart.
#[derive(Default)]
struct RtpSource {
    last: Option<u16>,
    sequence: Option<Sequence>,
    past: Gaps,
}

impl RtpSource {
    /// Whether it is one, and not bytes that look like one; or was before a restart.
    fn is_believed(&self) -> bool {
        self.sequence.is_some() || self.past != Gaps::default()
    }

    fn take(&mut self, rtp: Rtp) {
        let before = self.last.replace(rtp.sequence);
        if let Some(sequence) = &mut self.sequence {
            let number = extend(sequence.highest(), rtp.sequence);
            if sequence.is_plausible(number) {
                sequence.record(number);
                return;
            }
            self.past.add(Gaps::of(sequence));
            self.sequence = None;
        } else if before.is_some_and(|before| before.wrapping_add(1) == rtp.sequence) {
            // Numbers start one round up, so that an earlier one is never below zero.
            let mut sequence = Sequence::starting_at(0x1_0000 + u64::from(rtp.sequence) - 1);
            sequence.record(0x1_0000 + u64::from(rtp.sequence));
            self.sequence = Some(sequence);
        }
    }
}

/// The number nearest to `highest` whose lower 16 bits are `low`.
fn extend(highest: u64, low: u16) -> u64 {
    let ahead = low.wrapping_sub(highest as u16);
    if ahead < 0x8000 {
        highest + u64::from(ahead)
    } else {
        highest.saturating_sub(u64::from(ahead.wrapping_neg()))
    }
}

/// Continuity counters by PID. Four bits cannot tell how much is missing: a datagram before which
/// something is missing counts as one lost.
#[derive(Default)]
struct Continuity {
    counters: HashMap<u16, u8>,
    lost: u64,
}

/// Stuffing; its counter means nothing (ISO/IEC 13818-1 section 2.4.3.3).
const NULL_PID: u16 = 0x1fff;

impl Continuity {
    fn take(&mut self, packets: impl Iterator<Item = Ts>) {
        let mut gap = false;
        for ts in packets.filter(|ts| ts.pid != NULL_PID) {
            let before = self.counters.insert(ts.pid, ts.counter);
            let Some(before) = before.filter(|_| !ts.may_jump) else {
                continue;
            };
            // A packet may be sent twice in a row, and without payload the counter stands still.
            let next = before.wrapping_add(1) & 0x0f;
            gap |= ts.counter != before && !(ts.has_payload && ts.counter == next);
        }
        self.lost += u64::from(gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::{Framing, recognise};
    use crate::payload::Stamp;

    fn after(framing: Framing, numbers: impl IntoIterator<Item = u64>) -> Gaps {
        let mut foreign = Foreign::default();
        for sequence in numbers {
            let mut payload = vec![0; framing.usual_size()];
            let stamp = Stamp {
                run: 1,
                stream: 0,
                sequence,
                intended_ns: 0,
            };
            framing.write(&mut payload, &stamp);
            foreign.take(&recognise(&payload));
        }
        foreign.gaps()
    }

    fn gaps(lost: u64, duplicated: u64, reordered: u64) -> Gaps {
        Gaps {
            lost,
            duplicated,
            reordered,
        }
    }

    #[test]
    fn rtp_numbers_run_on_over_their_end() {
        assert_eq!(after(Framing::Rtp, 65_530..65_550), gaps(0, 0, 0));
        assert_eq!(
            after(Framing::Rtp, [65_533, 65_534, 65_538, 65_537]),
            gaps(2, 0, 1)
        );
        assert_eq!(after(Framing::RtpTs, [7, 8, 8, 10]), gaps(1, 1, 0));
    }

    #[test]
    fn an_rtp_restart_is_not_loss() {
        let restarted = (0..10).chain(30_000..30_010);
        assert_eq!(after(Framing::Rtp, restarted), gaps(0, 0, 0));
    }

    #[test]
    fn bytes_that_only_look_like_rtp_are_not_believed() {
        let numbers = (0..100).map(|n| n * 7919 % 65_536);
        assert_eq!(after(Framing::Rtp, numbers), gaps(0, 0, 0));
    }

    #[test]
    fn sources_made_up_by_a_sender_are_bounded() {
        let mut foreign = Foreign::default();
        let rtp = |source, sequence| Rtp { source, sequence };
        (0..3).for_each(|sequence| foreign.take_rtp(rtp(7, sequence)));
        for source in 100..100 + 3 * MAX_SOURCES as u32 {
            foreign.take_rtp(rtp(source, 1));
        }
        assert!(foreign.rtp.len() <= MAX_SOURCES, "{}", foreign.rtp.len());
        foreign.take_rtp(rtp(7, 4));
        assert_eq!(foreign.gaps(), gaps(1, 0, 0), "the steady one is forgotten");
    }

    #[test]
    fn a_gap_in_continuity_is_one_lost_datagram() {
        assert_eq!(after(Framing::Ts, 0..100), gaps(0, 0, 0));
        assert_eq!(after(Framing::Ts, [0, 1, 3, 4, 9, 10]), gaps(2, 0, 0));
    }
}
