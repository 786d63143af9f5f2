//! The dataplane's thread: owns it, executes one command at a time, looks after it in between.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use dataplane::counters::{Arrived, Counters, Flow, WorkerCounters};
use dataplane::{Close, Dataplane, Support};
use model::diff::TableDiff;
use model::table::Table;
use tokio::sync::oneshot;

/// How often the dataplane is looked after.
const TICK: Duration = Duration::from_millis(50);

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

type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// Labelled descriptors, see [`Dataplane::descriptors`].
pub(crate) type Heirlooms = Vec<(String, OwnedFd)>;

enum Command {
    Inherit(Heirlooms, Reply<()>),
    Prepare(Box<Table>, Reply<()>),
    Heirlooms(Reply<Heirlooms>),
    Sync(Box<Table>, Reply<()>),
    Apply(Box<TableDiff>, Vec<String>, Reply<()>),
    Counters(Reply<Counters>),
    Arrived(Reply<Arrived>),
    Workers(Reply<Vec<WorkerCounters>>),
    Flows(String, Reply<Vec<Flow>>),
    Close(Close, Reply<()>),
}

/// The thread's other end.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    commands: Sender<Command>,
}

/// Opens the dataplane in the network namespace of the calling thread.
pub(crate) fn start(options: dataplane::Options) -> Result<(Engine, Support), Error> {
    let (opened, support) = channel();
    let (commands, queue) = channel();
    let thread = Builder::new().name("dataplane".to_owned());
    let _: JoinHandle<()> = thread
        .spawn(move || match Dataplane::open(options) {
            Ok(dataplane) => {
                if opened.send(Ok(dataplane.support().clone())).is_ok() {
                    serve(dataplane, &queue);
                }
            }
            Err(error) => drop(opened.send(Err(error))),
        })
        .map_err(Error::Thread)?;
    let support = support.recv().map_err(|_| Error::Gone)??;
    Ok((Engine { commands }, support))
}

impl Engine {
    /// Takes over what an earlier process left.
    pub(crate) async fn inherit(&self, held: Heirlooms) -> Result<(), Error> {
        self.ask(|reply| Command::Inherit(held, reply)).await
    }

    /// Starts what `table` needs; nothing is forwarded by it yet.
    pub(crate) async fn prepare(&self, table: Table) -> Result<(), Error> {
        self.ask(|reply| Command::Prepare(Box::new(table), reply))
            .await
    }

    /// Duplicates of what the next process needs to take over.
    pub(crate) async fn heirlooms(&self) -> Result<Heirlooms, Error> {
        self.ask(Command::Heirlooms).await
    }

    /// Makes the dataplane execute exactly `table`.
    pub(crate) async fn sync(&self, table: Table) -> Result<(), Error> {
        self.ask(|reply| Command::Sync(Box::new(table), reply))
            .await
    }

    /// Carries a difference over, all or nothing, and ends the counters of rules that are gone.
    pub(crate) async fn apply(&self, diff: TableDiff, gone: Vec<String>) -> Result<(), Error> {
        if diff.is_empty() && gone.is_empty() {
            return Ok(());
        }
        self.ask(|reply| Command::Apply(Box::new(diff), gone, reply))
            .await
    }

    /// Reads all counters.
    pub(crate) async fn counters(&self) -> Result<Counters, Error> {
        self.ask(Command::Counters).await
    }

    /// Reads what each rule received.
    pub(crate) async fn arrived(&self) -> Result<Arrived, Error> {
        self.ask(Command::Arrived).await
    }

    /// Reads the counters of the workers alone.
    pub(crate) async fn workers(&self) -> Result<Vec<WorkerCounters>, Error> {
        self.ask(Command::Workers).await
    }

    /// Reads the flows of a rule.
    pub(crate) async fn flows(&self, rule: String) -> Result<Vec<Flow>, Error> {
        self.ask(|reply| Command::Flows(rule, reply)).await
    }

    /// Ends the dataplane.
    pub(crate) async fn close(&self, how: Close) -> Result<(), Error> {
        self.ask(|reply| Command::Close(how, reply)).await
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(command(reply));
        sent.map_err(|_| Error::Gone)?;
        answer.await.map_err(|_| Error::Gone)?
    }
}

fn serve(mut dataplane: Dataplane, queue: &Receiver<Command>) {
    let mut due = Instant::now() + TICK;
    let mut troubled = false;
    loop {
        let left = due.saturating_duration_since(Instant::now());
        match queue.recv_timeout(left) {
            // Whoever asked may have gone away; what was asked for is done all the same.
            Ok(Command::Inherit(held, reply)) => {
                let _ = reply.send(dataplane.inherit(held).map_err(Error::from));
            }
            Ok(Command::Prepare(table, reply)) => {
                let _ = reply.send(dataplane.prepare(&table).map_err(Error::from));
            }
            Ok(Command::Heirlooms(reply)) => {
                let _ = reply.send(dataplane.descriptors().map_err(Error::Descriptors));
            }
            Ok(Command::Sync(table, reply)) => {
                let _ = reply.send(dataplane.sync(&table).map_err(Error::from));
            }
            Ok(Command::Apply(diff, gone, reply)) => {
                let applied = dataplane.apply(&diff);
                if applied.is_ok() {
                    dataplane.forget(gone.iter().map(String::as_str));
                }
                let _ = reply.send(applied.map_err(Error::from));
            }
            Ok(Command::Counters(reply)) => {
                let _ = reply.send(dataplane.counters().map_err(Error::from));
            }
            Ok(Command::Arrived(reply)) => {
                let _ = reply.send(dataplane.arrived().map_err(Error::from));
            }
            Ok(Command::Workers(reply)) => {
                let _ = reply.send(Ok(dataplane.workers()));
            }
            Ok(Command::Flows(rule, reply)) => {
                let _ = reply.send(dataplane.flows(&rule).map_err(Error::from));
            }
            Ok(Command::Close(how, reply)) => {
                let _ = reply.send(dataplane.close(how).map_err(Error::from));
                return;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if due <= Instant::now() {
            let result = dataplane.tick();
            if let (Err(error), false) = (&result, troubled) {
                tracing::warn!(%error, "dataplane");
            }
            troubled = result.is_err();
            due = Instant::now() + TICK;
        }
    }
}
