//! The ports of first fragments, and what has arrived of their datagrams where legs are merged: bounded in size
//! and time, because identifications are reused.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Datagrams that are recorded; the oldest is dropped first. The kernel path's map has the same size.
pub const DATAGRAMS: usize = 8192;
/// How long they are recorded, in nanoseconds.
pub const LIFETIME_NS: u64 = 2_000_000_000;

/// What all fragments of one datagram share; the protocol is always UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey {
    /// Sender.
    pub source: IpAddr,
    /// Group.
    pub destination: IpAddr,
    /// Identification: 16 bits in IPv4, 32 in IPv6.
    pub id: u32,
}

/// The ports of first fragments.
#[derive(Clone, Debug, Default)]
pub struct FragmentCache {
    entries: HashMap<(u32, FragmentKey), Entry>,
    /// In the order in which they were recorded, with their numbers.
    order: VecDeque<(u64, (u32, FragmentKey))>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u64,
    ports: Option<(u16, u16)>,
    seen_ns: u64,
    pieces: [u32; 2],
}

impl FragmentCache {
    /// Records the source and destination ports of a datagram that arrives on `ingress`.
    pub fn remember(&mut self, ingress: u32, key: FragmentKey, ports: (u16, u16), now_ns: u64) {
        let entry = self.entry(ingress, key, now_ns);
        (entry.ports, entry.seen_ns) = (Some(ports), now_ns);
    }

    /// What a merge records of a datagram; zero at first.
    pub fn pieces(&mut self, ingress: u32, key: FragmentKey, now_ns: u64) -> &mut [u32; 2] {
        &mut self.entry(ingress, key, now_ns).pieces
    }

    fn entry(&mut self, ingress: u32, key: FragmentKey, now_ns: u64) -> &mut Entry {
        let name = (ingress, key);
        if self.fresh(name, now_ns).is_none() {
            if self.order.len() >= DATAGRAMS {
                self.forget_oldest();
            }
            self.entries.remove(&name);
            self.order.push_back((self.next, name));
            self.next += 1;
        }
        self.entries.entry(name).or_insert(Entry {
            number: self.next - 1,
            ports: None,
            seen_ns: now_ns,
            pieces: [0; 2],
        })
    }

    fn fresh(&self, name: (u32, FragmentKey), now_ns: u64) -> Option<&Entry> {
        let entry = self.entries.get(&name)?;
        (now_ns.saturating_sub(entry.seen_ns) < LIFETIME_NS).then_some(entry)
    }

    /// The ports of the datagram that a later fragment belongs to; `None` if its first fragment
    /// was not seen, or too long ago.
    pub fn recall(&self, ingress: u32, key: FragmentKey, now_ns: u64) -> Option<(u16, u16)> {
        self.fresh((ingress, key), now_ns)?.ports
    }

    fn forget_oldest(&mut self) {
        if let Some((number, key)) = self.order.pop_front()
            && self.entries.get(&key).is_some_and(|e| e.number == number)
        {
            self.entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u32) -> FragmentKey {
        FragmentKey {
            source: [10, 0, 0, 1].into(),
            destination: [239, 1, 1, 1].into(),
            id,
        }
    }

    #[test]
    fn forgets_the_oldest_of_too_many() {
        let mut memory = FragmentCache::default();
        for id in 0..=DATAGRAMS as u32 {
            memory.remember(1, key(id), (1, 2), 0);
        }
        assert_eq!(memory.recall(1, key(0), 0), None);
        assert_eq!(memory.recall(1, key(1), 0), Some((1, 2)));
        assert_eq!(memory.entries.len(), DATAGRAMS);
    }

    #[test]
    fn keeps_what_came_of_a_datagram_before_its_first_fragment() {
        let mut memory = FragmentCache::default();
        memory.pieces(1, key(7), 0)[1] = 5;
        assert_eq!(memory.recall(1, key(7), 0), None);
        memory.remember(1, key(7), (1, 2), 100);
        assert_eq!(memory.recall(1, key(7), 100), Some((1, 2)));
        assert_eq!(*memory.pieces(1, key(7), 100), [0, 5]);
        assert_eq!(*memory.pieces(2, key(7), 100), [0, 0]);
        assert_eq!(*memory.pieces(1, key(7), 100 + LIFETIME_NS), [0, 0]);
        assert_eq!(memory.recall(1, key(7), 100 + LIFETIME_NS), None);
        assert_eq!(memory.entries.len(), 2);
    }

    #[test]
    fn forgets_what_is_long_ago_and_tells_interfaces_apart() {
        let mut memory = FragmentCache::default();
        memory.remember(1, key(7), (1, 2), 100);
        assert_eq!(memory.recall(1, key(7), 100), Some((1, 2)));
        assert_eq!(memory.recall(2, key(7), 100), None);
        assert_eq!(memory.recall(1, key(7), 100 + LIFETIME_NS), None);
    }
}
