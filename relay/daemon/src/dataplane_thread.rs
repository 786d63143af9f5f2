//! The thread that owns the dataplane: it carries out what it is sent, one thing at a time, and looks
//! after the dataplane in between. Counters are read in parts, and whatever else is sent goes before
//! the next part: a change waits for milliseconds, however many read and however many rules there are.

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

/// Why the dataplane did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The dataplane refused.
    #[error(transparent)]
    Dataplane(#[from] dataplane::Error),
    /// There are too many open.
    #[error("cannot duplicate a descriptor for the keeper: {0}")]
    Descriptors(std::io::Error),
    /// The thread cannot be started.
    #[error("cannot start the dataplane's thread: {0}")]
    Thread(std::io::Error),
    /// The thread ended.
    #[error("the dataplane's thread ended; restart the daemon")]
    Gone,
}

/// Descriptors with the labels by which the next process knows them.
pub(crate) type LabelledDescriptors = Vec<(String, OwnedFd)>;

/// What the thread is sent.
enum Command {
    Run(Box<dyn FnOnce(&mut Dataplane) + Send>),
    Read(Parts),
    LookAfter,
    Close(Close, oneshot::Sender<Result<(), Error>>),
}

/// Reads the next part; `false`: that was the last.
type Parts = Box<dyn FnMut(&Dataplane) -> bool + Send>;

/// Has the thread look after the dataplane at once, for as long as somebody has its other end.
struct Attention(Weak<Sender<Command>>);

impl Wake for Attention {
    fn wake(self: Arc<Self>) {
        if let Some(commands) = self.0.upgrade() {
            // A thread that has ended has nothing to look after.
            let _ = commands.send(Command::LookAfter);
        }
    }
}

/// The thread's other end.
#[derive(Clone, Debug)]
pub(crate) struct DataplaneThread {
    commands: Arc<Sender<Command>>,
    /// Opened and shut without the thread, which may be busy.
    gates: Gates,
    /// Looked at without it as well.
    activity: Activity,
    /// The same.
    workers: Arc<AtomicU64>,
}

/// A dataplane that is being opened.
pub(crate) struct Opening {
    commands: Arc<Sender<Command>>,
    workers: Arc<AtomicU64>,
    found: Receiver<Result<Opened, dataplane::Error>>,
}

type Opened = (Support, Features, (Gates, Activity));

/// The opened dataplane, and what the host supports.
pub(crate) type OpenedDataplane = (DataplaneThread, Support, Features);

impl Opening {
    /// Waits until it is open, and says what the host supports.
    pub(crate) fn finish(self) -> Result<OpenedDataplane, Error> {
        let (support, features, handles) = self.found.recv().map_err(|_| Error::Gone)??;
        let (gates, activity) = handles;
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
    /// some tenths of a second where they have to be verified.
    pub(crate) fn start(mut options: dataplane::Options) -> Result<Opening, Error> {
        let (opened, found) = channel();
        let (commands, queue) = channel();
        let commands = Arc::new(commands);
        options.attention = Arc::new(Attention(Arc::downgrade(&commands))).into();
        let workers = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&workers);
        let thread = Builder::new().name("dataplane".to_owned());
        let _: JoinHandle<()> = thread
            .spawn(move || {
                let _guard = AbortOnPanic;
                match Dataplane::open(options) {
                    Ok(dataplane) => {
                        let features = dataplane.features().clone();
                        let handles = (dataplane.gates(), dataplane.activity());
                        let found = (dataplane.support().clone(), features, handles);
                        if opened.send(Ok(found)).is_ok() {
                            serve(dataplane, &queue, &told);
                        }
                    }
                    Err(error) => drop(opened.send(Err(error))),
                }
            })
            .map_err(Error::Thread)?;
        Ok(Opening {
            commands,
            workers,
            found,
        })
    }

    /// Takes over what an earlier process left.
    pub(crate) async fn inherit(&self, left: LabelledDescriptors) -> Result<(), Error> {
        self.run(|dataplane| Ok(dataplane.inherit(left)?)).await
    }

    /// Starts what `table` needs; nothing is forwarded by it yet.
    pub(crate) async fn prepare(&self, table: Table) -> Result<(), Error> {
        self.run(move |dataplane| Ok(dataplane.prepare(&table)?))
            .await
    }

    /// Duplicates what the next process needs to take over.
    pub(crate) async fn descriptors(&self) -> Result<LabelledDescriptors, Error> {
        self.run(|dataplane| dataplane.descriptors().map_err(Error::Descriptors))
            .await
    }

    /// Makes the dataplane execute exactly `table`.
    pub(crate) async fn sync(&self, table: Table) -> Result<(), Error> {
        self.run(move |dataplane| Ok(dataplane.sync(&table)?)).await
    }

    /// Says what XDP may be used for.
    pub(crate) async fn set_hooks(&self, hooks: Hooks) -> Result<(), Error> {
        self.run(move |dataplane| Ok(dataplane.set_hooks(hooks)?))
            .await
    }

    /// What XDP is used for, and why not.
    pub(crate) async fn hooks(&self) -> Result<Hooks, Error> {
        self.run(|dataplane| Ok(dataplane.hooks())).await
    }

    /// Carries a difference over, all or nothing, and ends the counters of rules that are gone.
    pub(crate) async fn apply(&self, diff: TableDiff, gone: Vec<String>) -> Result<(), Error> {
        if diff.is_empty() && gone.is_empty() {
            return Ok(());
        }
        self.run(move |dataplane| {
            dataplane.apply(&diff)?;
            dataplane.forget(gone.iter().map(String::as_str));
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

    /// Lists which of these keys other instances take packets of too.
    pub(crate) async fn rivals(&self, keys: Vec<RouteKey>) -> Result<Vec<Rival>, Error> {
        self.run(move |dataplane| Ok(dataplane.rivals(&keys))).await
    }

    /// Reads the rules that packets came for since `seen`, and those of `also`; gives what is seen now.
    pub(crate) async fn arrived(
        &self,
        seen: Seen,
        also: Vec<Arc<str>>,
    ) -> Result<(Arrived, Seen), Error> {
        let reading = ActivityScan::new(seen, also);
        self.read(reading, ActivityScan::go_on, ActivityScan::finish)
            .await
    }

    /// Reads the counters of the workers alone.
    pub(crate) async fn workers(&self) -> Result<Vec<WorkerStats>, Error> {
        self.run(|dataplane| Ok(dataplane.workers())).await
    }

    /// Makes an input the active one of its rule; `false` if it cannot be.
    pub(crate) async fn switch(&self, rule: String, input: String) -> Result<bool, Error> {
        self.run(move |dataplane| Ok(dataplane.switch(&rule, &input)))
            .await
    }

    /// Says what would become of a packet by these routes.
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

    /// Waits until the thread has answered.
    pub(crate) async fn answer(&self) -> Result<(), Error> {
        self.run(|_| Ok(())).await
    }

    /// Opens and shuts the gates of shares.
    pub(crate) const fn gates(&self) -> &Gates {
        &self.gates
    }

    /// Another number when workers came or went.
    pub(crate) fn worker_revision(&self) -> u64 {
        self.workers.load(Ordering::Relaxed)
    }

    /// Has the dataplane looked after at once: something happened to the host's network.
    pub(crate) fn look_after(&self) {
        // One that has ended has nothing to look after.
        let _ = self.send(Command::LookAfter);
    }

    /// Says whether packets come.
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

    /// Has the thread do `work`; whoever asked may go away, what was asked for is done all the same.
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

    /// Has the thread read on when it has nothing else to do, for as long as somebody waits for it.
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
        let left = due.saturating_duration_since(Instant::now());
        let left = if readings.is_empty() {
            left
        } else {
            Duration::ZERO
        };
        match queue.recv_timeout(left) {
            Ok(Command::Run(work)) => {
                work(&mut dataplane);
                due = due.min(Instant::now() + dataplane.pause());
            }
            Ok(Command::Read(parts)) => readings.push_back(parts),
            Ok(Command::LookAfter) => due = Instant::now(),
            Ok(Command::Close(how, reply)) => {
                let _ = reply.send(dataplane.close(how).map_err(Error::from));
                return;
            }
            Err(RecvTimeoutError::Timeout) => read_on(&mut readings, &dataplane),
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

/// Reads the next part of the reading that was asked for first.
fn read_on(readings: &mut VecDeque<Parts>, dataplane: &Dataplane) {
    readings.pop_front_if(|parts| !parts(dataplane));
}

/// A dataplane without either path and without a thread: what it is sent waits until it is let run.
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

    /// Does what waits; says whether anything did.
    pub(crate) fn run_waiting(&mut self) -> bool {
        let mut any = false;
        while let Ok(command) = self.queue.try_recv() {
            match command {
                Command::Run(work) => work(&mut self.dataplane),
                Command::Read(mut parts) => while parts(&self.dataplane) {},
                // It has nothing of the host.
                Command::LookAfter => {}
                Command::Close(..) => break,
            }
            any = true;
        }
        any
    }
}

/// How to open a dataplane that touches nothing of the host.
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

    /// Several readings, each of which has a change sent amid each of its parts, as a client would:
    /// none of them waits for another part.
    #[test]
    fn a_change_goes_before_the_next_part_of_any_reading() {
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
