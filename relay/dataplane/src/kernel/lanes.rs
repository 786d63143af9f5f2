//! A reading of the program's maps: their words by counter, all CPUs together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bpf::layout::Tally;
use bpf::map::Counters;
use packet::latency::Latency;

use crate::counters::HealthCounters;
use crate::error::Error;

/// A reading of the maps.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// The counts, all CPUs together.
    pub(super) tallies: Tallies,
    /// The health of packets, by the rule's counter.
    pub(super) health: HashMap<u32, HealthCounters>,
    /// Their latency, by the rule's counter.
    pub(super) latency: HashMap<u32, Latency>,
}

/// The counts of some counters, in runs of adjacent ones, each by its first.
#[derive(Debug, Default)]
pub(super) struct Tallies(BTreeMap<u32, Vec<Tally>>);

/// Unneeded counters between two that are read rather than skipped: a system call costs as much.
const GAP: u32 = 8;

impl Tallies {
    /// Reads these.
    pub(super) fn of(map: &Counters, counters: BTreeSet<u32>) -> Result<Self, Error> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for counter in counters {
            match runs.last_mut() {
                Some((_, last)) if counter - *last <= GAP => *last = counter,
                _ => runs.push((counter, counter)),
            }
        }
        let mut tallies = Self::default();
        for (first, last) in runs {
            let mut run = Vec::new();
            while run.len() <= (last - first) as usize {
                let missing = (last - first) as usize + 1 - run.len();
                let from = first + run.len() as u32;
                run.extend(map.read_run(from, missing)?);
            }
            tallies.0.insert(first, run);
        }
        Ok(tallies)
    }

    /// Reads the next counters, each by itself; returns whether there were any.
    pub(super) fn read_on(&mut self, map: &Counters, used: u32) -> Result<bool, Error> {
        let tallies = self.0.entry(0).or_default();
        let missing = tallies.len() < used as usize;
        if missing {
            map.read_on(tallies, used)?;
        }
        Ok(missing)
    }

    pub(super) fn get(&self, counter: u32) -> Option<&Tally> {
        let (first, run) = self.0.range(..=counter).next_back()?;
        run.get((counter - first) as usize)
    }
}
