//! The thread that owns the dataplane: it executes commands one at a time and runs the dataplane's periodic
//! work in between. Counters are read in parts, and other commands go before the next part: a change waits
//! for milliseconds, however many clients read and however many rules there are.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::task::Wake;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use compile::diff::TableDiff;
use compile::hook::Hooks;
use compile::table::{RouteKey, Table};
use dataplane::Gates;
use dataplane::counters::{Arrived, Counters, FlowStats, WorkerStats};
use dataplane::explain::{Asked, Explained};
use dataplane::features::Features;
use dataplane::{Activity, ActivityScan, Close, CounterScan, Dataplane, Rival, Seen, Support};
use packet::parse::Meta;
use rules::net::Ifindex;
use tokio::sync::oneshot;

use crate::abort_on_panic::AbortOnPanic;

/// Why a command to the dataplane failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The dataplane refused.
    #[error(transparent)]
    Dataplane(#[from] dataplane::Error),
    /// Too many descriptors are open.
    #[error("cannot duplicate a descriptor for the keeper: {0}")]
    Descriptors(std::io::Error),
    /// The thread cannot be started.
    #[error("cannot start the dataplane's thread: {0}")]
    Thread(std::io::Error),
    /// The thread ended.
    #[error("the dataplane's thread ended; restart the daemon")]
    Gone,
}

/// Descriptors with the labels by which the next process identifies them.
pub(crate) type LabelledDescriptors = Vec<(String, OwnedFd)>;

/// A command to the thread.
enum Command {
    Run(Box<dyn FnOnce(&mut Dataplane) + Send>),
    Read(Parts),
    Tick,
    Close(Close, oneshot::Sender<Result<(), Error>>),
}

/// Reads the next part; returns `false` after the last.
type Parts = Box<dyn FnMut(&Dataplane) -> bool + Send>;

/// Wakes the thread for the dataplane's periodic work, as long as a [`DataplaneThread`] exists.
struct Attention(Weak<Sender<Command>>);

impl Wake for Attention {
    fn wake(self: Arc<Self>) {
        if let Some(commands) = self.0.upgrade() {
            // A thread that has ended has no periodic work.
            let _ = commands.send(Command::Tick);
        }
    }
}

/// The handle of the thread.
#[derive(Clone, Debug)]
pub(crate) struct DataplaneThread {
    commands: Arc<Sender<Command>>,
    /// Opened and shut without the thread, which may be busy.
    gates: Gates,
    /// Read without the thread.
    activity: Activity,
    /// Read without the thread.
    workers: Arc<AtomicU64>,
}

/// A dataplane that is being opened.
pub(crate) struct Opening {
    commands: Arc<Sender<Command>>,
    workers: Arc<AtomicU64>,
    opened: Receiver<Result<Opened, dataplane::Error>>,
}

type Opened = (Support, Features, (Gates, Activity));

/// The opened dataplane, and what the host supports.
pub(crate) type OpenedDataplane = (DataplaneThread, Support, Features);

impl Opening {
    /// Waits until it is open; returns it with what the host supports.
    pub(crate) fn finish(self) -> Result<OpenedDataplane, Error> {
        let (support, features, (gates, activity)) =
            self.opened.recv().map_err(|_| Error::Gone)??;
        let thread = DataplaneThread {
            commands: self.commands,
            gates,
            activity,
            workers: self.workers,
        };
        Ok((thread, support, features))
    }
}

impl DataplaneThread {
    /// Begins to open the dataplane in the network namespace of the calling thread: its programs take
    /// some tenths of a second if they have to be verified.
    pub(crate) fn start(mut options: dataplane::Options) -> Result<Opening, Error> {
        let (result, opened) = channel();
        let (commands, queue) = channel();
        let commands = Arc::new(commands);
        options.attention = Arc::new(Attention(Arc::downgrade(&commands))).into();
        let workers = Arc::new(AtomicU64::new(0));
        let revision = Arc::clone(&workers);
        let thread = Builder::new().name("dataplane".to_owned());
        let _: JoinHandle<()> = thread
            .spawn(move || {
                let _guard = AbortOnPanic;
                match Dataplane::open(options) {
                    Ok(dataplane) => {
                        let features = dataplane.features().clone();
                        let handles = (dataplane.gates(), dataplane.activity());
                        let opened = (dataplane.support().clone(), features, handles);
                        if result.send(Ok(opened)).is_ok() {
                            serve(dataplane, &queue, &revision);
                        }
                    }
                    Err(error) => drop(result.send(Err(error))),
                }
            })
            .map_err(Error::Thread)?;
        Ok(Opening {
            commands,
            workers,
            opened,
        })
    }

    /// Takes over the descriptors of an earlier process.
    pub(crate) async fn inherit(&self, descriptors: LabelledDescriptors) -> Result<(), Error> {
        self.run(|dataplane| Ok(dataplane.inherit(descriptors)?))
            .await
    }

    /// Starts what `table` needs, without forwarding yet.
    pub(crate) async fn prepare(&self, table: Table) -> Result<(), Error> {
        self.run(move |dataplane| Ok(dataplane.prepare(&table)?))
            .await
    }

    /// Duplicates the descriptors that the next process needs to take over.
    pub(crate) async fn descriptors(&self) -> Result<LabelledDescriptors, Error> {
        self.run(|dataplane| dataplane.descriptors().map_err(Error::Descriptors))
            .await
    }

    /// Makes the dataplane execute exactly `table`.
    pub(crate) async fn sync(&self, table: Table) -> Result<(), Error> {
        self.run(move |dataplane| Ok(dataplane.sync(&table)?)).await
    }

    /// Sets what XDP may be used for.
    pub(crate) async fn set_hooks(&self, hooks: Hooks) -> Result<(), Error> {
        self.run(move |dataplane| Ok(dataplane.set_hooks(hooks)?))
            .await
    }

    /// What XDP is used for, or why it is not.
    pub(crate) async fn hooks(&self) -> Result<Hooks, Error> {
        self.run(|dataplane| Ok(dataplane.hooks())).await
    }

    /// Applies a diff, all or nothing, and removes the counters of removed rules.
    pub(crate) async fn apply(&self, diff: TableDiff, removed: Vec<String>) -> Result<(), Error> {
        if diff.is_empty() && removed.is_empty() {
            return Ok(());
        }
        self.run(move |dataplane| {
            dataplane.apply(&diff)?;
            dataplane.forget(removed.iter().map(String::as_str));
            Ok(())
        })
        .await
    }

    /// Reads all counters.
    pub(crate) async fn counters(&self) -> Result<Counters, Error> {
        self.read(
            CounterScan::default(),
            CounterScan::go_on,
            CounterScan::finish,
        )
        .await
    }

    /// Lists which of these keys other instances receive packets of too.
    pub(crate) async fn rivals(&self, keys: Vec<RouteKey>) -> Result<Vec<Rival>, Error> {
        self.run(move |dataplane| Ok(dataplane.rivals(&keys))).await
    }

    /// Reads the rules that packets arrived for since `seen`, and those of `also`; returns the new `seen`.
    pub(crate) async fn arrived(
        &self,
        seen: Seen,
        also: Vec<Arc<str>>,
    ) -> Result<(Arrived, Seen), Error> {
        let reading = ActivityScan::new(seen, also);
        self.read(reading, ActivityScan::go_on, ActivityScan::finish)
            .await
    }

    /// Reads the counters of the workers only.
    pub(crate) async fn workers(&self) -> Result<Vec<WorkerStats>, Error> {
        self.run(|dataplane| Ok(dataplane.workers())).await
    }

    /// Makes an input the active one of its rule; `false` if it cannot be.
    pub(crate) async fn switch(&self, rule: String, input: String) -> Result<bool, Error> {
        self.run(move |dataplane| Ok(dataplane.switch(&rule, &input)))
            .await
    }

    /// Explains what would happen to a packet by these routes.
    pub(crate) async fn explain(
        &self,
        table: Table,
        (ingress, frame, socket_bound): (Ifindex, Vec<u8>, bool),
    ) -> Result<Explained, Error> {
        self.run(move |dataplane| {
            let asked = Asked {
                ingress,
                frame: &frame,
                meta: Meta::default(),
                socket_bound,
            };
            Ok(dataplane.explain(&table, asked))
        })
        .await
    }

    /// Reads the flows of a rule.
    pub(crate) async fn flows(&self, rule: String) -> Result<Vec<FlowStats>, Error> {
        self.run(move |dataplane| Ok(dataplane.flows(&rule)?)).await
    }

    /// Waits for a reply of the thread.
    pub(crate) async fn answer(&self) -> Result<(), Error> {
        self.run(|_| Ok(())).await
    }

    /// The gates of shares.
    pub(crate) const fn gates(&self) -> &Gates {
        &self.gates
    }

    /// A number that changes when workers start or end.
    pub(crate) fn worker_revision(&self) -> u64 {
        self.workers.load(Ordering::Relaxed)
    }

    /// Runs the dataplane's periodic work at once, as after a change of the host's network.
    pub(crate) fn tick(&self) {
        // A thread that has ended has no periodic work.
        let _ = self.send(Command::Tick);
    }

    /// Whether packets arrive.
    pub(crate) const fn activity(&self) -> &Activity {
        &self.activity
    }

    #[cfg(test)]
    pub(crate) async fn panic(&self) -> Result<(), Error> {
        self.run(|_| panic!("the dataplane")).await
    }

    /// Ends the dataplane.
    pub(crate) async fn close(&self, how: Close) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Close(how, reply))?;
        answer.await.map_err(|_| Error::Gone)?
    }

    /// Runs `work` on the thread, also if the caller stops waiting.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Dataplane) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Run(Box::new(move |dataplane| {
            let _ = reply.send(work(dataplane));
        })))?;
        answer.await.map_err(|_| Error::Gone)?
    }

    /// Reads in parts when the thread has no other command, as long as the caller waits.
    async fn read<R: Send + 'static, T: Send + 'static>(
        &self,
        reading: R,
        go_on: impl Fn(&mut R, &Dataplane) -> Result<bool, dataplane::Error> + Send + 'static,
        finish: impl FnOnce(R) -> T + Copy + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let mut begun = Some((reading, reply));
        self.send(Command::Read(Box::new(move |dataplane| {
            let Some((mut reading, reply)) = begun.take().filter(|(_, to)| !to.is_closed()) else {
                return false;
            };
            match go_on(&mut reading, dataplane) {
                Ok(true) => begun = Some((reading, reply)),
                Ok(false) => drop(reply.send(Ok(finish(reading)))),
                Err(error) => drop(reply.send(Err(error.into()))),
            }
            begun.is_some()
        })))?;
        answer.await.map_err(|_| Error::Gone)?
    }

    fn send(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).map_err(|_| Error::Gone)
    }
}

fn serve(mut dataplane: Dataplane, queue: &Receiver<Command>, workers: &AtomicU64) {
    let mut due = Instant::now();
    let mut troubled = false;
    let mut readings = VecDeque::new();
    loop {
        let timeout = if readings.is_empty() {
            due.saturating_duration_since(Instant::now())
        } else {
            Duration::ZERO
        };
        match queue.recv_timeout(timeout) {
            Ok(Command::Run(work)) => {
                work(&mut dataplane);
                due = due.min(Instant::now() + dataplane.pause());
            }
            Ok(Command::Read(parts)) => readings.push_back(parts),
            Ok(Command::Tick) => due = Instant::now(),
            Ok(Command::Close(how, reply)) => {
                let _ = reply.send(dataplane.close(how).map_err(Error::from));
                return;
            }
            Err(RecvTimeoutError::Timeout) => {
                readings.pop_front_if(|parts: &mut Parts| !parts(&dataplane));
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if due <= Instant::now() {
            let result = dataplane.tick();
            if let (Err(error), false) = (&result, troubled) {
                tracing::warn!(%error, "dataplane");
            }
            troubled = result.is_err();
            due = Instant::now() + dataplane.pause();
        }
        workers.store(dataplane.worker_revision(), Ordering::Relaxed);
    }
}

/// A dataplane without paths and without a thread: commands wait until [`Unthreaded::run_waiting`].
#[cfg(feature = "rehearsal")]
#[derive(Debug)]
pub(crate) struct Unthreaded {
    dataplane: Dataplane,
    queue: Receiver<Command>,
}

#[cfg(feature = "rehearsal")]
impl Unthreaded {
    pub(crate) fn open() -> Result<(DataplaneThread, Self), Error> {
        let dataplane = Dataplane::open(without_paths())?;
        let (commands, queue) = channel();
        let thread = DataplaneThread {
            commands: commands.into(),
            gates: dataplane.gates(),
            activity: dataplane.activity(),
            workers: Arc::default(),
        };
        Ok((thread, Self { dataplane, queue }))
    }

    /// Executes the waiting commands; returns whether there were any.
    pub(crate) fn run_waiting(&mut self) -> bool {
        let mut any = false;
        while let Ok(command) = self.queue.try_recv() {
            match command {
                Command::Run(work) => work(&mut self.dataplane),
                Command::Read(mut parts) => while parts(&self.dataplane) {},
                // It uses nothing of the host.
                Command::Tick => {}
                Command::Close(..) => break,
            }
            any = true;
        }
        any
    }
}

/// Options of a dataplane that uses nothing of the host.
#[cfg(any(test, feature = "rehearsal"))]
pub(crate) fn without_paths() -> dataplane::Options {
    dataplane::Options {
        kernel: false,
        worker_command: Vec::new(),
        ..dataplane::Options::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Several readings, each of which sends a change during each of its parts, as a client would: no
    /// change waits for another part.
    #[test]
    fn a_change_is_executed_before_the_next_part_of_any_reading() {
        const READINGS: usize = 3;
        const PARTS: u32 = 4;
        let (commands, queue) = channel();
        let (sent, made) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (ended, all) = channel();
        for _ in 0..READINGS {
            let (client, ended) = (commands.clone(), ended.clone());
            let (sent, made, mut part) = (Arc::clone(&sent), Arc::clone(&made), 0);
            let parts = move |_: &Dataplane| {
                let waiting = sent.load(Ordering::Relaxed) - made.load(Ordering::Relaxed);
                assert_eq!(waiting, 0, "changes that wait while part {part} is read");
                sent.fetch_add(1, Ordering::Relaxed);
                let made = Arc::clone(&made);
                let change = move |_: &mut Dataplane| {
                    made.fetch_add(1, Ordering::Relaxed);
                };
                client.send(Command::Run(Box::new(change))).unwrap();
                part += 1;
                if part == PARTS {
                    ended.send(()).unwrap();
                }
                part < PARTS
            };
            commands.send(Command::Read(Box::new(parts))).unwrap();
        }
        let dataplane = Dataplane::open(without_paths()).unwrap();
        let thread = std::thread::spawn(move || serve(dataplane, &queue, &AtomicU64::new(0)));
        for _ in 0..READINGS {
            all.recv().unwrap();
        }
        let (reply, answer) = oneshot::channel();
        commands.send(Command::Close(Close::Detach, reply)).unwrap();
        answer.blocking_recv().unwrap().unwrap();
        thread.join().unwrap();
        assert_eq!(made.load(Ordering::Relaxed), PARTS * READINGS as u32);
    }
}
