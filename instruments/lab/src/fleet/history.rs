//! Who forwarded when, derived from packets: losses, duplicates, the longest silence, and whether one
//! owner at a time explains everything.
//!
//! Each packet that arrived is an operation on a register, the owner: it began when the packet was sent,
//! ended when it arrived, and read the relay that forwarded it. The history is linearizable with N changes
//! of owner if the operations can be ordered, none before one that had ended when it began, so that the
//! owner changes at most N times.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// A packet that arrived. Times are in nanoseconds, of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its number; the sender counts from 0.
    pub number: u64,
    /// When it was sent.
    pub sent_ns: u64,
    /// When it arrived.
    pub arrived_ns: u64,
    /// The address of the relay that forwarded it.
    pub relay: Ipv4Addr,
}

/// A period in which only one relay forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// The relay.
    pub relay: Ipv4Addr,
    /// When its first packet arrived.
    pub from_ns: u64,
    /// When its last packet arrived.
    pub until_ns: u64,
    /// Packets that it forwarded.
    pub packets: usize,
}

/// Counts the repeated arrivals of numbers.
pub fn twice(packets: &[Packet]) -> u64 {
    repeats(packets).len() as u64
}

/// Counts the numbers below `sent` that never arrived, of those after the first that did.
pub fn lost(packets: &[Packet], sent: u64) -> u64 {
    let first = packets.iter().map(|packet| packet.number).min();
    let expected = first.map_or(0, |first| sent.saturating_sub(first));
    expected.saturating_sub(distinct(packets) as u64)
}

fn distinct(packets: &[Packet]) -> usize {
    let numbers: BTreeSet<u64> = packets.iter().map(|packet| packet.number).collect();
    numbers.len()
}

/// The longest silence, in nanoseconds, of those that ended between `from_ns` and `until_ns`; a silence at
/// the end counts too. Packets are in the order of their arrival.
pub fn longest_silence_ns(packets: &[Packet], from_ns: u64, until_ns: u64) -> u64 {
    let before = packets
        .iter()
        .rev()
        .find(|packet| packet.arrived_ns < from_ns);
    let mut last = before.map_or(from_ns, |packet| packet.arrived_ns);
    let mut longest = 0;
    let arrivals = packets.iter().map(|packet| packet.arrived_ns);
    let in_range = arrivals.filter(|at| (from_ns..until_ns).contains(at));
    for at in in_range.chain([until_ns]) {
        longest = longest.max(at.saturating_sub(last));
        last = at;
    }
    longest
}

/// Consecutive numbers that never arrived.
#[cfg(feature = "test-support")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// When the last packet before them was sent.
    pub after_ns: u64,
    /// How many they are.
    pub lost: u64,
    /// The relays of the packets before and after them.
    pub between: (Ipv4Addr, Ipv4Addr),
}

/// The missing numbers, the largest hole first.
#[cfg(feature = "test-support")]
pub fn holes(packets: &[Packet]) -> Vec<Hole> {
    let mut by_number: Vec<&Packet> = packets.iter().collect();
    by_number.sort_by_key(|packet| packet.number);
    let mut holes: Vec<Hole> = by_number
        .windows(2)
        .map(|pair| (pair[0], pair[1]))
        .filter(|(before, after)| after.number > before.number + 1)
        .map(|(before, after)| Hole {
            after_ns: before.sent_ns,
            lost: after.number - before.number - 1,
            between: (before.relay, after.relay),
        })
        .collect();
    holes.sort_by_key(|hole| std::cmp::Reverse(hole.lost));
    holes
}

/// Packets whose number had arrived before, each after the first packet of that number.
pub fn repeats(packets: &[Packet]) -> Vec<[Packet; 2]> {
    let mut first: BTreeMap<u64, Packet> = BTreeMap::new();
    let mut repeats = Vec::new();
    for packet in packets {
        match first.entry(packet.number) {
            Entry::Occupied(entry) => repeats.push([*entry.get(), *packet]),
            Entry::Vacant(entry) => drop(entry.insert(*packet)),
        }
    }
    repeats
}

/// When the first packet after `after_ns` arrived that another relay than this forwarded.
pub fn first_of_another(packets: &[Packet], relay: Ipv4Addr, after_ns: u64) -> Option<u64> {
    let others = packets.iter().filter(|packet| packet.relay != relay);
    others
        .map(|packet| packet.arrived_ns)
        .find(|at| *at >= after_ns)
}

/// The shortest sequence of owners, one at a time, that explains every packet.
pub fn tenures(packets: &[Packet]) -> Vec<Tenure> {
    let relays: BTreeSet<Ipv4Addr> = packets.iter().map(|packet| packet.relay).collect();
    let operations: Vec<Operations> = relays
        .into_iter()
        .map(|relay| Operations::of(packets, relay))
        .collect();
    let shortest = shortest_sequence(&operations);
    let mut consumed = vec![0; operations.len()];
    let tenures = shortest.into_iter().map(|(relay, until)| {
        let from = std::mem::replace(&mut consumed[relay], until);
        operations[relay].tenure(from..until)
    });
    tenures.collect()
}

/// Counts the changes of owner that no cause explains: each cause explains one change, within
/// `within_ns` after it.
#[cfg(feature = "test-support")]
pub fn without_cause(tenures: &[Tenure], causes_ns: &[u64], within_ns: u64) -> usize {
    let mut causes: BTreeSet<u64> = causes_ns.iter().copied().collect();
    let changes = tenures.iter().skip(1).map(|tenure| tenure.from_ns);
    changes
        .filter(|at| {
            let cause = causes
                .range(at.saturating_sub(within_ns)..=*at)
                .next()
                .copied();
            cause.is_none_or(|cause| !causes.remove(&cause))
        })
        .count()
}

/// For each reached state, the packets consumed of each relay: the state before and the relay that led to
/// it; `None` for the start.
type Predecessors = BTreeMap<Vec<usize>, Option<(Vec<usize>, usize)>>;

/// A relay's packets in the order in which they were sent.
struct Operations {
    packets: Vec<Packet>,
    /// The earliest arrival of each packet and those after it.
    earliest_end: Vec<u64>,
}

impl Operations {
    fn of(packets: &[Packet], relay: Ipv4Addr) -> Self {
        let is_own = |packet: &&Packet| packet.relay == relay;
        let mut own: Vec<Packet> = packets.iter().filter(is_own).copied().collect();
        own.sort_by_key(|packet| (packet.sent_ns, packet.number));
        let mut earliest = u64::MAX;
        let mut earliest_end: Vec<u64> = own
            .iter()
            .rev()
            .map(|packet| {
                earliest = earliest.min(packet.arrived_ns);
                earliest
            })
            .collect();
        earliest_end.reverse();
        Self {
            packets: own,
            earliest_end,
        }
    }

    fn tenure(&self, range: std::ops::Range<usize>) -> Tenure {
        let packets = &self.packets[range];
        let arrivals = || packets.iter().map(|packet| packet.arrived_ns);
        Tenure {
            relay: packets[0].relay,
            from_ns: arrivals().min().unwrap_or_default(),
            until_ns: arrivals().max().unwrap_or_default(),
            packets: packets.len(),
        }
    }
}

/// For each owner in sequence: the relay, and the number of its packets consumed by then. Breadth first,
/// so that no other sequence is shorter; an owner consumes as many packets as it can, since that never
/// restricts the others.
fn shortest_sequence(operations: &[Operations]) -> Vec<(usize, usize)> {
    let start = vec![0; operations.len()];
    let mut predecessors: Predecessors = BTreeMap::new();
    predecessors.insert(start.clone(), None);
    let mut layer = vec![start];
    let is_done = |consumed: &[usize]| {
        let mut relays = consumed.iter().zip(operations);
        relays.all(|(consumed, all)| *consumed == all.packets.len())
    };
    loop {
        if let Some(end) = layer.iter().find(|consumed| is_done(consumed)) {
            return sequence_to(end, &predecessors);
        }
        let mut next = Vec::new();
        for consumed in &layer {
            for relay in 0..operations.len() {
                let advanced = advance(operations, consumed, relay);
                if !predecessors.contains_key(&advanced) {
                    predecessors.insert(advanced.clone(), Some((consumed.clone(), relay)));
                    next.push(advanced);
                }
            }
        }
        layer = next;
    }
}

/// The state after consuming all packets of a relay that may be next.
fn advance(operations: &[Operations], consumed: &[usize], relay: usize) -> Vec<usize> {
    let mut consumed = consumed.to_vec();
    while let Some(packet) = operations[relay].packets.get(consumed[relay]) {
        let remaining = consumed.iter().zip(operations);
        let mut ends = remaining.filter_map(|(consumed, all)| all.earliest_end.get(*consumed));
        if ends.any(|end| *end < packet.sent_ns) {
            break;
        }
        consumed[relay] += 1;
    }
    consumed
}

fn sequence_to(end: &[usize], predecessors: &Predecessors) -> Vec<(usize, usize)> {
    let mut sequence = Vec::new();
    let mut at = end.to_vec();
    while let Some(Some((before, relay))) = predecessors.get(&at) {
        sequence.push((*relay, at[*relay]));
        at.clone_from(before);
    }
    sequence.reverse();
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 72, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 72, 0, 2);
    const C: Ipv4Addr = Ipv4Addr::new(10, 72, 0, 3);
    /// Time from one packet to the next, and of transit.
    const STEP: u64 = 200;
    const TRANSIT: u64 = 50;

    fn packet(number: u64, relay: Ipv4Addr) -> Packet {
        late(number, relay, 0)
    }

    fn late(number: u64, relay: Ipv4Addr, by: u64) -> Packet {
        let sent_ns = number * STEP;
        Packet {
            number,
            sent_ns,
            arrived_ns: sent_ns + TRANSIT + by,
            relay,
        }
    }

    fn stream(parts: &[(std::ops::Range<u64>, Ipv4Addr)]) -> Vec<Packet> {
        let parts = parts.iter().cloned();
        parts
            .flat_map(|(numbers, relay)| numbers.map(move |n| packet(n, relay)))
            .collect()
    }

    fn owners(packets: &[Packet]) -> Vec<(Ipv4Addr, usize)> {
        let tenures = tenures(packets).into_iter();
        tenures
            .map(|tenure| (tenure.relay, tenure.packets))
            .collect()
    }

    #[test]
    fn counts_losses_and_duplicates() {
        let mut packets = stream(&[(0..10, A), (12..20, B)]);
        assert_eq!((lost(&packets, 20), twice(&packets)), (2, 0));
        packets.push(late(12, A, 30));
        assert_eq!((lost(&packets, 20), twice(&packets)), (2, 1));
        let [[first, again]] = repeats(&packets)[..] else {
            panic!("one came again");
        };
        assert_eq!((first.number, again), (12, late(12, A, 30)));
    }

    #[test]
    fn silence_counts_where_it_ends_and_at_the_end() {
        let packets = stream(&[(0..10, A), (15..20, B)]);
        let end = 20 * STEP;
        assert_eq!(longest_silence_ns(&packets, 0, end), 6 * STEP);
        assert_eq!(
            longest_silence_ns(&packets, 12 * STEP, end),
            6 * STEP,
            "began before"
        );
        assert_eq!(longest_silence_ns(&packets, 16 * STEP, end), STEP);
        assert_eq!(
            longest_silence_ns(&packets[..10], 0, end),
            end - 9 * STEP - TRANSIT
        );
        assert_eq!(longest_silence_ns(&[], 0, end), end);
    }

    #[test]
    fn holes_show_missing_numbers_and_their_neighbours() {
        let packets = stream(&[(0..10, A), (11..20, A), (25..30, B)]);
        let holes = holes(&packets);
        let summary: Vec<_> = holes.iter().map(|hole| (hole.lost, hole.between)).collect();
        assert_eq!(summary, [(5, (A, B)), (1, (A, A))]);
        assert_eq!(holes[0].after_ns, 19 * STEP);
    }

    #[test]
    fn one_takeover_is_two_tenures() {
        let packets = stream(&[(0..10, A), (12..20, B)]);
        assert_eq!(owners(&packets), [(A, 10), (B, 8)]);
        let first = first_of_another(&packets, A, 10 * STEP);
        assert_eq!(first, Some(12 * STEP + TRANSIT));
    }

    #[test]
    fn packets_under_way_together_may_be_in_either_order() {
        // A's last one is late, and arrives when B already forwards; but it was sent before.
        let mut packets = stream(&[(0..9, A), (10..20, B)]);
        packets.push(late(9, A, 3 * STEP));
        packets.sort_by_key(|packet| packet.arrived_ns);
        assert_eq!(owners(&packets), [(A, 10), (B, 10)]);
    }

    #[test]
    fn two_who_forward_in_turns_are_many_tenures() {
        let packets = stream(&[(0..5, A), (5..6, B), (6..10, A), (10..12, B)]);
        assert_eq!(owners(&packets), [(A, 5), (B, 1), (A, 4), (B, 2)]);
    }

    #[test]
    fn two_who_forward_everything_are_as_many_tenures_as_packets() {
        let packets: Vec<Packet> = (0..50).flat_map(|n| [packet(n, A), packet(n, B)]).collect();
        assert_eq!(
            tenures(&packets).len(),
            51,
            "the last of one goes with the first of the next"
        );
        assert_eq!(twice(&packets), 50);
    }

    #[test]
    fn the_sequence_is_the_shortest_of_three() {
        // B and C overlap, and either may be first.
        let mut packets = stream(&[(0..5, A), (7..10, C)]);
        packets.push(late(5, C, 0));
        packets.push(late(6, B, 3 * STEP));
        packets.push(late(12, B, 0));
        assert_eq!(owners(&packets), [(A, 5), (C, 4), (B, 2)]);
    }

    #[test]
    fn a_change_needs_a_cause_of_its_own_shortly_before() {
        let packets = stream(&[(0..10, A), (10..20, B), (20..30, A)]);
        let tenures = tenures(&packets);
        let at = |number: u64| number * STEP;
        assert_eq!(
            without_cause(&tenures, &[at(9)], at(5)),
            1,
            "it came back by itself"
        );
        assert_eq!(without_cause(&tenures, &[at(9), at(18)], at(5)), 0);
        assert_eq!(
            without_cause(&tenures, &[at(1), at(18)], at(5)),
            1,
            "too long ago"
        );
        assert_eq!(
            without_cause(&tenures, &[at(12), at(18)], at(5)),
            1,
            "too late"
        );
    }
}
