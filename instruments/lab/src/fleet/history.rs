//! Who forwarded when, as packets tell it: what was lost, what came twice, the longest silence, and
//! whether one owner at a time explains everything.
//!
//! Each packet that arrived is an operation on a register, the owner: it began when the packet was sent,
//! ended when it arrived, and read the relay that the packet came through. The history is linearizable
//! with so many changes of owner if the operations can be put in a row, none before one that had ended
//! when it began, in which the owner changes no more often than that.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// A packet that arrived. Times are in nanoseconds, of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Which one it is; the sender counts from 0.
    pub number: u64,
    /// When it was sent.
    pub sent_ns: u64,
    /// When it arrived.
    pub arrived_ns: u64,
    /// The relay that it came through, by its address.
    pub relay: Ipv4Addr,
}

/// A time in which one relay forwarded and no other.
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

/// Counts the numbers that came more than once, each time but the first.
pub fn twice(packets: &[Packet]) -> u64 {
    repeats(packets).len() as u64
}

/// Counts the numbers below `sent` that never came, of those after the first that did.
pub fn lost(packets: &[Packet], sent: u64) -> u64 {
    let first = packets.iter().map(|packet| packet.number).min();
    let due = first.map_or(0, |first| sent.saturating_sub(first));
    due.saturating_sub(distinct(packets) as u64)
}

fn distinct(packets: &[Packet]) -> usize {
    let numbers: BTreeSet<u64> = packets.iter().map(|packet| packet.number).collect();
    numbers.len()
}

/// The longest time in which nothing arrived, in nanoseconds, of those that ended between `from_ns` and
/// `until_ns`; what is silent at the end counts too. Packets are in the order of their arrival.
pub fn longest_silence_ns(packets: &[Packet], from_ns: u64, until_ns: u64) -> u64 {
    let before = packets
        .iter()
        .rev()
        .find(|packet| packet.arrived_ns < from_ns);
    let mut last = before.map_or(from_ns, |packet| packet.arrived_ns);
    let mut longest = 0;
    let within = packets.iter().map(|packet| packet.arrived_ns);
    let within = within.filter(|at| (from_ns..until_ns).contains(at));
    for at in within.chain([until_ns]) {
        longest = longest.max(at.saturating_sub(last));
        last = at;
    }
    longest
}

/// Numbers in a row that never came.
#[cfg(feature = "test-support")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// When the last one before them was sent.
    pub after_ns: u64,
    /// How many they are.
    pub lost: u64,
    /// The relays of the packets before and after them.
    pub between: (Ipv4Addr, Ipv4Addr),
}

/// Where numbers are missing, the greatest hole first.
#[cfg(feature = "test-support")]
pub fn holes(packets: &[Packet]) -> Vec<Hole> {
    let mut by_number: Vec<&Packet> = packets.iter().collect();
    by_number.sort_by_key(|packet| packet.number);
    let pairs = by_number.windows(2).map(|pair| (pair[0], pair[1]));
    let holes = pairs.filter(|(before, after)| after.number > before.number + 1);
    let holes = holes.map(|(before, after)| Hole {
        after_ns: before.sent_ns,
        lost: after.number - before.number - 1,
        between: (before.relay, after.relay),
    });
    let mut holes: Vec<Hole> = holes.collect();
    holes.sort_by_key(|hole| std::cmp::Reverse(hole.lost));
    holes
}

/// Packets whose number had come before, each behind the one that brought it first.
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

/// When the first packet after `after_ns` arrived that came through another relay than this.
pub fn first_of_another(packets: &[Packet], relay: Ipv4Addr, after_ns: u64) -> Option<u64> {
    let others = packets.iter().filter(|packet| packet.relay != relay);
    others
        .map(|packet| packet.arrived_ns)
        .find(|at| *at >= after_ns)
}

/// The shortest row of owners, one at a time, that explains every packet: what each of them did.
pub fn tenures(packets: &[Packet]) -> Vec<Tenure> {
    let relays: BTreeSet<Ipv4Addr> = packets.iter().map(|packet| packet.relay).collect();
    let operations: Vec<Operations> = relays
        .into_iter()
        .map(|relay| Operations::of(packets, relay))
        .collect();
    let shortest = shortest_row(&operations);
    let mut taken = vec![0; operations.len()];
    let tenures = shortest.into_iter().map(|(relay, until)| {
        let from = std::mem::replace(&mut taken[relay], until);
        operations[relay].tenure(from..until)
    });
    tenures.collect()
}

/// Counts the changes of owner that none of the causes explains: each cause explains one change, which
/// comes after it and within `within_ns`.
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

/// A relay's packets in the order in which they were sent.
struct Operations {
    packets: Vec<Packet>,
    /// The earliest arrival of each packet and those after it.
    earliest_end: Vec<u64>,
}

impl Operations {
    fn of(packets: &[Packet], relay: Ipv4Addr) -> Self {
        let own = packets.iter().filter(|packet| packet.relay == relay);
        let mut own: Vec<Packet> = own.copied().collect();
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

/// For each owner in a row: which relay, and up to which of its packets it has come by then. Breadth
/// first, so that no other row is shorter; as many packets as an owner can take it takes, since that
/// hinders nobody.
fn shortest_row(operations: &[Operations]) -> Vec<(usize, usize)> {
    let start = vec![0; operations.len()];
    let mut came_by: BTreeMap<Vec<usize>, Option<(Vec<usize>, usize)>> = BTreeMap::new();
    came_by.insert(start.clone(), None);
    let mut layer = vec![start];
    let is_done = |taken: &[usize]| {
        let left = taken.iter().zip(operations);
        left.into_iter()
            .all(|(taken, all)| *taken == all.packets.len())
    };
    loop {
        if let Some(end) = layer.iter().find(|taken| is_done(taken)) {
            return row_to(end, &came_by);
        }
        let mut next = Vec::new();
        for taken in &layer {
            for relay in 0..operations.len() {
                let further = taken_further(operations, taken, relay);
                if !came_by.contains_key(&further) {
                    came_by.insert(further.clone(), Some((taken.clone(), relay)));
                    next.push(further);
                }
            }
        }
        layer = next;
    }
}

/// Where one comes to who takes all packets of a relay that may come next.
fn taken_further(operations: &[Operations], taken: &[usize], relay: usize) -> Vec<usize> {
    let mut taken = taken.to_vec();
    while let Some(packet) = operations[relay].packets.get(taken[relay]) {
        let ends = taken.iter().zip(operations);
        let ends = ends.filter_map(|(taken, all)| all.earliest_end.get(*taken));
        if ends.into_iter().any(|end| *end < packet.sent_ns) {
            break;
        }
        taken[relay] += 1;
    }
    taken
}

fn row_to(
    end: &[usize],
    came_by: &BTreeMap<Vec<usize>, Option<(Vec<usize>, usize)>>,
) -> Vec<(usize, usize)> {
    let mut row = Vec::new();
    let mut at = end.to_vec();
    while let Some(Some((before, relay))) = came_by.get(&at) {
        row.push((*relay, at[*relay]));
        at.clone_from(before);
    }
    row.reverse();
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 72, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 72, 0, 2);
    const C: Ipv4Addr = Ipv4Addr::new(10, 72, 0, 3);
    /// From one packet to the next, and on the way.
    const STEP: u64 = 200;
    const WAY: u64 = 50;

    fn packet(number: u64, relay: Ipv4Addr) -> Packet {
        late(number, relay, 0)
    }

    fn late(number: u64, relay: Ipv4Addr, by: u64) -> Packet {
        let sent_ns = number * STEP;
        Packet {
            number,
            sent_ns,
            arrived_ns: sent_ns + WAY + by,
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
    fn counts_what_is_lost_and_what_came_twice() {
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
            end - 9 * STEP - WAY
        );
        assert_eq!(longest_silence_ns(&[], 0, end), end);
    }

    #[test]
    fn holes_tell_what_is_missing_between_whom() {
        let packets = stream(&[(0..10, A), (11..20, A), (25..30, B)]);
        let found = holes(&packets);
        let told: Vec<_> = found.iter().map(|hole| (hole.lost, hole.between)).collect();
        assert_eq!(told, [(5, (A, B)), (1, (A, A))]);
        assert_eq!(found[0].after_ns, 19 * STEP);
    }

    #[test]
    fn one_takeover_is_two_tenures() {
        let packets = stream(&[(0..10, A), (12..20, B)]);
        assert_eq!(owners(&packets), [(A, 10), (B, 8)]);
        let first = first_of_another(&packets, A, 10 * STEP);
        assert_eq!(first, Some(12 * STEP + WAY));
    }

    #[test]
    fn packets_that_were_under_way_together_may_be_of_either_order() {
        // A's last one is late, and came when B forwarded already; but it was sent before.
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
    fn the_row_is_the_shortest_of_three() {
        // B and C overlap, and either may come first.
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
