//! The receiver: reads datagrams in batches and accounts for each stream.
//!
//! Single-threaded; one run per thread. A datagram is accounted at the endpoint whose socket
//! received it: sockets are bound to the group itself and to the interface.

mod account;
mod foreign;
mod skew;
mod socket;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use thiserror::Error;

use self::account::Account;
use self::socket::{Listener, Purpose, listen};
use crate::clock;
use crate::endpoint::Listen;
use crate::report::ReceiveReport;
use sys::udp::option;
use sys::udp::receive::ReceiveBatch;

/// Receives per system call.
const BATCH: usize = 32;
/// Length of the longest super-packet.
const RECEIVE_BYTES: usize = 65_536;
/// System calls on one socket before the others have their turn.
const TURNS: usize = 8;

/// What to receive and when to end.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to listen on.
    pub endpoints: Vec<Listen>,
    /// End after this many packets in all.
    pub count: Option<u64>,
    /// End after this time.
    pub duration: Option<Duration>,
    /// End when nothing has arrived for this time, also at the start.
    pub idle: Option<Duration>,
    /// CPU to run on.
    pub cpu: Option<usize>,
}

/// Lets other threads watch and stop a run in progress.
#[derive(Debug, Default)]
pub struct Control {
    /// Set to end the run early; it then reports as usual.
    pub stop: Arc<AtomicBool>,
    /// Set once every endpoint is joined.
    pub ready: AtomicBool,
    /// Packets received so far.
    pub received: AtomicU64,
}

/// What prevents a run.
#[derive(Debug, Error)]
pub enum Error {
    /// Nothing to listen on.
    #[error("no endpoint given")]
    NoEndpoint,
    /// No interface has that name in this network namespace.
    #[error("{at}: no interface {interface} (have: {have})")]
    NoInterface {
        /// The endpoint as written.
        at: String,
        /// The name that is not there.
        interface: String,
        /// Those that are.
        have: String,
    },
    /// A group without an interface to join it on.
    #[error("{at}: name the interface to join the group on, as in GROUP%eth0:PORT")]
    InterfaceNeeded {
        /// The endpoint as written.
        at: String,
    },
    /// A socket could not be set up.
    #[error("{at}: cannot {action} {address}: {source}")]
    Socket {
        /// The endpoint as written.
        at: String,
        /// What was tried.
        action: &'static str,
        /// The address it was tried with.
        address: SocketAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Waiting for datagrams failed.
    #[error("cannot wait for datagrams: {0}")]
    Wait(#[from] Errno),
    /// The thread could not be moved to the CPU asked for.
    #[error(transparent)]
    Cpu(#[from] crate::generator::Error),
}

/// Receives until the options' count, duration or idle time, or `control.stop`.
///
/// # Errors
/// Whatever prevents the start.
pub fn run(options: &Options, control: &Control) -> Result<ReceiveReport, Error> {
    if let Some(cpu) = options.cpu {
        crate::generator::pin(cpu)?;
    }
    let listeners = listen(&options.endpoints, Purpose::Datagrams)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for (index, listener) in listeners.iter().enumerate() {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, index as u64);
        epoll.add(&listener.socket, event)?;
    }
    control.ready.store(true, Ordering::Release);
    let mut run = Run {
        options,
        control,
        listeners,
        batch: ReceiveBatch::new(BATCH, RECEIVE_BYTES),
        account: Account::new(&options.endpoints),
    };
    run.drive(&epoll)?;
    Ok(run.account.report())
}

/// Sockets that only hold the endpoints' memberships, for callers that count packets before they
/// reach a socket. Dropping it leaves the groups.
#[derive(Debug)]
pub struct Membership {
    _listeners: Vec<Listener>,
}

impl Membership {
    /// Joins every endpoint.
    ///
    /// # Errors
    /// As [`run`].
    pub fn join(endpoints: &[Listen]) -> Result<Self, Error> {
        Ok(Self {
            _listeners: listen(endpoints, Purpose::Membership)?,
        })
    }
}

impl Listen {
    /// Index of the interface to receive on; `None` where none is named.
    ///
    /// # Errors
    /// [`Error::NoInterface`] where there is none of that name.
    pub fn ifindex(&self) -> Result<Option<u32>, Error> {
        let Some(interface) = &self.interface else {
            return Ok(None);
        };
        let missing = |_| Error::NoInterface {
            at: self.at.clone(),
            interface: interface.clone(),
            have: crate::host::names(),
        };
        if_nametoindex(interface.as_str())
            .map(Some)
            .map_err(missing)
    }
}

struct Run<'a> {
    options: &'a Options,
    control: &'a Control,
    listeners: Vec<Listener>,
    batch: ReceiveBatch,
    account: Account,
}

impl Run<'_> {
    fn drive(&mut self, epoll: &Epoll) -> Result<(), Error> {
        let start = clock::monotonic_ns();
        let mut last_arrival = start;
        let mut events = vec![EpollEvent::empty(); self.listeners.len().min(1024)];
        while !self.is_over(start, last_arrival) {
            let timeout = self.timeout(start, last_arrival);
            let ready = match epoll.wait(&mut events, timeout) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => 0,
                Err(error) => return Err(error.into()),
            };
            for event in &events[..ready] {
                self.drain(event.data() as usize);
            }
            if ready > 0 {
                last_arrival = clock::monotonic_ns();
                let received = self.account.packets();
                self.control.received.store(received, Ordering::Relaxed);
            }
        }
        // Datagrams that the kernel already holds have arrived, and count.
        if !self.has_enough() {
            (0..self.listeners.len()).for_each(|index| self.drain(index));
        }
        for listener in &self.listeners {
            let dropped = option::dropped(listener.socket.as_fd()).unwrap_or(0);
            self.account.dropped(listener.slot.endpoint, dropped.into());
        }
        Ok(())
    }

    fn is_over(&self, start: u64, last_arrival: u64) -> bool {
        self.control.stop.load(Ordering::Relaxed)
            || self.has_enough()
            || self.end(start, last_arrival) <= clock::monotonic_ns()
    }

    fn has_enough(&self) -> bool {
        let packets = self.account.packets();
        self.options.count.is_some_and(|count| packets >= count)
    }

    /// When the run ends if nothing more arrives, in CLOCK_MONOTONIC nanoseconds.
    fn end(&self, start: u64, last_arrival: u64) -> u64 {
        let after = |time: u64, limit: Option<Duration>| {
            limit.map_or(u64::MAX, |limit| {
                time.saturating_add(clock::nanoseconds(limit))
            })
        };
        after(start, self.options.duration).min(after(last_arrival, self.options.idle))
    }

    /// Time to the end of the run, at most 100 ms so that a request to stop is noticed.
    fn timeout(&self, start: u64, last_arrival: u64) -> EpollTimeout {
        let remaining = self
            .end(start, last_arrival)
            .saturating_sub(clock::monotonic_ns());
        EpollTimeout::from((remaining.div_ceil(1_000_000)).min(100) as u8)
    }

    fn drain(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        for _ in 0..TURNS {
            // Any error but "nothing waits" concerns an earlier send of this socket: there is none.
            let Ok(count) = self.batch.receive(listener.socket.as_fd()) else {
                return;
            };
            for index in 0..count {
                self.account
                    .take(listener.slot, &self.batch.received(index));
            }
            if count < self.batch.capacity() {
                return;
            }
        }
    }
}
