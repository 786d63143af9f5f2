//! A worker's counters and heartbeat, in memory shared with the supervisor.
//!
//! One region per worker, kept by the supervisor over the worker's death, so that its successor
//! counts on from where it stopped. Every word has one writer; readers may be a batch behind.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use packet::health::Arrivals;
use packet::residence::{self, Residence};
use packet::verdict::DropReason;
use sys::shared_memory::{self, Words};

use crate::counters::{Drops, HealthCounters, Traffic};
use crate::owners::name::Kind;

/// Rules whose counters fit.
pub(crate) const MAX_RULES: u32 = 16_384;
/// Inputs, of all rules with several together, whose counters fit.
pub(crate) const MAX_INPUTS: u32 = 131_072;
/// Outputs, of all rules together, whose counters fit.
pub(crate) const MAX_OUTPUTS: u32 = 131_072;

/// How many names of a kind find a slot.
pub(crate) const fn limit(kind: Kind) -> u32 {
    match kind {
        Kind::Rule => MAX_RULES,
        Kind::Output => MAX_OUTPUTS,
        Kind::Input => MAX_INPUTS,
    }
}

/// Words of one rule's or output's counters: packets, bytes, drops.
const ENTRY: usize = 2 + DropReason::SLOTS;
const RULES_AT: usize = 64;
const OUTPUTS_AT: usize = RULES_AT + MAX_RULES as usize * ENTRY;
const HEALTH_AT: usize = OUTPUTS_AT + MAX_OUTPUTS as usize * ENTRY;
/// Words of what was found in one rule's packets: its sums, then times, jitter and source.
const HEALTH: usize = 18;
const FLOWS_AT: usize = HEALTH_AT + MAX_RULES as usize * HEALTH;
const RESIDENCE_AT: usize = FLOWS_AT + FLOWS * FLOW_WORDS;
const INPUTS_AT: usize = RESIDENCE_AT + MAX_RULES as usize * residence::WORDS;
/// Words of an input's counters: packets, bytes.
const INPUT: usize = 2;
/// Words of a region; another number is another layout.
pub(crate) const WORDS: usize = INPUTS_AT + MAX_INPUTS as usize * INPUT;

/// Flows of ranges that are kept, a power of two.
const FLOWS: usize = 4096;
/// Words of a flow: key, group (two), packets, bytes, when it was seen.
const FLOW_WORDS: usize = 6;
/// Places where a flow may lie; of those the one longest not seen is given to a new flow.
const FLOW_PLACES: usize = 8;

/// Words that count for the worker as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum WorkerWord {
    /// Grows as long as the worker's loop turns.
    Heartbeat = 0,
    /// Ring frames taken, super-packets as one; together with the kernel's statistics this shows
    /// what a dying worker left behind.
    Frames = 1,
    /// Datagrams read from the taps.
    Received = 2,
    /// Datagrams that took a route.
    Matched = 3,
    /// Datagrams that took none.
    NotMatched = 4,
    /// Copies sent.
    Forwarded = 5,
    /// Datagrams lost in the worker for want of a buffer.
    BufferExhausted = 6,
    /// Failed receives.
    ReceiveErrors = 7,
    /// Failed sends.
    TransmitErrors = 8,
    /// Grows when a worker that lost its supervisor has forwarded what it had and takes no more.
    StoodDown = 9,
    /// Datagrams in the frames taken beyond the first of each: those of super-packets.
    Hidden = 10,
    /// Written by the supervisor: datagrams lost at full rings and in the rings of dead workers.
    Lost = 16,
    /// Written by the supervisor: times the worker was started again.
    Restarts = 17,
}

/// Names one rule's counters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct RuleSlot(pub u32);

/// Names the counters of one of a rule's several inputs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct InputSlot(pub u32);

/// Names one output's counters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct OutputSlot(pub u32);

/// Whose flows: the rule's slot, and which of the slot's owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct FlowOwner(u64);

impl FlowOwner {
    /// The owner of a slot that counts from `epoch`.
    pub(crate) const fn new(rule: RuleSlot, epoch: u32) -> Self {
        Self((rule.0 as u64 + 1) << 48 | (epoch as u64) << 16)
    }
}

/// One worker's region, mapped.
#[derive(Debug)]
pub(crate) struct SharedCounters {
    words: Words,
}

/// The values of one rule's or output's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Packets received or sent, and their bytes.
    pub traffic: Traffic,
    /// Packets dropped.
    pub drops: Drops,
    /// What was found in a rule's packets.
    pub health: HealthCounters,
    /// How long a sample of a rule's packets stayed.
    pub residence: Residence,
}

impl SharedCounters {
    /// Makes a region with all counters 0. It is sparse: only what is counted takes memory.
    ///
    /// # Errors
    /// The system call's.
    pub(crate) fn create() -> io::Result<(OwnedFd, Self)> {
        let region = shared_memory::create(c"mcr-counters", WORDS * size_of::<AtomicU64>())?;
        let counters = Self::map(region.as_fd())?;
        Ok((region, counters))
    }

    /// Maps the region another process made.
    ///
    /// # Errors
    /// The system call's.
    pub(crate) fn map(region: BorrowedFd<'_>) -> io::Result<Self> {
        let words = Words::map(region, WORDS * size_of::<AtomicU64>())?;
        Ok(Self { words })
    }

    /// Adds to one of the worker's own counters.
    #[inline]
    pub(crate) fn add(&self, word: WorkerWord, count: u64) {
        self.bump(word as usize, count);
    }

    /// Reads one of the worker's own counters.
    #[must_use]
    pub(crate) fn worker(&self, word: WorkerWord) -> u64 {
        self.read(word as usize)
    }

    /// Counts packets a rule received.
    #[inline]
    pub(crate) fn rule_received(&self, rule: RuleSlot, packets: u64, bytes: u64) {
        self.bump(rule_at(rule), packets);
        self.bump(rule_at(rule) + 1, bytes);
    }

    /// Counts packets that came by one of a rule's several inputs.
    #[inline]
    pub(crate) fn input_received(&self, input: InputSlot, packets: u64, bytes: u64) {
        self.bump(input_at(input), packets);
        self.bump(input_at(input) + 1, bytes);
    }

    /// Counts packets a rule dropped.
    #[inline]
    pub(crate) fn rule_dropped(&self, rule: RuleSlot, reason: DropReason, packets: u64) {
        self.bump(rule_at(rule) + 2 + reason as usize, packets);
    }

    /// Counts copies an output sent.
    #[inline]
    pub(crate) fn output_sent(&self, output: OutputSlot, packets: u64, bytes: u64) {
        self.bump(output_at(output), packets);
        self.bump(output_at(output) + 1, bytes);
    }

    /// Counts copies an output dropped.
    #[inline]
    pub(crate) fn output_dropped(&self, output: OutputSlot, reason: DropReason, packets: u64) {
        self.bump(output_at(output) + 2 + reason as usize, packets);
    }

    /// Counts packets of a range for their own group and port.
    pub(crate) fn flow(&self, owner: FlowOwner, (group, port): (IpAddr, u16), counted: Traffic) {
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
            let traffic = Traffic {
                packets: self.read(at + 3),
                bytes: self.read(at + 4),
            };
            let is_own = key & !0xffff == owner.0 && self.read(at) == key;
            is_own.then(|| (address(group), key as u16, traffic))
        });
        own.collect()
    }

    /// Reads what a slot counts.
    #[must_use]
    pub(crate) fn counted(&self, kind: Kind, slot: u32) -> Counted {
        match kind {
            Kind::Rule => self.rule(RuleSlot(slot)),
            Kind::Output => self.output(OutputSlot(slot)),
            Kind::Input => self.input(InputSlot(slot)),
        }
    }

    /// Reads a rule's counters.
    #[must_use]
    pub(crate) fn rule(&self, rule: RuleSlot) -> Counted {
        Counted {
            health: self.health(rule),
            residence: self.residence(rule),
            ..self.entry(rule_at(rule))
        }
    }

    /// Reads an input's counters.
    #[must_use]
    pub(crate) fn input(&self, input: InputSlot) -> Counted {
        let at = input_at(input);
        Counted {
            traffic: Traffic {
                packets: self.read(at),
                bytes: self.read(at + 1),
            },
            ..Counted::default()
        }
    }

    /// Reads an output's counters.
    #[must_use]
    pub(crate) fn output(&self, output: OutputSlot) -> Counted {
        self.entry(output_at(output))
    }

    fn entry(&self, at: usize) -> Counted {
        let traffic = Traffic {
            packets: self.read(at),
            bytes: self.read(at + 1),
        };
        let drops = Drops(std::array::from_fn(|reason| self.read(at + 2 + reason)));
        Counted {
            traffic,
            drops,
            ..Counted::default()
        }
    }

    /// Counts a packet of a rule that stayed so long.
    pub(crate) fn stayed(&self, rule: RuleSlot, ns: u64) {
        let at = residence_at(rule);
        self.bump(at + residence::bucket(ns), 1);
        self.bump(at + residence::BUCKETS, ns);
        self.bump(at + residence::BUCKETS + 1, 1);
    }

    fn residence(&self, rule: RuleSlot) -> Residence {
        let mut seen = Residence::default();
        for (word, at) in seen.words_mut().zip(residence_at(rule)..) {
            *word = self.read(at);
        }
        seen
    }

    /// Adds the sums of `news`, what was found in a rule's packets since the last time, and takes
    /// over the rest.
    pub(crate) fn found(&self, rule: RuleSlot, news: &HealthCounters) {
        let at = health_at(rule);
        for (offset, count) in news.sums().into_iter().enumerate().filter(|(_, n)| *n > 0) {
            self.bump(at + offset, count);
        }
        let arrivals = &news.arrivals;
        let source = news.source.map_or(0, |(ssrc, payload_type)| {
            1 << 63 | u64::from(payload_type) << 32 | u64::from(ssrc)
        });
        let values = [
            arrivals.last_ns,
            arrivals.epoch,
            arrivals.gap_ns,
            arrivals.gap_before_ns,
            news.jitter_ns,
            source,
        ];
        let words = self.words.as_slice().get(at + 12..at + HEALTH);
        for (word, value) in words.unwrap_or_default().iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn health(&self, rule: RuleSlot) -> HealthCounters {
        let at = health_at(rule);
        let mut health = HealthCounters::default();
        for (offset, sum) in health.sums_mut().into_iter().enumerate() {
            *sum = self.read(at + offset);
        }
        let arrivals = &mut health.arrivals;
        arrivals.last_ns = self.read(at + 12);
        arrivals.epoch = self.read(at + 13);
        arrivals.gap_ns = self.read(at + 14);
        arrivals.gap_before_ns = self.read(at + 15);
        health.jitter_ns = self.read(at + 16);
        let source = self.read(at + 17);
        let parts = (source as u32, (source >> 32) as u8);
        health.source = (source >> 63 == 1).then_some(parts);
        health
    }

    fn read(&self, at: usize) -> u64 {
        self.words
            .as_slice()
            .get(at)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn write(&self, at: usize, value: u64) {
        if let Some(word) = self.words.as_slice().get(at) {
            word.store(value, Ordering::Release);
        }
    }

    /// A load and a store instead of a locked add: each word has one writer.
    #[inline]
    fn bump(&self, at: usize, count: u64) {
        if let Some(word) = self.words.as_slice().get(at) {
            let value = word.load(Ordering::Relaxed);
            word.store(value.wrapping_add(count), Ordering::Relaxed);
        }
    }
}

impl Counted {
    /// Adds what another worker counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.traffic.add(other.traffic);
        self.drops.add(&other.drops);
        self.health.add(&other.health);
        self.residence.add(&other.residence);
    }

    /// Takes off what was counted before, for a slot that had another owner.
    #[must_use]
    pub(crate) fn since(&self, base: &Self) -> Self {
        let mut since = self.clone();
        let packets = &mut since.traffic.packets;
        *packets = packets.saturating_sub(base.traffic.packets);
        let bytes = &mut since.traffic.bytes;
        *bytes = bytes.saturating_sub(base.traffic.bytes);
        for (mine, theirs) in since.drops.0.iter_mut().zip(base.drops.0) {
            *mine = mine.saturating_sub(theirs);
        }
        since.health = self.health.since(&base.health);
        if self.health.arrivals.last_ns <= base.health.arrivals.last_ns {
            // Nothing has come since: times, jitter and source are the other owner's.
            since.health.arrivals = Arrivals::default();
            since.health.jitter_ns = 0;
            since.health.source = None;
        }
        since.residence = self.residence.since(&base.residence);
        since
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

const fn rule_at(rule: RuleSlot) -> usize {
    RULES_AT + rule.0 as usize * ENTRY
}

const fn health_at(rule: RuleSlot) -> usize {
    HEALTH_AT + rule.0 as usize * HEALTH
}

const fn residence_at(rule: RuleSlot) -> usize {
    RESIDENCE_AT + rule.0 as usize * residence::WORDS
}

const fn input_at(input: InputSlot) -> usize {
    INPUTS_AT + input.0 as usize * INPUT
}

const fn output_at(output: OutputSlot) -> usize {
    OUTPUTS_AT + output.0 as usize * ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_told_apart_and_the_longest_not_seen_gives_way() {
        let (_region, counters) = SharedCounters::create().unwrap();
        let owner = FlowOwner::new(RuleSlot(3), 7);
        let one = Traffic {
            packets: 1,
            bytes: 100,
        };
        let group = |number: u32| IpAddr::from((0xef00_0000 + number).to_be_bytes());
        counters.flow(owner, (group(1), 5001), one);
        counters.flow(owner, (group(1), 5001), one);
        counters.flow(owner, (group(1), 5002), one);
        let v6: IpAddr = "ff3e::1".parse().unwrap();
        counters.flow(FlowOwner::new(RuleSlot(3), 8), (v6, 5001), one);
        let mut flows = counters.flows(owner);
        flows.sort_by_key(|(_, port, _)| *port);
        let two = Traffic {
            packets: 2,
            bytes: 200,
        };
        assert_eq!(flows, [(group(1), 5001, two), (group(1), 5002, one)]);
        assert_eq!(
            counters.flows(FlowOwner::new(RuleSlot(3), 8)),
            [(v6, 5001, one)]
        );
        for number in 0..10 * FLOWS as u32 {
            counters.add(WorkerWord::Frames, 1);
            counters.flow(owner, (group(number), 9), one);
        }
        let flows = counters.flows(owner);
        assert!(flows.len() > FLOWS / 2 && flows.len() <= FLOWS);
        let last = group(10 * FLOWS as u32 - 1);
        assert!(flows.iter().any(|(group, ..)| *group == last));
    }

    #[test]
    fn another_owner_of_a_slot_sees_nothing_of_the_one_before() {
        let (_region, counters) = SharedCounters::create().unwrap();
        let slot = RuleSlot(3);
        let mut found = HealthCounters {
            lost: 2,
            jitter_ns: 7,
            source: Some((9, 33)),
            ..HealthCounters::default()
        };
        found.arrivals.last_ns = 5;
        counters.rule_received(slot, 1, 100);
        counters.found(slot, &found);
        counters.stayed(slot, 1000);
        let base = counters.rule(slot);
        assert_eq!((base.health.lost, base.residence.samples()), (2, 1));
        assert_eq!(counters.rule(slot).since(&base), Counted::default());
        found.arrivals.last_ns = 6;
        counters.found(slot, &found);
        let since = counters.rule(slot).since(&base);
        assert_eq!(since.health, found);
    }

    #[test]
    fn a_successor_counts_on() {
        let (region, counters) = SharedCounters::create().unwrap();
        counters.rule_received(RuleSlot(3), 2, 2048);
        counters.output_dropped(OutputSlot(MAX_OUTPUTS - 1), DropReason::EgressFull, 5);
        counters.input_received(InputSlot(MAX_INPUTS - 1), 2, 2048);
        let successor = SharedCounters::map(region.as_fd()).unwrap();
        successor.rule_received(RuleSlot(3), 1, 1024);
        successor.input_received(InputSlot(MAX_INPUTS - 1), 1, 1024);
        let rule = counters.rule(RuleSlot(3));
        assert_eq!((rule.traffic.packets, rule.traffic.bytes), (3, 3072));
        let input = counters.input(InputSlot(MAX_INPUTS - 1));
        assert_eq!(input.traffic, rule.traffic);
        let output = counters.output(OutputSlot(MAX_OUTPUTS - 1));
        assert_eq!(output.drops.0[DropReason::EgressFull as usize], 5);
    }
}
