//! The supervisor's side of the userspace path: names the counters, and starts, feeds and replaces
//! the workers. It touches no packet.

pub(crate) mod error;
mod filter;
mod handover;
mod kernel_routes;
mod memory;
mod owner_file;
mod pool;
mod process;
mod taps;
mod turns;
mod worker_handle;
mod worker_spec;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use compile::diff::TableDiff;
use compile::table::{Path, Route, RouteKey, Table};
use rules::merge::By;
use sys::shared_memory::Region;

use crate::counters::{
    Arrived, Counters, FlowStats, HealthCounters, MergeCounters, Traffic, WorkerStats,
};
use crate::gates::{self, Gates};
use crate::limits::{self, Limiter};
use crate::merge::MergeParams;
use crate::owners::name::{Kind, Name};
use crate::owners::registry::Progress;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::merges;
use crate::userspace::shared::messages::{CountedRoute, MergeLeg, TableChange, Turn};
use handover::{Inheritance, Label};
use kernel_routes::KernelRoutes;
use owner_file::OwnerFile;
use pool::Pool;
use worker_spec::{Common, Interfaces};

pub use error::Error;
pub use worker_spec::Options;

/// The userspace path, as the supervisor holds it.
#[derive(Debug)]
pub(crate) struct Userspace {
    pool: Pool,
    /// Its routes, which may be ten thousand.
    counted: BTreeMap<RouteKey, CountedRoute>,
    common: Common,
    kernel_routes: KernelRoutes,
    gates: Gates,
    /// Those that change paths.
    turns: HashMap<RouteKey, Turn>,
    /// The memory in which the owners are recorded, once there is one.
    owner_file: Option<OwnedFd>,
}

/// Returns why the path is not available in this process, `Ok` if it is.
///
/// # Errors
/// [`Error::Unavailable`].
pub fn support() -> Result<(), Error> {
    sys::packet_socket::PacketSocket::egress(1 << 16)
        .map(drop)
        .map_err(Error::Unavailable)
}

impl Userspace {
    /// The memory that it counts in and decides by.
    pub(crate) const fn control(&self) -> &memory::WorkerControl {
        &self.pool.control
    }

    /// Prepares the path. Workers are started when the first route needs them.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub(crate) fn open(options: Options, gates: Gates) -> Result<Self, Error> {
        support()?;
        let pool = Pool::new(options)?;
        gates.adopt(Path::Userspace, pool.gates().memory());
        Ok(Self {
            pool,
            gates,
            counted: BTreeMap::new(),
            common: Common::default(),
            turns: HashMap::new(),
            kernel_routes: KernelRoutes::default(),
            owner_file: None,
        })
    }

    /// Takes over from an earlier supervisor, before the first change: counters continue, and workers
    /// that outlived it forward until [`Userspace::end_predecessors`].
    ///
    /// # Errors
    /// [`Error::System`] when there is no memory to record names in; the path works without.
    pub(crate) fn inherit(&mut self, held: Vec<(String, OwnedFd)>) -> Result<(), Error> {
        let Inheritance {
            regions,
            state,
            mut merges,
            former_merges,
            gates,
            predecessors,
            owners,
        } = Inheritance::sort(held);
        self.pool.inherit(regions, state, gates, predecessors);
        if let Some(former) = former_merges {
            self.pool.end_predecessors();
            merges = Some(handover::grown(&former).map_err(|source| Error::System {
                what: "making room for the windows of merged rules",
                source,
            })?);
        }
        let memory = self.pool.gates().memory();
        self.gates.adopt(Path::Userspace, memory);
        // Without the owners the merges belong to no rule.
        let merges = merges.filter(|_| owners.is_some());
        let (fd, file) = match owners {
            Some(owners) => owners,
            None => OwnerFile::create().map_err(|source| Error::System {
                what: "making shared memory",
                source,
            })?,
        };
        self.pool.control.adopt_owners(file);
        self.owner_file = Some(fd);
        if let Some(merges) = merges {
            let rules = self.pool.control.owners(Kind::Rule).used();
            let merges = merges::inherit(merges, rules);
            self.pool.control.merges = merges.map_err(|source| Error::System {
                what: "reading the windows of merged rules",
                source,
            })?;
        }
        Ok(())
    }

    /// Descriptors to be held by another process, under these labels, for [`Userspace::inherit`].
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = (String, BorrowedFd<'_>)> {
        let owner_files = self.owner_file.iter();
        let owners = owner_files.map(|fd| (Label::Owners, fd.as_fd()));
        let all = owners.chain(self.pool.descriptors());
        all.map(|(label, fd)| (label.to_string(), fd))
    }

    /// Makes the path execute exactly its own routes of `table`; [`Userspace::end_predecessors`] has to follow.
    ///
    /// # Errors
    /// As [`Userspace::apply`].
    pub(crate) fn sync(&mut self, table: &Table) -> Result<(), Error> {
        let mut own = table.clone();
        own.routes.retain(|_, route| route.path == Path::Userspace);
        self.kernel_routes.replace(table);
        let diff = TableDiff::between(&self.table(), &own);
        self.apply(&diff, &TableDiff::default())
    }

    /// Starts the workers unless they run.
    ///
    /// # Errors
    /// [`Error::Start`].
    pub(crate) fn start(&mut self) -> Result<(), Error> {
        self.pool.start(&self.common)
    }

    /// Checks that a change can be applied: that its counters fit and its workers run.
    ///
    /// # Errors
    /// [`Error::Capacity`], [`Error::MergeRoom`] and [`Error::Start`], with nothing changed.
    pub(crate) fn prepare(&mut self, diff: &TableDiff) -> Result<(), Error> {
        let added = diff.set.iter().map(|(_, route)| route);
        self.pool.control.check_room(added.clone())?;
        self.prepare_merges(added)?;
        if !diff.set.is_empty() {
            self.pool.start(&self.common)?;
        }
        Ok(())
    }

    /// Applies a change: `own` has the routes of this path, `whole` those of both. When this
    /// returns, every worker that runs executes the new table.
    ///
    /// # Errors
    /// As [`Userspace::prepare`], with nothing changed.
    pub(crate) fn apply(&mut self, own: &TableDiff, whole: &TableDiff) -> Result<(), Error> {
        self.prepare(own)?;
        let mut change = TableChange::default();
        let mut interfaces = None;
        if !own.is_empty() {
            change = self.assign(own)?;
            interfaces = Some(Interfaces::of(self.counted.iter()));
        }
        self.kernel_routes.apply(whole);
        let (removed, added) = self.kernel_routes.changes(whole, interfaces.as_ref());
        if own.is_empty() && removed.is_empty() && added.is_empty() {
            return Ok(());
        }
        (change.elsewhere_removed, change.elsewhere_added) = (removed, added);
        self.common.elsewhere = self.kernel_routes.published().collect();
        let interfaces = interfaces.unwrap_or_else(|| self.pool.interfaces().clone());
        self.pool
            .change(&change, &interfaces, &self.counted, &self.common);
        self.settle();
        Ok(())
    }

    /// Gives back what no worker uses any more.
    fn settle(&mut self) {
        let mut merged = HashMap::new();
        let (mut failing_over, mut routed) = (HashSet::new(), HashSet::new());
        for CountedRoute {
            route, rule, lines, ..
        } in self.counted.values()
        {
            routed.insert(rule.0);
            if route.merge.is_some() {
                let slots = || lines.iter().map(|line| line.0).collect::<Vec<u32>>();
                merged.entry(rule.0).or_insert_with(slots);
            }
            if route.failover.is_some() {
                failing_over.insert(rule.0);
            }
        }
        let control = &mut self.pool.control;
        let failovers = &mut control.failovers;
        failovers.end_others(|rule| failing_over.contains(&rule) || !routed.contains(&rule));
        let merges = &mut control.merges;
        for rule in merges.rules() {
            let is_off = !routed.contains(&rule);
            let legs = merged.get(&rule).map(Vec::as_slice);
            merges.retain_legs(rule, legs.or(is_off.then_some(&[])));
        }
        self.free_merges();
        let used = self.counted.values().filter_map(|counted| counted.gate);
        self.gates.release_others(Path::Userspace, used);
        self.gates.grace_period_passed(Path::Userspace);
    }

    /// Makes room for the merges of new routes.
    fn prepare_merges<'a>(&mut self, routes: impl Iterator<Item = &'a Route>) -> Result<(), Error> {
        let control = &mut self.pool.control;
        control.merges.drop_prepared()?;
        for route in routes {
            let Some(merge) = &route.merge else {
                continue;
            };
            let params = MergeParams::of(&merge.how);
            let hash = Name::Rule(&route.rule).hash();
            let rule = (hash, control.slot(Kind::Rule, &hash));
            let mut has_room = control.merges.prepare(rule, params)?;
            if !has_room && control.merges.is_waiting() {
                control.merges.free()?;
                has_room = control.merges.prepare(rule, params)?;
            }
            if !has_room {
                control.merges.drop_prepared()?;
                return Err(no_room(route));
            }
        }
        Ok(())
    }

    /// The table that the path executes.
    fn table(&self) -> Table {
        let routes = self.counted.iter();
        Table {
            routes: routes
                .map(|(k, counted)| (*k, counted.route.clone()))
                .collect(),
            own_addresses: self.common.own_addresses.clone(),
            budget: self.common.budget,
        }
    }

    /// Adds everything counted to `counters`, a part of it at a time; returns whether there is more.
    pub(crate) fn read_counters(&self, progress: &mut Progress, counters: &mut Counters) -> bool {
        self.pool.note_judged();
        self.pool.control.read(&(), progress, counters);
        if progress.is_done() {
            for (name, by) in self.merged_in_parts() {
                if let Some(rule) = counters.rules.get_mut(name)
                    && let Some(merge) = self.pool.control.merge_of(name)
                {
                    rule.add_health(&health_of(by, &merge, rule.received));
                }
            }
            counters.workers = self.worker_counters();
        }
        !progress.is_done()
    }

    /// The rules that packets have arrived for since `seen`.
    pub(crate) fn changed_rules(&self, seen: &mut Vec<u64>) -> Vec<Arc<str>> {
        self.pool.control.changed_rules(seen)
    }

    /// Adds what these rules received; unless there are `more`, the health of all that were read whose
    /// streams no worker sees whole.
    pub(crate) fn read_arrived(&self, rules: &[Arc<str>], more: bool, arrived: &mut Arrived) {
        self.pool.note_judged();
        self.pool.control.read_arrived(&(), rules, arrived);
        for (rule, by) in self.merged_in_parts().filter(|_| !more) {
            if let Some(rule) = arrived.get_mut(rule)
                && let Some(merge) = &rule.merge
            {
                let health = health_of(by, &merge.counters, rule.traffic);
                rule.add(Traffic::default(), &health);
            }
        }
    }

    /// A number that changes when the workers change.
    pub(crate) fn worker_revision(&self) -> u64 {
        self.pool.revision()
    }

    /// Whether packets arrive or wait, or a worker is about to start.
    pub(crate) const fn is_busy(&self) -> bool {
        self.pool.is_busy()
    }

    /// The counters of workers, and of earlier ones.
    pub(crate) fn worker_memory(&self) -> impl Iterator<Item = &Arc<SharedCounters>> {
        self.pool.counters()
    }

    /// The merged rules that are watched although no worker sees all of their streams, each once.
    fn merged_in_parts(&self) -> impl Iterator<Item = (&str, By)> {
        let mut seen = HashSet::new();
        self.counted.values().filter_map(move |counted| {
            let is_watched = counted.route.inspect.is_some() && !counted.is_seen_whole;
            let merge = counted.route.merge.as_ref().filter(|_| is_watched)?;
            let is_first = seen.insert(counted.rule);
            is_first.then_some((counted.route.rule.as_str(), merge.how.by))
        })
    }

    /// Reads what each worker counted.
    pub(crate) fn worker_counters(&self) -> Vec<WorkerStats> {
        self.pool.worker_counters()
    }

    /// Reads the flows of a rule, of each worker by itself.
    pub(crate) fn flows(&self, rule: &str) -> Vec<FlowStats> {
        let owner = self.pool.control.flows(rule);
        let flows = owner.map(|owner| self.pool.flows(owner));
        flows.unwrap_or_default()
    }

    /// Ends the counters of a rule that has no route any more.
    pub(crate) fn forget(&mut self, rule: &str) {
        self.pool.control.forget(rule);
        self.free_merges();
    }

    /// Gives back the memory of merges that have ended: no worker uses it any more.
    fn free_merges(&mut self) {
        let merges = &mut self.pool.control.merges;
        if let Err(error) = merges.drop_prepared().and_then(|()| merges.free()) {
            tracing::debug!("memory of merged legs is not given back: {error}");
        }
    }

    /// Replaces workers that died or hang. To be called about every 50 ms while it
    /// [is busy](Userspace::is_busy), and twice a second otherwise.
    pub(crate) fn tick(&mut self) {
        self.pool.tick(&self.counted, &self.common);
    }

    /// Forwards what has arrived and ends the workers.
    pub(crate) fn close(self) {
        self.pool.end();
    }

    /// Leaves the workers to the next supervisor; the process that holds their descriptors keeps them
    /// running.
    pub(crate) fn leave(self) {
        self.pool.leave();
    }

    /// Makes an input the active one of its rule; `false` if it is none of the rule's lines.
    pub(crate) fn switch(&mut self, rule: &str, input: &str) -> bool {
        self.pool.control.switch(rule, input)
    }

    /// Gives a route's line its position in the rule's merge, which is made if there is room for it.
    fn join(&mut self, counted: &mut CountedRoute) -> Result<(), Error> {
        let Some(merge) = &counted.route.merge else {
            return Ok(());
        };
        let params = MergeParams::of(&merge.how);
        let rule = (Name::Rule(&counted.route.rule).hash(), counted.rule.0);
        let merges = &mut self.pool.control.merges;
        let merge = merges
            .begin(rule, params)
            .ok_or_else(|| no_room(&counted.route))?;
        let mut position = (!params.format.has_lines()).then_some(0);
        if position.is_none() {
            let lines: Vec<u32> = counted.lines.iter().map(|line| line.0).collect();
            for line in &counted.lines {
                let joined = merges.join(merge, line.0, &lines);
                position = position.or(joined.filter(|_| counted.input == Some(*line)));
            }
        }
        counted.leg = position.map(|position| MergeLeg {
            merge: merge.index,
            position,
        });
        Ok(())
    }

    /// Applies the change to the supervisor's own table and names the counters.
    fn assign(&mut self, diff: &TableDiff) -> Result<TableChange, Error> {
        let mut replaced: Vec<Route> = Vec::new();
        for key in &diff.removed {
            if let Some(counted) = self.counted.remove(key) {
                replaced.push(counted.route);
            }
        }
        let mut set = Vec::with_capacity(diff.set.len());
        for (key, route) in &diff.set {
            let acquired = self.pool.control.acquire_route(route)?;
            let mut counted = acquired.ok_or(Error::Capacity {
                rules: 0,
                inputs: 0,
                outputs: 1,
            })?;
            self.join(&mut counted)?;
            // Without a gate it passes nothing; the check for room rules that out.
            let gate = |share: &String| self.gates.acquire(Path::Userspace, share);
            counted.gate = route
                .share
                .as_ref()
                .map(|share| gate(share).unwrap_or(gates::SHUT));
            counted.turn = self.turns.get(key).copied();
            counted.is_seen_whole = counted.leg.is_none() || self.pool.is_single();
            if let Some(failover) = counted.failover() {
                let control = &mut self.pool.control;
                control.set_failover(counted.rule.0, Some(failover))?;
            }
            let before = self.counted.insert(*key, counted.clone());
            replaced.extend(before.map(|counted| counted.route));
            set.push((*key, counted));
        }
        for route in &replaced {
            self.pool.control.release_route(route);
        }
        if let Some(own) = &diff.own {
            self.common.own_addresses = own.clone();
        }
        if let Some(change) = diff.budget {
            let limit = change.0.map(limits::new).unwrap_or_default();
            self.pool.control.set_limit(Limiter::Budget, limit);
            self.common.budget = change.0;
        }
        Ok(TableChange {
            removed: diff.removed.clone(),
            set,
            own: diff.own.clone(),
            budget: diff.budget,
            ..TableChange::default()
        })
    }
}

fn no_room(route: &Route) -> Error {
    let packets = route.merge.as_ref().map_or(0, |lines| lines.how.packets);
    Error::MergeRoom {
        rule: route.rule.clone(),
        packets,
    }
}

/// The health of a merged rule's stream, as far as it is known where no worker sees all of it.
fn health_of(by: By, merge: &MergeCounters, received: Traffic) -> HealthCounters {
    let mut health = HealthCounters::default();
    health.arrivals.last_ns = received.last_ns;
    if by == By::Rtp {
        health.rtp_packets = merge.lines.values().map(|line| line.first).sum();
        health.lost = merge.together.lost;
    }
    health
}

/// Reads words as the file of the counters' owners. For fuzzers and tests.
#[cfg(feature = "rehearsal")]
pub(crate) fn read_owners(words: &[u64]) {
    owner_file::read_all(words);
}

/// Reads the label of a descriptor. For fuzzers and tests.
#[cfg(feature = "rehearsal")]
pub(crate) fn read_label(text: &str) {
    let _ = text.parse::<handover::Label>();
}
