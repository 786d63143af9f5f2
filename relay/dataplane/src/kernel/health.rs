//! Stream health on the kernel path: which routes' packets the program inspects, what it counted
//! there, and what is kept of routes that have gone.

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

/// What it found, by routes, and of routes that have gone by their rules' counters.
#[derive(Debug)]
pub(super) struct Inspections {
    health: Array<layout::Health>,
    pids: map::HashMap<u32, layout::Pids>,
    /// What is kept, for the next process.
    past: map::HashMap<u32, layout::PastHealth>,
    kept: HashMap<u32, HealthCounters>,
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

impl Inspections {
    pub(super) fn over(maps: &Maps) -> Self {
        Self {
            health: maps.health.clone(),
            pids: maps.pids.clone(),
            past: maps.past_health.clone(),
            kept: HashMap::new(),
        }
    }

    /// What the maps say of the route at `index`, whose entry says `health`.
    pub(super) fn found(&self, index: u32, health: u32) -> Option<Inspection> {
        let entry = self.health.read(index);
        (health == index + 1).then_some(Inspection {
            content: entry.content,
            per_tick: entry.per_tick,
        })
    }

    /// Makes room for what will be found in packets of the route at `index`, before they are
    /// looked at.
    pub(super) fn begin(
        &mut self,
        index: u32,
        inspection: Option<Inspection>,
    ) -> Result<(), Error> {
        let Some(inspection) = inspection else {
            return Ok(());
        };
        if inspection.looks_inside() {
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

    /// Adds what was found in packets of the route at `index` to what its rule keeps, before the route
    /// goes or is looked at for something else: the rule counts on. The number of PIDs is not kept, for
    /// they would be counted again.
    pub(super) fn keep(&mut self, index: u32, inspection: Option<Inspection>, rule: u32) {
        if inspection.is_none() {
            return;
        }
        let mut health = health(&self.health.read(index));
        health.pids = 0;
        if health.sums() == HealthCounters::default().sums() {
            return;
        }
        let kept = self.kept.entry(rule).or_default();
        kept.add_sums(&health);
        let sums = layout::PastHealth { sums: kept.sums() };
        if let Err(error) = self.past.insert(&[rule], &[sums]) {
            tracing::debug!("what a former route's packets told ends with this run: {error}");
        }
    }

    /// Reads what an earlier process kept; these are the routes that are inspected.
    pub(super) fn adopt(
        &mut self,
        routes: impl Iterator<Item = (u32, Inspection)>,
    ) -> Result<(), Error> {
        let inside = routes.filter(|(_, inspection)| inspection.looks_inside());
        let inside: HashSet<u32> = inside.map(|(index, _)| index).collect();
        self.pids.retain(|index| inside.contains(index))?;
        for (rule, found) in self.past.entries()? {
            let kept = self.kept.entry(rule).or_default();
            for (mine, theirs) in kept.sums_mut().into_iter().zip(found.sums) {
                *mine = theirs;
            }
        }
        Ok(())
    }

    /// Gives up what was kept under counters that have no owner.
    pub(super) fn retain(&mut self, is_owned: impl Fn(u32) -> bool) -> Result<(), Error> {
        Ok(self.past.retain(|rule| is_owned(*rule))?)
    }

    /// Gives up what was kept under a counter, which has or gets another owner.
    pub(super) fn forget(&mut self, rule: u32) {
        if self.kept.remove(&rule).is_none() {
            return;
        }
        if let Err(error) = self.past.remove(&[rule]) {
            tracing::debug!("what an old rule's packets told is not forgotten: {error}");
        }
    }

    /// Gives up the table of PIDs of a route whose packets are no longer inspected.
    pub(super) fn end(&mut self, index: u32, inspection: Option<Inspection>) -> Result<(), Error> {
        if inspection.is_some_and(Inspection::looks_inside) {
            self.pids.remove(&[index])?;
        }
        Ok(())
    }

    /// Reads the health of those of some rules, given by their counters, that are or were watched, of
    /// which these routes are now, each with its index and its rule.
    pub(super) fn read(
        &self,
        is_wanted: impl Fn(u32) -> bool,
        routes: impl Iterator<Item = (u32, u32)>,
    ) -> HashMap<u32, HealthCounters> {
        let mut rules: HashMap<u32, HealthCounters> = HashMap::new();
        for (rule, kept) in self.kept.iter().filter(|(rule, _)| is_wanted(**rule)) {
            rules.entry(*rule).or_default().add_sums(kept);
        }
        for (index, rule) in routes.filter(|(_, rule)| is_wanted(*rule)) {
            let found = health(&self.health.read(index));
            rules.entry(rule).or_default().add(&found);
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
