//! A worker's counters and heartbeat, in memory shared with the supervisor.
//!
//! One region per worker, kept by the supervisor over the worker's death, so that its successor
//! counts on from where it stopped. Every word has one writer; readers may be a batch behind.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use packet::latency;
use packet::verdict::DropReason;
use sys::field;
use sys::memory::{Array, Field};
use zerocopy::IntoBytes;

use super::counted::Counted;
use super::layout::{
    FLOWS, FlowSlot, Health, InputSlot, LatestHealth, MAX_INPUTS, MAX_OUTPUTS, MAX_RULES,
    OutputSlot, RuleSlot, Slot, WorkerWord,
};
use crate::counters::{Drops, HealthCounters, Traffic};
use crate::owners::name::Kind;

sys::region! {
    /// One worker's region, mapped.
    pub(crate) struct SharedCounters as c"mcr-counters" {
        /// By [`WorkerWord`].
        worker: [u64; 64],
        rules: [Slot; MAX_RULES],
        outputs: [Slot; MAX_OUTPUTS],
        health: [Health; MAX_RULES],
        pub(super) flows: [FlowSlot; FLOWS],
        latency: [bpf::layout::Latency; MAX_RULES],
        inputs: [Slot; MAX_INPUTS],
        /// A word for each rule, all adjacent: finding the rules that packets arrived for reads few cache
        /// lines.
        activity: [u64; MAX_RULES],
    }
}

impl SharedCounters {
    /// Adds to one of the worker's own counters.
    #[inline]
    pub(crate) fn add(&self, word: WorkerWord, count: u64) {
        bump(self.worker.word(word as u32, Field::WHOLE), count);
    }

    /// Reads one of the worker's own counters.
    #[inline]
    #[must_use]
    pub(crate) fn worker(&self, word: WorkerWord) -> u64 {
        self.worker.read(word as u32)
    }

    /// Ring frames taken by all workers that count, or counted, in `regions`. Their content is counted before
    /// they are.
    pub(crate) fn frames<'a>(regions: impl Iterator<Item = &'a Arc<Self>>) -> u64 {
        let frames = regions.map(|counters| counters.worker(WorkerWord::Frames));
        frames.fold(0, u64::wrapping_add)
    }

    /// Counts packets a rule received.
    #[inline]
    pub(crate) fn rule_received(&self, rule: RuleSlot, passed: Traffic) {
        add_traffic(&self.rules, rule.0, passed);
        // After the counters that it announces.
        if let Some(word) = self.activity.word(rule.0, Field::WHOLE) {
            let value = word.load(Ordering::Acquire);
            word.store(value.wrapping_add(1), Ordering::Release);
        }
    }

    /// Reads a word that changes when packets of a rule are counted.
    #[must_use]
    pub(crate) fn activity(&self, rule: RuleSlot) -> u64 {
        self.activity.read(rule.0)
    }

    /// Counts those of a rule's packets that are returned to a requester.
    pub(crate) fn rule_answered(&self, rule: RuleSlot, packets: u64) {
        let answers = Traffic {
            answers: packets,
            ..Traffic::default()
        };
        add_traffic(&self.rules, rule.0, answers);
    }

    /// Counts packets that arrived by one of a rule's several inputs.
    #[inline]
    pub(crate) fn input_received(&self, input: InputSlot, passed: Traffic) {
        add_traffic(&self.inputs, input.0, passed);
    }

    /// Counts packets a rule dropped.
    #[inline]
    pub(crate) fn rule_dropped(&self, rule: RuleSlot, reason: DropReason, packets: u64) {
        bump(self.rules.word(rule.0, drops_under(reason)), packets);
    }

    /// Counts packets dropped because they arrived by an input.
    #[inline]
    pub(crate) fn input_dropped(&self, input: InputSlot, reason: DropReason, packets: u64) {
        bump(self.inputs.word(input.0, drops_under(reason)), packets);
    }

    /// Counts copies an output sent.
    #[inline]
    pub(crate) fn output_sent(&self, output: OutputSlot, passed: Traffic) {
        add_traffic(&self.outputs, output.0, passed);
    }

    /// Counts copies an output dropped.
    #[inline]
    pub(crate) fn output_dropped(&self, output: OutputSlot, reason: DropReason, packets: u64) {
        bump(self.outputs.word(output.0, drops_under(reason)), packets);
    }

    /// Reads what passed at a slot and what was dropped there.
    #[must_use]
    pub(crate) fn traffic(&self, kind: Kind, slot: u32) -> (Traffic, Drops) {
        let slots = match kind {
            Kind::Rule => &self.rules,
            Kind::Output => &self.outputs,
            Kind::Input => &self.inputs,
        };
        let Slot { traffic, drops } = slots.read(slot);
        (traffic, Drops(drops.packets))
    }

    /// Reads all that a slot counts.
    #[must_use]
    pub(crate) fn counted(&self, kind: Kind, slot: u32) -> Counted {
        let (traffic, drops) = self.traffic(kind, slot);
        let mut counted = Counted {
            traffic,
            drops,
            ..Counted::default()
        };
        if kind == Kind::Rule {
            counted.health = self.health.read(slot).into();
            counted.latency = crate::counters::latency(&self.latency.read(slot));
        }
        counted
    }

    /// Counts the latency of a packet of a rule.
    pub(crate) fn record_latency(&self, rule: RuleSlot, ns: u64) {
        let buckets = field!(bpf::layout::Latency, buckets);
        for (field, count) in [
            (buckets.skip(latency::bucket(ns)), 1),
            (field!(bpf::layout::Latency, sum_ns), ns),
            (field!(bpf::layout::Latency, stamped), 1),
        ] {
            bump(self.latency.word(rule.0, field), count);
        }
    }

    /// Adds the sums of `new`, the health of a rule's packets since the last call, and replaces the rest.
    pub(crate) fn record_health(&self, rule: RuleSlot, new: &HealthCounters) {
        let words = self.health.words(rule.0);
        let sums = new.sums().into_iter();
        for (word, count) in words.iter().zip(sums).filter(|(_, count)| *count > 0) {
            bump(Some(word), count);
        }
        let mut latest = LatestHealth::of(new);
        let values = latest.as_mut_bytes().chunks_exact(size_of::<u64>());
        let latest_words = words.get(offset_of!(Health, latest) / size_of::<u64>()..);
        for (word, value) in latest_words.unwrap_or_default().iter().zip(values) {
            let value = value.try_into().map_or(0, u64::from_ne_bytes);
            word.store(value, Ordering::Relaxed);
        }
    }
}

const fn drops_under(reason: DropReason) -> Field<Slot> {
    field!(Slot, drops).skip(reason as usize)
}

/// Each word has one writer, so no other adds in between.
#[inline]
fn add_traffic(slots: &Array<Slot>, slot: u32, passed: Traffic) {
    let words = slots.words(slot).first_chunk::<{ Traffic::WORDS }>();
    let Some(words) = words else {
        return;
    };
    let before = words.each_ref().map(|word| word.load(Ordering::Acquire));
    let mut traffic = Traffic::from_words(before);
    traffic.add(passed);
    for (word, value) in words.iter().zip(traffic.words()) {
        word.store(value, Ordering::Release);
    }
}

/// Adds to a word, by a load and a store instead of a locked add: each word has one writer.
#[inline]
pub(super) fn bump(word: Option<&AtomicU64>, count: u64) {
    if let Some(word) = word {
        let value = word.load(Ordering::Relaxed);
        word.store(value.wrapping_add(count), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use sys::shared_memory::Region;

    use super::*;

    #[test]
    fn a_new_owner_of_a_slot_sees_nothing_of_the_former_one() {
        let (_region, counters) = SharedCounters::create().unwrap();
        let slot = RuleSlot(3);
        let mut health = HealthCounters {
            lost: 2,
            jitter_ns: 7,
            source: Some((9, 33)),
            ..HealthCounters::default()
        };
        health.arrivals.last_ns = 5;
        counters.rule_received(slot, Traffic::new(1, 100));
        counters.record_health(slot, &health);
        counters.record_latency(slot, 1000);
        let base = counters.counted(Kind::Rule, slot.0);
        assert_eq!((base.health.lost, base.latency.samples()), (2, 1));
        assert_eq!(
            counters.counted(Kind::Rule, slot.0).since(&base),
            Counted::default()
        );
        health.arrivals.last_ns = 6;
        counters.record_health(slot, &health);
        let since = counters.counted(Kind::Rule, slot.0).since(&base);
        assert_eq!(since.health, health);
    }

    #[test]
    fn a_successor_counts_on() {
        let (region, counters) = SharedCounters::create().unwrap();
        counters.rule_received(RuleSlot(3), Traffic::new(2, 2048));
        counters.output_dropped(OutputSlot(MAX_OUTPUTS - 1), DropReason::EgressFull, 5);
        counters.input_received(InputSlot(MAX_INPUTS - 1), Traffic::new(2, 2048));
        let successor = SharedCounters::map(region.as_fd()).unwrap();
        successor.rule_received(RuleSlot(3), Traffic::new(1, 1024));
        successor.input_received(InputSlot(MAX_INPUTS - 1), Traffic::new(1, 1024));
        let rule = counters.counted(Kind::Rule, 3);
        assert_eq!((rule.traffic.packets, rule.traffic.bytes), (3, 3072));
        let input = counters.counted(Kind::Input, MAX_INPUTS - 1);
        assert_eq!(input.traffic, rule.traffic);
        let output = counters.counted(Kind::Output, MAX_OUTPUTS - 1);
        assert_eq!(output.drops.0[DropReason::EgressFull as usize], 5);
    }
}
