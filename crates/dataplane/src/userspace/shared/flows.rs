//! The flows that a worker sees of rules with ranges: a small table in its shared memory, of which
//! the flow longest not seen gives way to a new one.

use std::net::{IpAddr, Ipv6Addr};

use super::counters::SharedCounters;
use super::layout::{FLOW_WORDS, FLOWS, FLOWS_AT, RuleSlot, WorkerWord};
use crate::counters::Traffic;

/// Places where a flow may lie; of those the one longest not seen is given to a new flow.
const FLOW_PLACES: usize = 8;

/// Whose flows: the rule's slot, and which of the slot's owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct FlowOwner(u64);

impl FlowOwner {
    /// The owner of a slot that counts from `epoch`.
    pub(crate) const fn new(rule: RuleSlot, epoch: u32) -> Self {
        Self((rule.0 as u64 + 1) << 48 | (epoch as u64) << 16)
    }
}

impl SharedCounters {
    /// Counts packets of a range for their own group and port.
    pub(crate) fn record_flow(
        &self,
        owner: FlowOwner,
        (group, port): (IpAddr, u16),
        counted: Traffic,
    ) {
        let group = bits(group);
        let words = [
            owner.0 | u64::from(port),
            (group >> 64) as u64,
            group as u64,
        ];
        let start = words.iter().fold(0u64, |hash, word| {
            (hash ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        }) as usize;
        let seen = self.worker(WorkerWord::Frames);
        let mut oldest = (u64::MAX, 0);
        for place in 0..FLOW_PLACES {
            let at = FLOWS_AT + (start.wrapping_add(place) & (FLOWS - 1)) * FLOW_WORDS;
            if (0..3).all(|word| self.read(at + word) == words[word]) {
                self.bump(at + 3, counted.packets);
                self.bump(at + 4, counted.bytes);
                self.write(at + 5, seen);
                return;
            }
            let age = if self.read(at) == 0 {
                0
            } else {
                self.read(at + 5) + 1
            };
            oldest = oldest.min((age, at));
        }
        let (_, at) = oldest;
        // Nobody's while it changes hands.
        self.write(at, 0);
        let values = [words[1], words[2], counted.packets, counted.bytes, seen];
        for (word, value) in (1..).zip(values) {
            self.write(at + word, value);
        }
        self.write(at, words[0]);
    }

    /// Reads the flows of a rule: group, port, what was counted.
    pub(crate) fn flows(&self, owner: FlowOwner) -> Vec<(IpAddr, u16, Traffic)> {
        let places = (0..FLOWS).map(|place| FLOWS_AT + place * FLOW_WORDS);
        let own = places.filter_map(|at| {
            let key = self.read(at);
            let group = u128::from(self.read(at + 1)) << 64 | u128::from(self.read(at + 2));
            let traffic = Traffic::new(self.read(at + 3), self.read(at + 4));
            let is_own = key & !0xffff == owner.0 && self.read(at) == key;
            is_own.then(|| (address(group), key as u16, traffic))
        });
        own.collect()
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address(bits: u128) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_told_apart_and_the_longest_not_seen_gives_way() {
        let (_region, counters) = SharedCounters::create().unwrap();
        let owner = FlowOwner::new(RuleSlot(3), 7);
        let one = Traffic::new(1, 100);
        let group = |number: u32| IpAddr::from((0xef00_0000 + number).to_be_bytes());
        counters.record_flow(owner, (group(1), 5001), one);
        counters.record_flow(owner, (group(1), 5001), one);
        counters.record_flow(owner, (group(1), 5002), one);
        let v6: IpAddr = "ff3e::1".parse().unwrap();
        counters.record_flow(FlowOwner::new(RuleSlot(3), 8), (v6, 5001), one);
        let mut flows = counters.flows(owner);
        flows.sort_by_key(|(_, port, _)| *port);
        let two = Traffic::new(2, 200);
        assert_eq!(flows, [(group(1), 5001, two), (group(1), 5002, one)]);
        assert_eq!(
            counters.flows(FlowOwner::new(RuleSlot(3), 8)),
            [(v6, 5001, one)]
        );
        for number in 0..10 * FLOWS as u32 {
            counters.add(WorkerWord::Frames, 1);
            counters.record_flow(owner, (group(number), 9), one);
        }
        let flows = counters.flows(owner);
        assert!(flows.len() > FLOWS / 2 && flows.len() <= FLOWS);
        let last = group(10 * FLOWS as u32 - 1);
        assert!(flows.iter().any(|(group, ..)| *group == last));
    }
}
