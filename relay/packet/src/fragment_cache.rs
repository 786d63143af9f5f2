//! Which ports the first fragment of a datagram named, and what became of it where the others are to
//! follow: bounded, and forgetful, because identifications come back.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::verdict::Verdict;

/// Datagrams that are remembered; the oldest goes first. The kernel path's map has the same size.
pub const DATAGRAMS: usize = 8192;
/// For how long, in nanoseconds.
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
    /// In the order they were made, with their numbers.
    order: VecDeque<(u64, (u32, FragmentKey))>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u64,
    ports: (u16, u16),
    seen_ns: u64,
    fate: Option<Verdict>,
}

impl FragmentCache {
    /// Remembers the source and destination ports of a datagram that arrives on `ingress`.
    pub fn remember(&mut self, ingress: u32, key: FragmentKey, ports: (u16, u16), now_ns: u64) {
        if self.order.len() >= DATAGRAMS {
            self.forget_oldest();
        }
        let number = self.next;
        self.next += 1;
        let entry = Entry {
            number,
            ports,
            seen_ns: now_ns,
            fate: self.fate(ingress, key, now_ns),
        };
        self.entries.insert((ingress, key), entry);
        self.order.push_back((number, (ingress, key)));
    }

    /// Remembers what became of a first fragment whose ports are remembered.
    pub fn decide(&mut self, ingress: u32, key: FragmentKey, fate: Verdict) {
        if let Some(entry) = self.entries.get_mut(&(ingress, key)) {
            entry.fate = Some(fate);
        }
    }

    /// What became of a datagram's first fragment; `None` if that was not seen, not judged, or too long
    /// ago.
    pub fn fate(&self, ingress: u32, key: FragmentKey, now_ns: u64) -> Option<Verdict> {
        let entry = self.entries.get(&(ingress, key))?;
        let is_fresh = now_ns.saturating_sub(entry.seen_ns) < LIFETIME_NS;
        entry.fate.filter(|_| is_fresh)
    }

    /// The ports of the datagram that a later fragment belongs to; `None` if its first fragment
    /// was not seen, or too long ago.
    pub fn recall(&self, ingress: u32, key: FragmentKey, now_ns: u64) -> Option<(u16, u16)> {
        let entry = self.entries.get(&(ingress, key))?;
        (now_ns.saturating_sub(entry.seen_ns) < LIFETIME_NS).then_some(entry.ports)
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
    fn remembers_what_became_of_a_first_fragment_that_comes_again() {
        let mut memory = FragmentCache::default();
        memory.decide(1, key(7), Verdict::Passed);
        assert_eq!(memory.fate(1, key(7), 0), None);
        memory.remember(1, key(7), (1, 2), 0);
        assert_eq!(memory.fate(1, key(7), 0), None);
        memory.decide(1, key(7), Verdict::Forwarded);
        memory.remember(1, key(7), (1, 2), 100);
        assert_eq!(memory.fate(1, key(7), 100), Some(Verdict::Forwarded));
        assert_eq!(memory.fate(2, key(7), 100), None);
        assert_eq!(memory.fate(1, key(7), 100 + LIFETIME_NS), None);
        memory.remember(1, key(7), (1, 2), 100 + LIFETIME_NS);
        assert_eq!(memory.fate(1, key(7), 100 + LIFETIME_NS), None);
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
