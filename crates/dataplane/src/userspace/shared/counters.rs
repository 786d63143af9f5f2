//! A worker's counters and heartbeat, in memory shared with the supervisor.
//!
//! One region per worker, kept by the supervisor over the worker's death, so that its successor
//! counts on from where it stopped. Every word has one writer; readers may be a batch behind.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use packet::latency::{self, Latency};
use packet::verdict::DropReason;
use sys::shared_memory::{self, Words};

use super::counted::Counted;
use super::layout::{
    HEALTH, InputSlot, OutputSlot, RuleSlot, WORDS, WorkerWord, activity_at, drops_at, health_at,
    input_at, latency_at, output_at, rule_at,
};
use crate::counters::{Drops, HealthCounters, Traffic};
use crate::owners::name::Kind;

/// One worker's region, mapped.
#[derive(Debug)]
pub(crate) struct SharedCounters {
    words: Words,
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

    /// Ring frames taken by all workers that count, or counted, in `regions`. What they brought is
    /// counted before they are.
    pub(crate) fn frames<'a>(regions: impl Iterator<Item = &'a Arc<Self>>) -> u64 {
        let frames = regions.map(|counters| counters.worker(WorkerWord::Frames));
        frames.fold(0, u64::wrapping_add)
    }

    /// Counts packets a rule received.
    #[inline]
    pub(crate) fn rule_received(&self, rule: RuleSlot, passed: Traffic) {
        self.add_traffic(rule_at(rule), passed);
        // Behind what it speaks of.
        let at = activity_at(rule);
        self.write(at, self.read(at).wrapping_add(1));
    }

    /// Reads a word that is another one when packets of a rule have been counted.
    #[must_use]
    pub(crate) fn activity(&self, rule: RuleSlot) -> u64 {
        self.read(activity_at(rule))
    }

    /// Counts those of a rule's packets that go back to who asked.
    pub(crate) fn rule_answered(&self, rule: RuleSlot, packets: u64) {
        let answers = Traffic {
            answers: packets,
            ..Traffic::default()
        };
        self.add_traffic(rule_at(rule), answers);
    }

    /// Counts packets that came by one of a rule's several inputs.
    #[inline]
    pub(crate) fn input_received(&self, input: InputSlot, passed: Traffic) {
        self.add_traffic(input_at(input), passed);
    }

    /// Counts packets a rule dropped.
    #[inline]
    pub(crate) fn rule_dropped(&self, rule: RuleSlot, reason: DropReason, packets: u64) {
        self.bump(drops_at(rule_at(rule)) + reason as usize, packets);
    }

    /// Counts packets dropped for coming by an input.
    #[inline]
    pub(crate) fn input_dropped(&self, input: InputSlot, reason: DropReason, packets: u64) {
        self.bump(drops_at(input_at(input)) + reason as usize, packets);
    }

    /// Counts copies an output sent.
    #[inline]
    pub(crate) fn output_sent(&self, output: OutputSlot, passed: Traffic) {
        self.add_traffic(output_at(output), passed);
    }

    /// Counts copies an output dropped.
    #[inline]
    pub(crate) fn output_dropped(&self, output: OutputSlot, reason: DropReason, packets: u64) {
        self.bump(drops_at(output_at(output)) + reason as usize, packets);
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

    /// Reads what a rule counts.
    #[must_use]
    pub(crate) fn rule(&self, rule: RuleSlot) -> Counted {
        let at = rule_at(rule);
        Counted {
            traffic: self.traffic(at),
            drops: self.drops(drops_at(at)),
            health: self.health(rule),
            latency: self.latency(rule),
        }
    }

    /// Reads what an input counts.
    #[must_use]
    pub(crate) fn input(&self, input: InputSlot) -> Counted {
        let at = input_at(input);
        Counted {
            traffic: self.traffic(at),
            drops: self.drops(drops_at(at)),
            ..Counted::default()
        }
    }

    /// Reads what an output counts.
    #[must_use]
    pub(crate) fn output(&self, output: OutputSlot) -> Counted {
        let at = output_at(output);
        Counted {
            traffic: self.traffic(at),
            drops: self.drops(drops_at(at)),
            ..Counted::default()
        }
    }

    /// Each word has one writer, so no other adds in between.
    #[inline]
    fn add_traffic(&self, at: usize, passed: Traffic) {
        let mut traffic = self.traffic(at);
        traffic.add(passed);
        for (offset, word) in traffic.words().into_iter().enumerate() {
            self.write(at + offset, word);
        }
    }

    #[inline]
    fn traffic(&self, at: usize) -> Traffic {
        Traffic::from_words(std::array::from_fn(|offset| self.read(at + offset)))
    }

    fn drops(&self, at: usize) -> Drops {
        Drops(std::array::from_fn(|reason| self.read(at + reason)))
    }

    /// Counts a packet of a rule that took so long.
    pub(crate) fn record_latency(&self, rule: RuleSlot, ns: u64) {
        let at = latency_at(rule);
        self.bump(at + latency::bucket(ns), 1);
        self.bump(at + latency::BUCKETS, ns);
        self.bump(at + latency::BUCKETS + 1, 1);
    }

    fn latency(&self, rule: RuleSlot) -> Latency {
        let mut seen = Latency::default();
        for (word, at) in seen.words_mut().zip(latency_at(rule)..) {
            *word = self.read(at);
        }
        seen
    }

    /// Adds the sums of `new`, what was found in a rule's packets since the last time, and takes
    /// over the rest.
    pub(crate) fn record_health(&self, rule: RuleSlot, new: &HealthCounters) {
        let at = health_at(rule);
        for (offset, count) in new.sums().into_iter().enumerate().filter(|(_, n)| *n > 0) {
            self.bump(at + offset, count);
        }
        let arrivals = &new.arrivals;
        let source = new.source.map_or(0, |(ssrc, payload_type)| {
            1 << 63 | u64::from(payload_type) << 32 | u64::from(ssrc)
        });
        let values = [
            arrivals.last_ns,
            arrivals.epoch,
            arrivals.gap_ns,
            arrivals.gap_before_ns,
            new.jitter_ns,
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

    /// Reads a word.
    pub(super) fn read(&self, at: usize) -> u64 {
        self.words
            .as_slice()
            .get(at)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Writes a word.
    pub(super) fn write(&self, at: usize, value: u64) {
        if let Some(word) = self.words.as_slice().get(at) {
            word.store(value, Ordering::Release);
        }
    }

    /// Adds to a word, by a load and a store instead of a locked add: each word has one writer.
    #[inline]
    pub(super) fn bump(&self, at: usize, count: u64) {
        if let Some(word) = self.words.as_slice().get(at) {
            let value = word.load(Ordering::Relaxed);
            word.store(value.wrapping_add(count), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::userspace::shared::layout::{MAX_INPUTS, MAX_OUTPUTS};

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
        counters.rule_received(slot, Traffic::new(1, 100));
        counters.record_health(slot, &found);
        counters.record_latency(slot, 1000);
        let base = counters.rule(slot);
        assert_eq!((base.health.lost, base.latency.samples()), (2, 1));
        assert_eq!(counters.rule(slot).since(&base), Counted::default());
        found.arrivals.last_ns = 6;
        counters.record_health(slot, &found);
        let since = counters.rule(slot).since(&base);
        assert_eq!(since.health, found);
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
        let rule = counters.rule(RuleSlot(3));
        assert_eq!((rule.traffic.packets, rule.traffic.bytes), (3, 3072));
        let input = counters.input(InputSlot(MAX_INPUTS - 1));
        assert_eq!(input.traffic, rule.traffic);
        let output = counters.output(OutputSlot(MAX_OUTPUTS - 1));
        assert_eq!(output.drops.0[DropReason::EgressFull as usize], 5);
    }
}
