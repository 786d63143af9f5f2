//! The senders of questions that reflecting rules have relayed, so that answers are returned to them: the
//! worker that takes an answer may be another than the one that took the question, and the supervisor may
//! have been replaced in between.
//!
//! A table of sets, in each of which the oldest entry gives way. An entry's first word is odd while it is
//! being written; readers check it before and after, so none takes half an entry. A worker that dies in
//! between costs an entry.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use bpf::layout::ASKERS;
use packet::answer::LIFETIME_NS;

use super::state::SharedState;

/// Entries of a set.
const WAYS: usize = 8;
const SETS: usize = ASKERS as usize / WAYS;

/// Where an answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerEnd {
    /// The interface that it arrives on.
    pub(crate) interface: u32,
    /// This host's address, from which the question's copy was sent, and the requester's port.
    pub(crate) to: SocketAddr,
}

/// The sender of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Requester {
    /// The interface that the question arrived on.
    pub(crate) interface: u32,
    /// The sender's address and port.
    pub(crate) from: SocketAddr,
    /// The link-layer address that the question was sent from; zeros where there are none.
    pub(crate) mac: [u8; 6],
    /// The destination of the question.
    pub(crate) group: SocketAddr,
}

impl SharedState {
    /// Records a question that is about to leave. Of two at one end the later one counts.
    pub(crate) fn note_requester(&self, end: AnswerEnd, requester: &Requester, now_ns: u64) {
        let key = key(end);
        let free = |entry: &&[AtomicU64]| sequence(entry) & 1 == 0;
        let rank = |entry: &&[AtomicU64]| {
            if words::<3>(entry, 1) == key {
                0
            } else {
                word(entry, 4) + 1
            }
        };
        let Some(entry) = self.set(&key).filter(free).min_by_key(rank) else {
            return;
        };
        let [high, low] = halves(requester.from.ip());
        let [group_high, group_low] = halves(requester.group.ip());
        let ports = u64::from(requester.from.port()) << 16 | u64::from(requester.group.port());
        let [a, b, c, d, e, f] = requester.mac;
        let values = [
            key[0],
            key[1],
            key[2],
            now_ns,
            u64::from(requester.interface) << 32 | ports,
            u64::from_be_bytes([0, 0, a, b, c, d, e, f]),
            high,
            low,
            group_high,
            group_low,
        ];
        let Some((first, rest)) = entry.split_first() else {
            return;
        };
        let before = first.load(Ordering::Relaxed) & !1;
        let taken =
            first.compare_exchange(before, before + 1, Ordering::Acquire, Ordering::Relaxed);
        // Another worker is writing here: a question at the same moment.
        if taken.is_err() {
            return;
        }
        fence(Ordering::Release);
        for (word, value) in rest.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        first.store(before.wrapping_add(2), Ordering::Release);
    }

    /// The sender of the last question that is answered at an end, if that is not too long ago.
    pub(crate) fn requester(&self, end: AnswerEnd, now_ns: u64) -> Option<Requester> {
        let key = key(end);
        let read = |entry: &[AtomicU64]| {
            let before = sequence(&entry);
            let values = words::<10>(&entry, 1);
            fence(Ordering::Acquire);
            let is_whole = before & 1 == 0 && sequence(&entry) == before;
            (is_whole && values[..3] == key).then_some(values)
        };
        let entries = self.set(&key).filter_map(read);
        let values = entries.max_by_key(|values| values[3])?;
        if now_ns.saturating_sub(values[3]) >= LIFETIME_NS {
            return None;
        }
        let [.., ports, mac, high, low, group_high, group_low] = values;
        let [_, _, mac @ ..] = mac.to_be_bytes();
        Some(Requester {
            interface: (ports >> 32) as u32,
            from: SocketAddr::new(address([high, low]), (ports >> 16) as u16),
            mac,
            group: SocketAddr::new(address([group_high, group_low]), ports as u16),
        })
    }

    /// The entries that an end may be in.
    fn set(&self, key: &[u64; 3]) -> impl Iterator<Item = &[AtomicU64]> {
        let mixed = key.iter().fold(0_u64, |mixed, word| {
            (mixed ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        });
        let set = (mixed >> 32) as usize % SETS;
        let ways = set * WAYS..(set + 1) * WAYS;
        ways.map(|entry| self.requesters.words(entry as u32))
    }
}

fn sequence(entry: &&[AtomicU64]) -> u64 {
    entry.first().map_or(1, |word| word.load(Ordering::Acquire))
}

fn word(entry: &&[AtomicU64], at: usize) -> u64 {
    entry.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
}

fn words<const N: usize>(entry: &&[AtomicU64], first: usize) -> [u64; N] {
    std::array::from_fn(|offset| word(entry, first + offset))
}

/// An end as words. Never zeros, unlike entries that were never written.
fn key(AnswerEnd { interface, to }: AnswerEnd) -> [u64; 3] {
    let [high, low] = halves(to.ip());
    [u64::from(interface) << 16 | u64::from(to.port()), high, low]
}

fn halves(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

fn address([high, low]: [u64; 2]) -> IpAddr {
    let address = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
    address.to_ipv4_mapped().map_or(address.into(), IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use sys::shared_memory::Region;

    use super::*;

    fn state() -> SharedState {
        SharedState::create().unwrap().1
    }

    fn end(port: u16) -> AnswerEnd {
        AnswerEnd {
            interface: 3,
            to: SocketAddr::new("10.0.1.1".parse().unwrap(), port),
        }
    }

    fn requester(from: &str) -> Requester {
        Requester {
            interface: 2,
            from: from.parse().unwrap(),
            mac: [2, 0, 0, 0, 0, 9],
            group: "239.255.255.250:1900".parse().unwrap(),
        }
    }

    #[test]
    fn the_latest_requester_at_an_end_is_retained_for_a_while() {
        let state = state();
        let (first, second) = (requester("10.0.0.5:4000"), requester("[fe80::5]:4000"));
        assert_eq!(state.requester(end(4000), 5), None);
        state.note_requester(end(4000), &first, 5);
        assert_eq!(state.requester(end(4000), 6), Some(first));
        assert_eq!(state.requester(end(4001), 6), None);
        let other = AnswerEnd {
            interface: 4,
            ..end(4000)
        };
        assert_eq!(state.requester(other, 6), None);
        state.note_requester(end(4000), &second, 7);
        assert_eq!(state.requester(end(4000), 8), Some(second));
        assert_eq!(state.requester(end(4000), 7 + LIFETIME_NS), None);
    }

    #[test]
    fn a_flood_leaves_the_latest() {
        let state = state();
        for n in 0..100_000_u32 {
            let port = (n % 60_000) as u16 + 1;
            state.note_requester(end(port), &requester("10.0.0.5:4000"), u64::from(n) + 1);
        }
        let last = (100_000_u32 - 1) % 60_000;
        let is_retained = |back: u32| {
            let port = ((last + 60_000 - back) % 60_000) as u16 + 1;
            state.requester(end(port), 100_000).is_some()
        };
        assert!(is_retained(0));
        let retained = (0..1_000).filter(|back| is_retained(*back)).count();
        assert!(retained > 950, "{retained} of the last thousand");
    }

    #[test]
    fn no_reader_takes_half_an_entry() {
        let state = state();
        let requesters = ["10.0.0.5:4000", "[fd00::5]:4001"].map(requester);
        std::thread::scope(|scope| {
            for requester in &requesters {
                scope
                    .spawn(|| (1..20_000).for_each(|n| state.note_requester(end(1), requester, n)));
            }
            for _ in 0..20_000 {
                let read = state.requester(end(1), 20_000);
                assert!(
                    read.is_none_or(|requester| requesters.contains(&requester)),
                    "{read:?}"
                );
            }
        });
    }
}
