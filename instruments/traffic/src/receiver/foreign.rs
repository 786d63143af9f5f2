//! Streams of other tools: RTP by its sequence numbers, MPEG-TS by its continuity counters.
//!
//! A stream is what one sender sends to one group and port under one RTP source: two encoders use
//! the same PIDs, and often the same synchronisation source.

mod continuity;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;

use self::continuity::Continuity;
use packet::health::rtp::MAX_DROPOUT;
use packet::rtp;

use crate::framing::Framed;
use crate::sequence::Sequence;

/// Streams tracked at one endpoint: any sender can make up new ones. Those without a sequence yet
/// are evicted first.
const MAX_STREAMS: usize = 4096;
/// The furthest that a packet may be late (RFC 3550 A.1), and the furthest step ahead that is evidence
/// of RTP.
const MAX_MISORDER: u16 = 100;
/// Steps of that kind that are as good as two packets in sequence.
const MOST_STEPS: usize = 8;

/// What the sequence numbers show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gaps {
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
    /// RTP packets in sequence whose TS packets are not.
    pub(super) continuity_errors: u64,
    pub(super) restarts: u64,
}

/// Where a datagram came from, and to which of the endpoint's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) address: usize,
    pub(super) source: Option<SocketAddr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    origin: Origin,
    /// The synchronisation source; `None` for MPEG-TS without RTP.
    rtp: Option<u32>,
}

/// The foreign streams at one endpoint.
#[derive(Default)]
pub(super) struct Foreign {
    streams: HashMap<Key, Stream>,
    unchecked: u64,
}

/// One of them.
#[derive(Default)]
struct Stream {
    datagrams: u64,
    rtp: RtpSource,
    ts: Continuity,
    continuity_errors: u64,
}

impl Foreign {
    /// Accounts for one datagram; one that is neither RTP nor MPEG-TS has nothing to check.
    pub(super) fn take(&mut self, origin: Origin, framed: &Framed<'_>) {
        if framed.rtp.is_none() && framed.ts.is_none() {
            self.unchecked += 1;
            return;
        }
        let rtp = framed.rtp.map(|rtp| rtp.ssrc);
        let Some(stream) = self.stream(Key { origin, rtp }) else {
            self.unchecked += 1;
            return;
        };
        stream.datagrams += 1;
        let position = framed.rtp.map(|rtp| stream.rtp.take(rtp));
        match (position, framed.ts) {
            (None, Some(packets)) => stream.ts.take_all(packets),
            (Some(Position::Next), Some(packets)) => {
                stream.continuity_errors += u64::from(stream.ts.take(packets));
            }
            // RTP's numbers already show the gap.
            (Some(Position::Ahead), Some(packets)) => {
                stream.ts.take(packets);
            }
            _ => {}
        }
    }

    /// The stream of that key; `None` for a new one when there is no room.
    fn stream(&mut self, key: Key) -> Option<&mut Stream> {
        if self.streams.len() >= MAX_STREAMS && !self.streams.contains_key(&key) {
            let unchecked = &mut self.unchecked;
            self.streams.retain(|_, stream| {
                let stays = stream.is_established();
                *unchecked += if stays { 0 } else { stream.datagrams };
                stays
            });
            if self.streams.len() >= MAX_STREAMS {
                return None;
            }
        }
        Some(self.streams.entry(key).or_default())
    }

    pub(super) fn gaps(&self) -> Gaps {
        let mut gaps = Gaps::default();
        for stream in self.streams.values() {
            gaps.add(stream.rtp.gaps());
            gaps.add(stream.ts.gaps());
            gaps.continuity_errors += stream.continuity_errors;
        }
        gaps
    }

    /// Datagrams without anything to check, or of senders that cannot be followed.
    pub(super) fn unchecked(&self) -> u64 {
        let streams = self.streams.values();
        let unvalidated = streams.map(|stream| stream.rtp.unvalidated);
        self.unchecked + unvalidated.sum::<u64>()
    }
}

impl Stream {
    /// Whether it is a stream, and not bytes that look like one.
    fn is_established(&self) -> bool {
        let is_rtp = self.rtp.unvalidated > 0 || self.rtp.sequence.is_some();
        self.rtp.sequence.is_some() || !is_rtp && self.datagrams > 1
    }
}

impl Gaps {
    pub(super) fn of(sequence: &Sequence) -> Self {
        Self {
            lost: sequence.lost(),
            duplicated: sequence.duplicated(),
            reordered: sequence.reordered(),
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        // A sender of forged numbers can make any number of them missing.
        self.lost = self.lost.saturating_add(other.lost);
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.continuity_errors += other.continuity_errors;
        self.restarts += other.restarts;
    }
}

/// An RTP packet's position relative to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Right behind the last one.
    Next,
    /// Further ahead, or the first.
    Ahead,
    /// Late, a copy, or not validated.
    Behind,
}

/// One synchronisation source. Valid only after two packets in sequence (RFC 3550 appendix A.1),
/// because any payload may look like RTP by its first bits; or after some small steps ahead, because
/// where half of a stream is lost no two may be in sequence. A jump too far to be loss or lateness is
/// a restart once the packets there are valid as well; where those numbers were seen before, it takes
/// so many in a row that they are no burst of copies.
#[derive(Default)]
struct RtpSource {
    /// Numbers that may be the beginning of a sequence, each ahead of the one before.
    steps: Vec<u16>,
    unvalidated: u64,
    sequence: Option<Sequence>,
    past: Gaps,
}

impl RtpSource {
    fn take(&mut self, rtp: rtp::Header) -> Position {
        let mut was_seen = false;
        if let Some(sequence) = &mut self.sequence {
            let highest = sequence.highest();
            let number = extend(highest, rtp.sequence);
            let is_late = highest.wrapping_sub(number) <= u64::from(MAX_MISORDER);
            if is_late || number.wrapping_sub(highest) < u64::from(MAX_DROPOUT) {
                self.unvalidated -= record_copies(sequence, &mut self.steps);
                sequence.record(number);
                return match number.checked_sub(highest) {
                    Some(1) => Position::Next,
                    Some(2..) => Position::Ahead,
                    _ => Position::Behind,
                };
            }
            was_seen = sequence.has(number);
        }
        self.unvalidated += 1;
        if !self.begins_sequence(rtp.sequence, was_seen) {
            return Position::Behind;
        }
        self.unvalidated -= self.steps.len() as u64;
        if let Some(before) = self.sequence.replace(sequence_of(&self.steps)) {
            self.past.add(Gaps::of(&before));
            self.past.restarts += 1;
        }
        self.steps.clear();
        Position::Ahead
    }

    /// Records a number that no sequence explains; returns whether it begins one.
    fn begins_sequence(&mut self, number: u16, was_seen: bool) -> bool {
        let Some(&last) = self.steps.last() else {
            self.steps.push(number);
            return false;
        };
        let ahead = number.wrapping_sub(last);
        match ahead {
            1..=MAX_MISORDER => self.steps.push(number),
            // A copy, or late: no evidence.
            0 => {}
            _ if ahead.wrapping_neg() <= MAX_MISORDER => {}
            _ => self.steps = vec![number],
        }
        if was_seen {
            return self.steps.len() > usize::from(MAX_MISORDER);
        }
        ahead == 1 || self.steps.len() >= MOST_STEPS
    }

    fn gaps(&self) -> Gaps {
        let mut gaps = self.past;
        gaps.add(self.sequence.as_ref().map(Gaps::of).unwrap_or_default());
        gaps
    }
}

/// Resolves a suspected restart when the old sequence continues: the numbers it has seen were copies.
/// Returns their count.
fn record_copies(sequence: &mut Sequence, steps: &mut Vec<u16>) -> u64 {
    let before = sequence.duplicated();
    for number in steps.drain(..) {
        let number = extend(sequence.highest(), number);
        if sequence.has(number) {
            sequence.record(number);
        }
    }
    sequence.duplicated() - before
}

/// The sequence that consists of these numbers.
fn sequence_of(steps: &[u16]) -> Sequence {
    // Numbers start one round up, so that an earlier one is never below zero.
    let first = 0x1_0000 + u64::from(steps.first().copied().unwrap_or(0));
    let mut sequence = Sequence::starting_at(first);
    for &step in steps.iter().skip(1) {
        sequence.record(extend(sequence.highest(), step));
    }
    sequence
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
