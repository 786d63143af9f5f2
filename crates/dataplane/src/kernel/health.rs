//! Stream health on the kernel path: which routes' packets the program inspects, what it counted
//! there, and what is kept of routes that have gone.

use std::collections::{HashMap, HashSet};

use bpf::layout;
use model::table::{Path, Route};
use packet::health::{Arrivals, Content, rtp};

use crate::counters::HealthCounters;
use crate::error::Error;
use crate::inspection::content;
use crate::kernel::key::Key;
use crate::kernel::{Entry, Kernel};

/// What was found in packets of routes that have gone, by their rules' counters; the map `found`
/// holds the same for the next process.
#[derive(Debug, Default)]
pub(super) struct Kept(HashMap<u32, HealthCounters>);

/// What the program is told to look for in a route's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inspection {
    content: u64,
    per_tick: u64,
}

impl Inspection {
    /// What a route asks for; of a shadow the userspace path notes everything.
    pub(super) fn of(key: &Key, route: &Route) -> Option<Self> {
        let inspect = route.inspect.filter(|_| route.path == Path::Kernel)?;
        let content = content(inspect, key.is_range());
        Some(Self {
            content: content as u64,
            per_tick: rtp::per_tick(inspect.clock_hz),
        })
    }

    const fn looks_inside(self) -> bool {
        self.content != Content::None as u64
    }
}

impl Kernel {
    /// What the maps say of the route at `index`, whose entry says `health`.
    pub(super) fn adopted_inspection(&self, index: u32, health: u32) -> Option<Inspection> {
        let entry = self.program.maps.health.read(index);
        (health == index + 1).then_some(Inspection {
            content: entry.content,
            per_tick: entry.per_tick,
        })
    }

    /// Makes room for what will be found in packets of the route at `index`, before they are
    /// looked at.
    pub(super) fn begin_inspection(
        &mut self,
        index: u32,
        inspection: Option<Inspection>,
    ) -> Result<(), Error> {
        let Some(inspection) = inspection else {
            return Ok(());
        };
        let maps = &mut self.program.maps;
        if inspection.looks_inside() {
            maps.pids.insert(&[index], &[layout::Pids::default()])?;
        }
        let entry = layout::Health {
            content: inspection.content,
            per_tick: inspection.per_tick,
            ..Default::default()
        };
        maps.health.write(index, &entry);
        Ok(())
    }

    /// Adds what was found in packets of a route to what its rule keeps, before the route goes or is
    /// looked at for something else: the rule counts on. The number of PIDs is not kept, for they
    /// would be counted again.
    pub(super) fn keep_health(&mut self, entry: &Entry) {
        if entry.inspection.is_none() {
            return;
        }
        let mut health = health(&self.program.maps.health.read(entry.index));
        health.pids = 0;
        if health.sums() == HealthCounters::default().sums() {
            return;
        }
        let counter = self.rule_counter(entry.word);
        let kept = self.kept.0.entry(counter).or_default();
        kept.add_sums(&health);
        let sums = layout::PastHealth { sums: kept.sums() };
        if let Err(error) = self.program.maps.past_health.insert(&[counter], &[sums]) {
            tracing::debug!("what a former route's packets told ends with this run: {error}");
        }
    }

    /// Reads what an earlier process kept.
    pub(super) fn adopt_health(&mut self) -> Result<(), Error> {
        let inspected = self.entries.values();
        let inspected = inspected.filter(|e| e.inspection.is_some_and(Inspection::looks_inside));
        let inspected: HashSet<u32> = inspected.map(|entry| entry.index).collect();
        let pids = &mut self.program.maps.pids;
        pids.retain(|index| inspected.contains(index))?;
        for (counter, found) in self.program.maps.past_health.entries()? {
            let kept = self.kept.0.entry(counter).or_default();
            for (mine, theirs) in kept.sums_mut().into_iter().zip(found.sums) {
                *mine = theirs;
            }
        }
        Ok(())
    }

    /// Gives up what was kept under a counter, which has or gets another owner.
    pub(super) fn forget_health(&mut self, counter: u32) {
        if self.kept.0.remove(&counter).is_none() {
            return;
        }
        if let Err(error) = self.program.maps.past_health.remove(&[counter]) {
            tracing::debug!("what an old rule's packets told is not forgotten: {error}");
        }
    }

    /// Gives up the table of PIDs of a route whose packets are no longer looked at.
    pub(super) fn end_inspection(
        &mut self,
        index: u32,
        inspection: Option<Inspection>,
    ) -> Result<(), Error> {
        if inspection.is_some_and(Inspection::looks_inside) {
            self.program.maps.pids.remove(&[index])?;
        }
        Ok(())
    }
}

/// Reads the health of those of some rules, given by their counters, that are or were watched, by
/// their names.
pub(super) fn read<'a>(
    kernel: &Kernel,
    names: &HashMap<u32, &'a str>,
) -> HashMap<&'a str, HealthCounters> {
    let mut rules = HashMap::new();
    for (counter, kept) in &kernel.kept.0 {
        if let Some(name) = names.get(counter) {
            let rule: &mut HealthCounters = rules.entry(*name).or_default();
            rule.add_sums(kept);
        }
    }
    let watched = kernel
        .inspected
        .iter()
        .filter_map(|key| kernel.entries.get(key));
    for entry in watched {
        if let Some(name) = names.get(&kernel.rule_counter(entry.word)) {
            let read = kernel.program.maps.health.read(entry.index);
            rules.entry(*name).or_default().add(&health(&read));
        }
    }
    rules
}

fn health(counted: &layout::Health) -> HealthCounters {
    HealthCounters {
        arrivals: Arrivals {
            last_ns: match counted.last_ns {
                0 => 0,
                last => sys::clock::from_kernel_ns(last),
            },
            epoch: counted.epoch,
            gap_ns: counted.gap_ns,
            gap_before_ns: counted.gap_before_ns,
        },
        rtp_packets: counted.rtp_packets,
        lost: counted.lost,
        reordered: counted.reordered,
        duplicated: counted.duplicated,
        restarts: counted.restarts,
        ssrc_changes: counted.ssrc_changes,
        jitter_ns: counted.jitter_ns_16 >> 4,
        source: (counted.followed != 0).then_some((counted.ssrc, counted.payload_type as u8)),
        ts_packets: counted.ts_packets,
        continuity_errors: counted.continuity_errors,
        transport_errors: counted.transport_errors,
        sync_errors: counted.sync_errors,
        pids: counted.pids,
        unrecognised: counted.unrecognised,
    }
}
