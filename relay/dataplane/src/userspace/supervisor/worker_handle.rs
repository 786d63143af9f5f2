//! One worker as the supervisor sees it, across its processes: started, confirmed, watched, and started
//! again after a pause when it dies or hangs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use compile::diff::BudgetChange;
use compile::table::RouteKey;

use super::handover::CounterRegion;
use super::process::{Process, START, SharedRegions};
use super::worker_spec::{Common, Interfaces, Options};
use crate::counters::WorkerStats;
use crate::userspace::shared::layout::WorkerWord;
use crate::userspace::shared::messages::{self, CountedRoute, TableChange};

/// First pause before a worker is started again; doubled with each failure.
const BACKOFF: Duration = Duration::from_millis(250);
/// Longest pause.
const MAX_BACKOFF: Duration = Duration::from_secs(8);
/// A worker that ran this long starts over with the first pause.
const STABLE: Duration = Duration::from_secs(10);

/// One worker, across its processes.
#[derive(Debug)]
pub(super) struct WorkerHandle {
    /// Number, from 0.
    pub id: u32,
    cpu: u32,
    /// The region in which it counts.
    pub region: Arc<CounterRegion>,
    shared: SharedRegions,
    state: State,
    backoff: Duration,
    /// Times it was started again by this supervisor.
    restarts: u64,
}

#[derive(Debug)]
enum State {
    /// Started, not yet confirmed: its taps are closed.
    Starting(Process),
    Running(Process),
    /// To be started again at that time.
    Waiting(Instant),
}

impl WorkerHandle {
    /// Starts a worker on the core `cpu` with what the path knows so far; it is not confirmed yet.
    ///
    /// # Errors
    /// The program cannot be run, or the conversation fails.
    pub(super) fn start(
        (id, cpu): (u32, u32),
        (region, shared): (Arc<CounterRegion>, SharedRegions),
        (options, interfaces, common): (&Options, &Interfaces, &Common),
    ) -> Result<Self, messages::Error> {
        let mut worker = Self {
            id,
            cpu,
            region,
            shared,
            state: State::Waiting(Instant::now()),
            backoff: BACKOFF,
            restarts: 0,
        };
        // The first change will add the routes.
        let process = worker.launch(options, interfaces, &BTreeMap::new(), common)?;
        worker.state = State::Running(process);
        Ok(worker)
    }

    /// Starts the process and sends it the whole table.
    fn launch(
        &self,
        options: &Options,
        interfaces: &Interfaces,
        counted: &BTreeMap<RouteKey, CountedRoute>,
        common: &Common,
    ) -> Result<Process, messages::Error> {
        let number_and_cpu = (self.id, self.cpu);
        let region = &self.region;
        let shared = (&region.fd, &self.shared);
        let mut process = Process::start(options, number_and_cpu, shared, &region.counters)?;
        let send_all = |process: &mut Process| {
            process.add_egress(interfaces.egress.iter().copied())?;
            process.change(TableChange {
                set: counted.iter().map(|(k, v)| (*k, v.clone())).collect(),
                own: Some(common.own_addresses.clone()),
                elsewhere_added: common.elsewhere.clone(),
                budget: Some(BudgetChange(common.budget)),
                ..TableChange::default()
            })?;
            process.add_taps(interfaces.ingress.keys().copied())?;
            process.request_confirmation()
        };
        match send_all(&mut process) {
            Ok(()) => Ok(process),
            Err(error) => {
                process.kill();
                Err(error)
            }
        }
    }

    /// One step of the worker's life; `true` if its taps have to be opened.
    pub(super) fn tick(
        &mut self,
        options: &Options,
        interfaces: &Interfaces,
        counted: &BTreeMap<RouteKey, CountedRoute>,
        common: &Common,
    ) -> bool {
        let state = std::mem::replace(&mut self.state, State::Waiting(Instant::now()));
        let (state, ready) = match state {
            State::Waiting(at) if at > Instant::now() => (State::Waiting(at), false),
            State::Waiting(_) => {
                self.region.counters.add(WorkerWord::Restarts, 1);
                self.restarts += 1;
                match self.launch(options, interfaces, counted, common) {
                    Ok(process) => (State::Starting(process), false),
                    Err(error) => (self.failed("cannot be started", &error), false),
                }
            }
            State::Starting(process) | State::Running(process) if process.has_ended() => {
                (self.after_end(&process), false)
            }
            State::Starting(mut process) => match process.is_confirmed(Duration::ZERO) {
                Ok(true) => (State::Running(process), true),
                Ok(false) if process.started.elapsed() < START => (State::Starting(process), false),
                _ => {
                    process.kill();
                    (State::Starting(process), false)
                }
            },
            State::Running(mut process) => {
                process.taps().read_statistics();
                if process.hangs() {
                    tracing::warn!("worker {} hangs and is replaced", self.id);
                    process.kill();
                }
                (State::Running(process), false)
            }
        };
        self.state = state;
        ready
    }

    fn after_end(&mut self, process: &Process) -> State {
        if process.started.elapsed() > STABLE {
            self.backoff = BACKOFF;
        }
        self.pause()
    }

    fn failed(&mut self, what: &str, error: &dyn std::error::Error) -> State {
        tracing::error!("worker {} {what}: {error}", self.id);
        self.pause()
    }

    fn pause(&mut self) -> State {
        let until = Instant::now() + self.backoff;
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        State::Waiting(until)
    }

    /// Applies `act` to the process, if there is one; kills it if that fails.
    pub(super) fn try_or_kill(
        &mut self,
        act: impl FnOnce(&mut Process) -> Result<(), messages::Error>,
    ) {
        let (State::Starting(process) | State::Running(process)) = &mut self.state else {
            return;
        };
        if let Err(error) = act(process) {
            tracing::warn!("worker {} is replaced: {error}", self.id);
            process.kill();
        }
    }

    /// What was counted under the worker's number, by its predecessors too.
    pub(super) fn counters(&self, regions: &[Arc<CounterRegion>]) -> WorkerStats {
        if let Some(process) = self.process() {
            process.taps().read_statistics();
        }
        let read = |word| {
            let own = regions.iter().filter(|region| region.id.worker == self.id);
            own.map(|region| region.counters.worker(word)).sum::<u64>()
        };
        let pid = self.process().map_or(0, |process| process.pid);
        WorkerStats {
            id: self.id,
            cpu: self.cpu,
            pid,
            state: String::from(if pid == 0 { "backoff" } else { "running" }),
            restarts: read(WorkerWord::Restarts),
            restarts_here: self.restarts,
            received: read(WorkerWord::Received),
            matched: read(WorkerWord::Matched),
            not_matched: read(WorkerWord::NotMatched),
            forwarded: read(WorkerWord::Forwarded),
            buffer_exhausted: read(WorkerWord::BufferExhausted) + read(WorkerWord::Lost),
            receive_errors: read(WorkerWord::ReceiveErrors),
            transmit_errors: read(WorkerWord::TransmitErrors),
        }
    }

    /// Lets the process forward what it has, and end.
    pub(super) fn end(self) {
        match self.state {
            State::Starting(process) | State::Running(process) => process.end(),
            State::Waiting(_) => {}
        }
    }

    /// Leaves a running process to the next supervisor.
    pub(super) fn leave(self) {
        if let State::Running(process) = self.state {
            process.leave();
        }
    }

    /// The process, if one was started.
    pub(super) const fn process(&self) -> Option<&Process> {
        match &self.state {
            State::Starting(process) | State::Running(process) => Some(process),
            State::Waiting(_) => None,
        }
    }

    /// Returns whether nothing needs attention soon: it runs, and no packet waits for it.
    pub(super) fn is_idle(&self) -> bool {
        self.running()
            .is_some_and(|process| !process.has_ended() && !process.has_waiting())
    }

    /// The process, if it has confirmed its start.
    pub(super) const fn running(&self) -> Option<&Process> {
        match &self.state {
            State::Running(process) => Some(process),
            State::Starting(_) | State::Waiting(_) => None,
        }
    }

    /// Waits until the process, if there is one, has done all it was sent.
    ///
    /// # Errors
    /// The conversation's.
    pub(super) fn await_confirmation(&mut self) -> Result<(), messages::Error> {
        match &mut self.state {
            State::Starting(process) | State::Running(process) => process.await_confirmation(),
            State::Waiting(_) => Ok(()),
        }
    }
}
