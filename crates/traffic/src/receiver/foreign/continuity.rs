//! Continuity counters of MPEG-TS packets, by PID (ISO/IEC 13818-1 section 2.4.3.3).
//!
//! Four bits cannot tell how much is missing: a datagram before which something is missing counts
//! as one lost.

use std::collections::HashMap;

use super::Gaps;
use crate::framing::{self, Ts};

/// Stuffing; its counter means nothing.
const NULL_PID: u16 = 0x1fff;
/// PIDs followed in one stream: any sender can use all 8,191.
const MAX_PIDS: usize = 1024;
/// Datagrams back that a copy is known.
const RECENT: usize = 16;

/// The counters of one stream.
#[derive(Default)]
pub(super) struct Continuity {
    counters: HashMap<u16, u8>,
    /// What the counters were before the datagram at hand.
    undo: Vec<(u16, Option<u8>)>,
    /// Checksums of the latest datagrams.
    recent: [Option<u32>; RECENT],
    taken: usize,
    lost: u64,
    duplicated: u64,
}

impl Continuity {
    /// Takes in the TS packets of one datagram, where they are all there is to go by.
    pub(super) fn take_all(&mut self, packets: &[u8]) {
        let checksum = Some(crc32fast::hash(packets));
        if !self.take(packets) {
            self.recent[self.taken % RECENT] = checksum;
            self.taken += 1;
        } else if self.recent.contains(&checksum) {
            // It is the copy that jumps back, not the stream.
            self.duplicated += 1;
            while let Some((pid, before)) = self.undo.pop() {
                match before {
                    Some(counter) => self.counters.insert(pid, counter),
                    None => self.counters.remove(&pid),
                };
            }
        } else {
            self.lost += 1;
            self.recent[self.taken % RECENT] = checksum;
            self.taken += 1;
        }
    }

    /// Takes in the TS packets of one datagram; says whether something is missing before or
    /// between them.
    pub(super) fn take(&mut self, packets: &[u8]) -> bool {
        self.undo.clear();
        let mut gap = false;
        for ts in framing::ts_packets(packets).filter(|ts| ts.pid != NULL_PID) {
            gap |= self.follow(ts);
        }
        gap
    }

    fn follow(&mut self, ts: Ts) -> bool {
        let is_known = self.counters.contains_key(&ts.pid);
        if !is_known && self.counters.len() >= MAX_PIDS {
            return false;
        }
        let before = self.counters.insert(ts.pid, ts.counter);
        self.undo.push((ts.pid, before));
        // A packet may be sent twice in a row, and without payload the counter stands still.
        before.filter(|_| !ts.may_jump).is_some_and(|before| {
            let next = before.wrapping_add(1) & 0x0f;
            ts.counter != before && !(ts.has_payload && ts.counter == next)
        })
    }

    pub(super) fn gaps(&self) -> Gaps {
        Gaps {
            lost: self.lost,
            duplicated: self.duplicated,
            ..Gaps::default()
        }
    }
}
