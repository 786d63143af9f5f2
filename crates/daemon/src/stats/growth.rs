//! Counters that should not grow: when one begins to, and when it has stopped.

use std::collections::BTreeMap;

/// One that has not grown for so long has stopped.
const QUIET_NS: u64 = 10_000_000_000;

/// Those that grow.
#[derive(Debug)]
pub(super) struct Growth<K>(BTreeMap<K, Growing>);

#[derive(Debug)]
struct Growing {
    since_ns: u64,
    last_ns: u64,
    packets: u64,
}

/// How much one grew before it stopped, and over how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) packets: u64,
    pub(super) over_ns: u64,
}

impl<K: Ord + Copy> Growth<K> {
    /// Notes by how much one grew; `true` if it did not before.
    pub(super) fn note(&mut self, now_ns: u64, which: K, packets: u64) -> bool {
        if packets == 0 {
            return false;
        }
        let mut begins = false;
        let growing = self.0.entry(which).or_insert_with(|| {
            begins = true;
            Growing {
                since_ns: now_ns,
                last_ns: now_ns,
                packets: 0,
            }
        });
        growing.packets += packets;
        growing.last_ns = now_ns;
        begins
    }

    /// Whether any grows, or has not stopped for long enough.
    pub(super) fn goes_on(&self) -> bool {
        !self.0.is_empty()
    }

    /// Takes those that have stopped.
    pub(super) fn take_ended(&mut self, now_ns: u64) -> Vec<(K, Ended)> {
        let mut ended = Vec::new();
        self.0.retain(|which, growing| {
            let goes_on = growing.last_ns + QUIET_NS > now_ns;
            if !goes_on {
                let (packets, over_ns) = (growing.packets, growing.last_ns - growing.since_ns);
                ended.push((*which, Ended { packets, over_ns }));
            }
            goes_on
        });
        ended
    }

    /// By how much one has grown that goes on.
    pub(super) fn packets(&self, which: K) -> Option<u64> {
        self.0.get(&which).map(|growing| growing.packets)
    }

    /// The one that grew most.
    pub(super) fn most(&self) -> Option<K> {
        let most = self.0.iter().max_by_key(|(_, growing)| growing.packets);
        most.map(|(which, _)| *which)
    }
}

impl<K> Default for Growth<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}
