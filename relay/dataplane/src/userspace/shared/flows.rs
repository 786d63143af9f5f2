//! The flows that a worker sees of rules with ranges: a small table in its shared memory, in which the least
//! recently seen flow gives way to a new one.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering;

use sys::field;

use super::counters::{SharedCounters, bump};
use super::layout::{FLOWS, FlowSlot, RuleSlot, WorkerWord};
use crate::counters::Traffic;

/// Entries that may hold a flow; the least recently seen of them is given to a new flow.
const FLOW_ENTRIES: usize = 8;

/// The owner of flows: the rule's slot, and which of the slot's owners.
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
        for entry in 0..FLOW_ENTRIES {
            let at = (start.wrapping_add(entry) & (FLOWS - 1)) as u32;
            let Some([key, high, low, packets, bytes, last]) = self.flows.words(at).first_chunk()
            else {
                return;
            };
            if [key, high, low].map(|word| word.load(Ordering::Acquire)) == words {
                bump(Some(packets), counted.packets);
                bump(Some(bytes), counted.bytes);
                last.store(seen, Ordering::Release);
                return;
            }
            let age = if key.load(Ordering::Acquire) == 0 {
                0
            } else {
                last.load(Ordering::Acquire) + 1
            };
            oldest = oldest.min((age, at));
        }
        let (_, at) = oldest;
        let Some((key, others)) = self.flows.words(at).split_first() else {
            return;
        };
        // Without an owner while it is rewritten.
        key.store(0, Ordering::Release);
        let [owner, high, low] = words;
        let values = [high, low, counted.packets, counted.bytes, seen];
        for (word, value) in others.iter().zip(values) {
            word.store(value, Ordering::Release);
        }
        key.store(owner, Ordering::Release);
    }

    /// Reads the flows of a rule: group, port, what was counted.
    pub(crate) fn flows(&self, owner: FlowOwner) -> Vec<(IpAddr, u16, Traffic)> {
        let own = (0..FLOWS as u32).filter_map(|at| {
            let flow = self.flows.read(at);
            let [high, low] = flow.group.map(u128::from);
            let traffic = Traffic::new(flow.packets, flow.bytes);
            let is_same = self.flows.load(at, field!(FlowSlot, key)) == flow.key;
            let is_own = flow.key & !0xffff == owner.0 && is_same;
            is_own.then(|| (address(high << 64 | low), flow.key as u16, traffic))
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
    use sys::shared_memory::Region;

    use super::*;

    #[test]
    fn flows_are_distinguished_and_the_least_recently_seen_gives_way() {
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
