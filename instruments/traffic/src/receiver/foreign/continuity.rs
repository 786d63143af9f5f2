//! Continuity counters of MPEG-TS packets, by PID (ISO/IEC 13818-1 section 2.4.3.3).
//!
//! Four bits cannot show how much is missing: a datagram before which something is missing counts
//! as one lost.

use std::collections::HashMap;

use packet::mpeg_ts::{Header, NULL_PID, PAYLOAD};

use super::Gaps;
use crate::framing;

/// PIDs followed in one stream: any sender can use all 8,191.
const MAX_PIDS: usize = 1024;
/// How many datagrams back a copy is recognised.
const RECENT: usize = 16;

/// A counter as it was before a datagram; `None` for a PID that was new.
type Before = (u16, Option<u8>);

/// The counters of one stream.
#[derive(Default)]
pub(super) struct Continuity {
    counters: HashMap<u16, u8>,
    /// What the counters were before the datagram at hand.
    undo: Vec<Before>,
    /// What they were before the last datagram, where that may have been a copy.
    suspect: Option<Vec<Before>>,
    /// Checksums of the latest datagrams.
    recent: [Option<u32>; RECENT],
    remembered: usize,
    lost: u64,
    duplicated: u64,
}

impl Continuity {
    /// Records the TS packets of one datagram that has no other numbers.
    pub(super) fn take_all(&mut self, packets: &[u8]) {
        let checksum = Some(crc32fast::hash(packets));
        if let Some(suspect) = self.suspect.take() {
            if !self.take(packets) {
                self.lost += 1;
                self.remember(checksum);
                return;
            }
            // The previous datagram jumped back, not the stream.
            self.duplicated += 1;
            self.restore_last();
            self.restore(suspect);
        }
        let is_gap = self.take(packets);
        if is_gap && self.is_last(checksum) {
            self.duplicated += 1;
            self.restore_last();
        } else if is_gap && self.recent.contains(&checksum) {
            // A copy, or a gap in a stream whose content repeats itself: the next datagram decides.
            self.suspect = Some(std::mem::take(&mut self.undo));
        } else {
            self.lost += u64::from(is_gap);
            self.remember(checksum);
        }
    }

    fn is_last(&self, checksum: Option<u32>) -> bool {
        self.recent[self.remembered.wrapping_sub(1) % RECENT] == checksum
    }

    fn remember(&mut self, checksum: Option<u32>) {
        self.recent[self.remembered % RECENT] = checksum;
        self.remembered = self.remembered.wrapping_add(1);
    }

    fn restore_last(&mut self) {
        let undo = std::mem::take(&mut self.undo);
        self.restore(undo);
    }

    fn restore(&mut self, mut undo: Vec<Before>) {
        while let Some((pid, before)) = undo.pop() {
            match before {
                Some(counter) => self.counters.insert(pid, counter),
                None => self.counters.remove(&pid),
            };
        }
    }

    /// Records the TS packets of one datagram; returns whether something is missing before or between
    /// them.
    pub(super) fn take(&mut self, packets: &[u8]) -> bool {
        self.undo.clear();
        let mut gap = false;
        for ts in framing::ts_packets(packets).filter(|ts| ts.pid != NULL_PID) {
            gap |= self.follow(ts);
        }
        gap
    }

    fn follow(&mut self, ts: Header) -> bool {
        let is_tracked = self.counters.contains_key(&ts.pid);
        if !is_tracked && self.counters.len() >= MAX_PIDS {
            return false;
        }
        let before = self.counters.insert(ts.pid, ts.counter);
        self.undo.push((ts.pid, before));
        // A packet may be sent twice in a row, and without payload the counter stands still.
        before.filter(|_| !ts.may_jump).is_some_and(|before| {
            let next = before.wrapping_add(1) & 0x0f;
            ts.counter != before && !(ts.adaptation & PAYLOAD != 0 && ts.counter == next)
        })
    }

    pub(super) fn gaps(&self) -> Gaps {
        Gaps {
            lost: self.lost,
            duplicated: self.duplicated + u64::from(self.suspect.is_some()),
            ..Gaps::default()
        }
    }
}
