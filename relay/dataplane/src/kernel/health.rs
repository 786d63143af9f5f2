//! Stream health on the kernel path: which routes' packets the program inspects, what it counted
//! there, and what is retained of removed routes.

use std::collections::{HashMap, HashSet};

use bpf::Maps;
use bpf::layout;
use bpf::map;
use compile::table::{Path, Route};
use packet::health::{Arrivals, Content, rtp};
use sys::memory::Array;

use crate::counters::HealthCounters;
use crate::error::Error;
use crate::inspection::content;
use crate::kernel::key::Key;

/// What the program is to look for in a route's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inspection {
    content: u64,
    per_tick: u64,
}

/// What it found, by route, and for removed routes by their rules' counters.
#[derive(Debug)]
pub(super) struct Inspections {
    health: Array<layout::Health>,
    pids: map::HashMap<u32, layout::Pids>,
    /// What is retained, for the next process.
    past: map::HashMap<u32, layout::PastHealth>,
    retained: HashMap<u32, HealthCounters>,
}

impl Inspection {
    /// What a route requests; for a shadow the userspace path records everything.
    pub(super) fn of(key: &Key, route: &Route) -> Option<Self> {
        let inspect = route.inspect.filter(|_| route.path == Path::Kernel)?;
        let content = content(inspect, key.is_range());
        Some(Self {
            content: content as u64,
            per_tick: rtp::per_tick(inspect.clock_hz),
        })
    }

    const fn reads_payload(self) -> bool {
        self.content != Content::None as u64
    }
}

impl Inspections {
    pub(super) fn over(maps: &Maps) -> Self {
        Self {
            health: maps.health.clone(),
            pids: maps.pids.clone(),
            past: maps.past_health.clone(),
            retained: HashMap::new(),
        }
    }

    /// What an earlier process set for the route at `index`, whose entry holds `health`.
    pub(super) fn adopted(&self, index: u32, health: u32) -> Option<Inspection> {
        let entry = self.health.read(index);
        (health == index + 1).then_some(Inspection {
            content: entry.content,
            per_tick: entry.per_tick,
        })
    }

    /// Makes room for the health of the route at `index`, before its packets are inspected.
    pub(super) fn begin(
        &mut self,
        index: u32,
        inspection: Option<Inspection>,
    ) -> Result<(), Error> {
        let Some(inspection) = inspection else {
            return Ok(());
        };
        if inspection.reads_payload() {
            self.pids.insert(&[index], &[layout::Pids::default()])?;
        }
        let entry = layout::Health {
            content: inspection.content,
            per_tick: inspection.per_tick,
            ..Default::default()
        };
        self.health.write(index, &entry);
        Ok(())
    }

    /// Adds what was found in packets of the route at `index` to what its rule retains, before the route
    /// is removed or inspected for something else: the rule counts on. The number of PIDs is not retained,
    /// because they would be counted again.
    pub(super) fn retire(&mut self, index: u32, inspection: Option<Inspection>, rule: u32) {
        if inspection.is_none() {
            return;
        }
        let mut health = health(&self.health.read(index));
        health.pids = 0;
        if health.sums() == HealthCounters::default().sums() {
            return;
        }
        let retained = self.retained.entry(rule).or_default();
        retained.add_sums(&health);
        let sums = retained.sums();
        if let Err(error) = self.past.insert(&[rule], &[layout::PastHealth { sums }]) {
            tracing::debug!("what a former route's packets told ends with this run: {error}");
        }
    }

    /// Reads what an earlier process retained; `routes` are those that are inspected.
    pub(super) fn adopt(
        &mut self,
        routes: impl Iterator<Item = (u32, Inspection)>,
    ) -> Result<(), Error> {
        let inspected = routes.filter(|(_, inspection)| inspection.reads_payload());
        let indices: HashSet<u32> = inspected.map(|(index, _)| index).collect();
        self.pids.retain(|index| indices.contains(index))?;
        for (rule, past) in self.past.entries()? {
            let retained = self.retained.entry(rule).or_default();
            for (mine, theirs) in retained.sums_mut().into_iter().zip(past.sums) {
                *mine = theirs;
            }
        }
        Ok(())
    }

    /// Drops what was retained under counters that have no owner.
    pub(super) fn retain(&mut self, is_owned: impl Fn(u32) -> bool) -> Result<(), Error> {
        Ok(self.past.retain(|rule| is_owned(*rule))?)
    }

    /// Drops what was retained under a counter that has or gets another owner.
    pub(super) fn forget(&mut self, rule: u32) {
        if self.retained.remove(&rule).is_none() {
            return;
        }
        if let Err(error) = self.past.remove(&[rule]) {
            tracing::debug!("what an old rule's packets told is not forgotten: {error}");
        }
    }

    /// Drops the table of PIDs of a route whose packets are no longer inspected.
    pub(super) fn end(&mut self, index: u32, inspection: Option<Inspection>) -> Result<(), Error> {
        if inspection.is_some_and(Inspection::reads_payload) {
            self.pids.remove(&[index])?;
        }
        Ok(())
    }

    /// Reads the health of the rules whose counters `is_wanted`, as far as they are or were watched;
    /// `routes` are the current ones, each with its index and its rule.
    pub(super) fn read(
        &self,
        is_wanted: impl Fn(u32) -> bool,
        routes: impl Iterator<Item = (u32, u32)>,
    ) -> HashMap<u32, HealthCounters> {
        let mut rules: HashMap<u32, HealthCounters> = HashMap::new();
        for (rule, retained) in self.retained.iter().filter(|(rule, _)| is_wanted(**rule)) {
            rules.entry(*rule).or_default().add_sums(retained);
        }
        for (index, rule) in routes.filter(|(_, rule)| is_wanted(*rule)) {
            let current = health(&self.health.read(index));
            rules.entry(rule).or_default().add(&current);
        }
        rules
    }
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
