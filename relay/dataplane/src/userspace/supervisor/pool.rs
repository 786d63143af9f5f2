//! All workers: they are started together, get the same messages, and are replaced one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::merge::Windows;
use bpf::rcu;
use compile::table::RouteKey;
use sys::shared_memory::{Held, Region};

use super::error::Error;
use super::handover::{self, CounterRegion, Label, Predecessor, RegionId};
use super::memory::{WorkerControl, WorkerMemory};
use super::process::{Process, SharedRegions};
use super::taps::Fanouts;
use super::worker_handle::WorkerHandle;
use super::worker_spec::{Common, Interfaces, Options};
use crate::control::Control;
use crate::counters::{FlowStats, WorkerStats};
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::flows::FlowOwner;
use crate::userspace::shared::gates::SharedGates;
use crate::userspace::shared::layout::WorkerWord;
use crate::userspace::shared::merges;
use crate::userspace::shared::messages::{self, CountedRoute, TableChange};
use crate::userspace::shared::state::SharedState;

/// How often taps are compared with what the kernel has, ticks permitting.
const THOROUGH: Duration = Duration::from_millis(900);

/// The workers.
#[derive(Debug)]
pub(super) struct Pool {
    options: Options,
    cpus: Vec<u32>,
    workers: Vec<WorkerHandle>,
    fanouts: Fanouts,
    interfaces: Interfaces,
    /// When taps were compared last.
    compared: Instant,
    /// Frames that workers had taken at the last tick, and whether there is to be another one soon.
    frames: u64,
    is_busy: bool,
    /// The state by which all workers decide, those of earlier supervisors too.
    state: Held<SharedState>,
    /// The gates of shares, likewise.
    gates: Held<SharedGates>,
    /// The control side of that state, and the memory in which workers count.
    pub(super) control: WorkerControl,
    /// Workers of an earlier supervisor, until ours take over.
    predecessors: Vec<Predecessor>,
}

impl Pool {
    /// Decides how many workers there will be and where; starts none.
    ///
    /// # Errors
    /// [`Error::System`] if the usable cores cannot be read.
    pub(super) fn new(mut options: Options) -> Result<Self, Error> {
        let cpus = sys::capability::usable_cpus().map_err(|source| Error::System {
            what: "reading the usable cores",
            source,
        })?;
        if options.workers == 0 {
            options.workers = cpus.len().max(1);
        }
        let shared_memory = |source| Error::System {
            what: "making shared memory",
            source,
        };
        let state = SharedState::create().map_err(shared_memory)?;
        let merges = Windows::create().map_err(shared_memory)?;
        Ok(Self {
            options,
            cpus,
            workers: Vec::new(),
            fanouts: BTreeMap::new(),
            interfaces: Interfaces::default(),
            compared: Instant::now(),
            frames: 0,
            is_busy: false,
            control: Control::new(
                WorkerMemory::default(),
                state.1.failovers(),
                merges::of_region(merges),
            ),
            state,
            gates: SharedGates::create().map_err(shared_memory)?,
            predecessors: Vec::new(),
        })
    }

    /// Continues the counters of an earlier supervisor's workers, and lets those that still run continue
    /// until ours take over.
    pub(super) fn inherit(
        &mut self,
        regions: Vec<Arc<CounterRegion>>,
        state: Option<Held<SharedState>>,
        gates: Option<Held<SharedGates>>,
        workers: Vec<Predecessor>,
    ) {
        self.control.memory.regions.extend(regions);
        if let Some(state) = state {
            self.control.failovers = state.1.failovers();
            self.state = state;
        }
        if let Some(gates) = gates {
            self.gates = gates;
        }
        self.predecessors.extend(workers);
    }

    /// Has workers of an earlier supervisor go by the time of the hand-over, however late they notice their end.
    pub(super) fn relieve_predecessors(&self) {
        for worker in &self.predecessors {
            let mut regions = self.regions().iter();
            if let Some(region) = regions.find(|region| region.id == worker.id()) {
                region.counters.add(WorkerWord::Relieved, 1);
            }
        }
    }

    /// Ends workers of an earlier supervisor; to be called when ours are ready, or not needed.
    pub(super) fn end_predecessors(&mut self) {
        if !self.predecessors.is_empty() {
            let predecessors = std::mem::take(&mut self.predecessors);
            handover::stand_down(predecessors, self.regions());
        }
    }

    /// Descriptors to be held for the next supervisor.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (Label, BorrowedFd<'_>)> {
        let counted = self.regions().iter();
        let regions = counted.map(|region| (Label::Region(region.id), region.fd.as_fd()));
        let processes = self.workers.iter().filter_map(|worker| {
            let process = worker.process()?;
            Some((worker.region.id, process))
        });
        let running = processes.flat_map(|(id, process)| {
            [
                (Label::Control(id, process.pid), process.control()),
                (Label::Process(id, process.pid), process.handle()),
            ]
        });
        let state = [
            (Label::State, self.state.0.as_fd()),
            (Label::Merges, self.control.merges.blocks.region.as_fd()),
            (Label::Gates, self.gates.0.as_fd()),
        ];
        // If this supervisor is killed before it takes over, the next one inherits them.
        let earlier = self.predecessors.iter().flat_map(Predecessor::descriptors);
        regions.chain(state).chain(running).chain(earlier)
    }

    /// Leaves the workers running for the next supervisor, who is given their descriptors.
    pub(super) fn leave(self) {
        self.workers.into_iter().for_each(WorkerHandle::leave);
    }

    /// A region that no running worker counts in.
    fn region(&mut self, worker: u32) -> io::Result<Arc<CounterRegion>> {
        let is_used = |id: RegionId| self.predecessors.iter().any(|other| other.id() == id);
        let mut own = self
            .regions()
            .iter()
            .filter(|region| region.id.worker == worker);
        if let Some(free) = own.find(|region| !is_used(region.id)) {
            return Ok(Arc::clone(free));
        }
        let own = self
            .regions()
            .iter()
            .filter(|region| region.id.worker == worker);
        let region = own.map(|region| region.id.region + 1).max().unwrap_or(0);
        let (fd, counters) = SharedCounters::create()?;
        let made = Arc::new(CounterRegion {
            id: RegionId { worker, region },
            fd,
            counters: Arc::new(counters),
        });
        self.control.memory.regions.push(Arc::clone(&made));
        Ok(made)
    }

    /// Starts all workers unless they have been; returns once they are ready.
    ///
    /// # Errors
    /// [`Error::Start`], with none left running.
    pub(super) fn start(&mut self, common: &Common) -> Result<(), Error> {
        if !self.workers.is_empty() {
            return Ok(());
        }
        let started = self.start_all(common);
        if let Err(source) = started {
            let words = self.options.worker_command.iter();
            let command = words.map(|word| word.to_string_lossy().into_owned());
            std::mem::take(&mut self.workers)
                .into_iter()
                .for_each(WorkerHandle::end);
            return Err(Error::Start {
                command: command.collect(),
                source: Box::new(source),
            });
        }
        Ok(())
    }

    fn start_all(&mut self, common: &Common) -> Result<(), messages::Error> {
        let cpus = self.cpus.clone();
        for (id, cpu) in (0..self.options.workers as u32).zip(cpus.into_iter().cycle()) {
            let shared = SharedRegions {
                state: self.state.0.try_clone()?,
                merges: self.control.merges.blocks.region.try_clone()?,
                gates: self.gates.0.try_clone()?,
            };
            let regions = (self.region(id)?, shared);
            let known = (&self.options, &self.interfaces, common);
            let worker = WorkerHandle::start((id, cpu), regions, known)?;
            self.workers.push(worker);
        }
        for worker in &mut self.workers {
            worker.await_confirmation()?;
        }
        Ok(())
    }

    /// A number that changes when the workers change, or the memory that they count in.
    pub(super) fn revision(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for worker in &self.workers {
            let pid = worker.process().map(|process| process.pid);
            pid.hash(&mut hasher);
        }
        (self.regions().len(), self.predecessors.len()).hash(&mut hasher);
        hasher.finish()
    }

    /// What workers listen to and send by.
    pub(super) const fn interfaces(&self) -> &Interfaces {
        &self.interfaces
    }

    /// The memory in which workers count, and those of earlier supervisors counted.
    fn regions(&self) -> &[Arc<CounterRegion>] {
        &self.control.memory.regions
    }

    /// The gates of shares.
    pub(super) const fn gates(&self) -> &SharedGates {
        &self.gates.1
    }

    /// Returns whether one worker gets all packets.
    pub(super) const fn is_single(&self) -> bool {
        self.options.workers == 1
    }

    /// Sends all workers a change, after which new limits start full. A worker that does not take it is
    /// killed, and will start again with the whole table.
    pub(super) fn change(
        &mut self,
        change: &TableChange,
        interfaces: &Interfaces,
        counted: &BTreeMap<RouteKey, CountedRoute>,
        common: &Common,
    ) {
        self.interfaces = interfaces.clone();
        for worker in &mut self.workers {
            worker.try_or_kill(|process| {
                process.add_egress(interfaces.egress.iter().copied())?;
                process.change(change.clone())?;
                process.add_taps(interfaces.ingress.keys().copied())?;
                process.request_confirmation()
            });
        }
        for worker in &mut self.workers {
            worker.try_or_kill(Process::await_confirmation);
        }
        for limiter in std::mem::take(&mut self.control.memory.fresh) {
            self.state.1.fill(limiter);
        }
        let joined = self.join_taps();
        self.open_taps(joined);
        for worker in &mut self.workers {
            worker.try_or_kill(|process| {
                process.drop_taps(|interface| interfaces.ingress.contains_key(&interface))?;
                process.drop_egress(|way| interfaces.egress.contains(&way))
            });
        }
        self.fanouts
            .retain(|interface, _| interfaces.ingress.contains_key(interface));
        self.tick(counted, common);
    }

    /// Joins new taps of running workers to the groups that share packets; they stay closed.
    /// Returns whether there were any.
    fn join_taps(&mut self) -> bool {
        let mut any = false;
        let alone = self.workers.len() == 1;
        for worker in &self.workers {
            let Some(process) = worker.running() else {
                continue;
            };
            for tap in process.taps().fresh() {
                let peers = (!alone).then_some(&mut self.fanouts);
                match tap.join(peers) {
                    Ok(()) => any = true,
                    Err(error) => tracing::error!(
                        "worker {}: cannot open the tap on interface {}: {error}",
                        worker.id,
                        tap.interface
                    ),
                }
            }
        }
        any
    }

    /// Opens the taps of all workers that run, or renews their filters; after a grace period if some
    /// have only `joined`. A packet on its way past the taps of its interface is taken by one that is
    /// about to join, by its new group, and by an old tap that is being closed; whichever comes first
    /// has to be the only one.
    fn open_taps(&self, joined: bool) {
        if joined && let Err(error) = rcu::wait() {
            tracing::warn!("packets in flight may be doubled: {error}");
        }
        for worker in &self.workers {
            let Some(process) = worker.running() else {
                continue;
            };
            let taps = process.taps();
            for interface in self.interfaces.ingress.keys() {
                let listening = self.interfaces.listening(*interface);
                if let Err(error) = taps.open(*interface, &listening) {
                    tracing::error!(
                        "worker {}: cannot open the tap on interface {interface}: {error}",
                        worker.id
                    );
                }
            }
        }
    }

    /// Replaces workers that died or hang, and finishes starts.
    pub(super) fn tick(&mut self, counted: &BTreeMap<RouteKey, CountedRoute>, common: &Common) {
        let mut ready = false;
        for worker in &mut self.workers {
            ready |= worker.tick(&self.options, &self.interfaces, counted, common);
        }
        if ready {
            let joined = self.join_taps();
            self.open_taps(joined);
        }
        if self.compared.elapsed() >= THOROUGH {
            self.compared = Instant::now();
            self.renew_taps();
        }
        let before = self.frames;
        self.frames = SharedCounters::frames(self.counters());
        self.is_busy = before != self.frames || !self.workers.iter().all(WorkerHandle::is_idle);
    }

    /// Returns whether the next tick is wanted soon: packets arrive or wait, or a worker is about to start.
    pub(super) const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// The counters of workers, and of earlier ones.
    pub(super) fn counters(&self) -> impl Iterator<Item = &Arc<SharedCounters>> {
        self.regions().iter().map(|region| &region.counters)
    }

    /// Makes taps anew whose interface was removed and added again, whether or not that was reported.
    fn renew_taps(&mut self) {
        let running = self.workers.iter().filter_map(WorkerHandle::running);
        let orphaned: BTreeSet<u32> = running
            .flat_map(|process| process.taps().orphaned().collect::<Vec<_>>())
            .collect();
        if orphaned.is_empty() {
            return;
        }
        tracing::warn!(interfaces = ?orphaned, "interfaces were made anew; so are the taps there");
        for worker in &mut self.workers {
            worker.try_or_kill(|process| {
                process.drop_taps(|interface| !orphaned.contains(&interface))?;
                process.add_taps(orphaned.iter().copied())?;
                process.request_confirmation()
            });
        }
        for worker in &mut self.workers {
            worker.try_or_kill(Process::await_confirmation);
        }
        // Those taps shared the packets of the interface that was removed.
        self.fanouts
            .retain(|interface, _| !orphaned.contains(interface));
        let joined = self.join_taps();
        self.open_taps(joined);
    }

    /// The flows of a rule's ranges, as each worker saw them.
    pub(super) fn flows(&self, owner: FlowOwner) -> Vec<FlowStats> {
        let regions = self.regions().iter();
        let seen = regions.flat_map(|region| region.counters.flows(owner));
        let flow = |(group, port, received)| FlowStats {
            group,
            port,
            received,
        };
        seen.map(flow).collect()
    }

    /// Makes readings of merged legs refer to the time until which all workers have judged what arrived.
    pub(super) fn note_judged(&self) {
        self.control.merges.note_judged(self.judged_ns());
    }

    /// Until when all workers have judged what arrived.
    pub(super) fn judged_ns(&self) -> u64 {
        let running = self.workers.iter().filter_map(WorkerHandle::running);
        let judged = running.map(|process| process.taps().judged_ns());
        judged.min().unwrap_or(u64::MAX)
    }

    /// Returns whether workers of an earlier supervisor still forward.
    pub(super) const fn has_predecessors(&self) -> bool {
        !self.predecessors.is_empty()
    }

    /// The workers' own counters.
    pub(super) fn worker_counters(&self) -> Vec<WorkerStats> {
        let workers = self.workers.iter();
        workers
            .map(|worker| worker.counters(self.regions()))
            .collect()
    }

    /// Ends all workers.
    pub(super) fn end(self) {
        self.workers.into_iter().for_each(WorkerHandle::end);
    }
}
