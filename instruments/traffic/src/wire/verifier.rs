//! The verifier: joins its endpoints, waits for generators, and counts for one at a time.
//!
//! A client that connects and sends nothing, or nonsense, blocks no other: every connection has a thread
//! of its own, their number is limited, and only one that has sent a hello may measure.

use std::collections::{BTreeSet, HashSet};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

use crate::endpoint::{Listen, MOST_STREAMS};
use crate::ingress::watch::{self, Watch};
use crate::ingress::{IngressCounter, WatchKey};
use crate::receiver::{self, Membership};

/// Connections at once, including those that have not sent hello.
const CONNECTIONS: usize = 8;
/// How often the listener checks whether it should stop.
const TICK: Duration = Duration::from_millis(50);

/// What prevents verifying.
#[derive(Debug, Error)]
pub enum Error {
    /// An endpoint cannot be counted.
    #[error(transparent)]
    Watch(#[from] watch::Error),
    /// An endpoint cannot be joined.
    #[error(transparent)]
    Join(#[from] receiver::Error),
    /// The same group and port is named twice.
    #[error("{at}: {address} is there twice; name each group and port once")]
    Twice {
        /// The second endpoint as written.
        at: String,
        /// What it repeats.
        address: std::net::SocketAddr,
    },
    /// More groups and ports than can be counted.
    #[error("{0} groups and ports are too many: at most {MOST_STREAMS}")]
    TooMany(usize),
    /// The program that counts cannot be loaded or attached.
    #[error("cannot count at ingress: {0}")]
    Count(#[from] bpf::Error),
}

/// Counts what arrives at its endpoints.
#[derive(Debug)]
pub struct Verifier {
    keys: Vec<(WatchKey, u32)>,
    interfaces: Vec<u32>,
    names: BTreeSet<String>,
    is_busy: AtomicBool,
    _membership: Membership,
}

impl Verifier {
    /// Joins the endpoints and checks that they can be counted.
    ///
    /// # Errors
    /// Whatever prevents it.
    pub fn open(endpoints: &[Listen]) -> Result<Self, Error> {
        let watch = Watch::of(endpoints)?;
        if watch.keys.len() as u64 > MOST_STREAMS {
            return Err(Error::TooMany(watch.keys.len()));
        }
        let mut seen = HashSet::new();
        let addresses = endpoints
            .iter()
            .flat_map(|endpoint| endpoint.addresses.iter().map(move |at| (endpoint, at)));
        for ((endpoint, &address), (key, _)) in addresses.zip(&watch.keys) {
            if !seen.insert(*key) {
                let at = endpoint.at.clone();
                return Err(Error::Twice { at, address });
            }
        }
        let names = endpoints.iter().filter_map(|one| one.interface.clone());
        let verifier = Self {
            // One histogram for all; the counts of each group and port are those of its streams.
            keys: watch.keys.iter().map(|(key, _)| (*key, 0)).collect(),
            interfaces: watch.interfaces,
            names: names.collect(),
            is_busy: AtomicBool::new(false),
            _membership: Membership::join(endpoints)?,
        };
        drop(verifier.counter()?);
        Ok(verifier)
    }

    /// Serves generators until `stop`; reports each conversation that ends badly in a sentence.
    ///
    /// # Errors
    /// When the listener fails.
    pub fn serve(
        &self,
        listener: &TcpListener,
        stop: &AtomicBool,
        report: &(dyn Fn(&str) + Sync),
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let open = AtomicUsize::new(0);
        thread::scope(|scope| {
            while !stop.load(Ordering::Relaxed) {
                let (stream, peer) = match listener.accept() {
                    Ok(accepted) => accepted,
                    Err(error) if is_transient(&error) => {
                        thread::sleep(TICK);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                // Closed without a reply: a crowd is not served.
                if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS {
                    open.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let open = &open;
                scope.spawn(move || {
                    // Without it the clocks' offset would be as uncertain as the delay of an
                    // acknowledgement.
                    let _ = stream.set_nodelay(true);
                    let end = self.converse(stream.into(), stop);
                    if let Some(end) = end {
                        report(&format!("{peer}: {end}"));
                    }
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
            Ok(())
        })
    }

    pub(super) fn counter(&self) -> Result<IngressCounter, bpf::Error> {
        let mut counter = IngressCounter::load(1, &self.keys)?;
        for &ifindex in &self.interfaces {
            counter.attach(ifindex)?;
        }
        Ok(counter)
    }

    /// The groups and ports it counts at.
    pub(super) fn keys(&self) -> &[(WatchKey, u32)] {
        &self.keys
    }

    /// The interfaces it counts on.
    pub(super) fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// Claims the only turn to measure; `None` while another generator has it.
    pub(super) fn claim(&self) -> Option<Turn<'_>> {
        let was_busy = self.is_busy.swap(true, Ordering::AcqRel);
        (!was_busy).then_some(Turn(&self.is_busy))
    }
}

/// The right to measure, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Returns whether the next accept may succeed: no client is waiting, one has disconnected, or
/// descriptors are short.
fn is_transient(error: &io::Error) -> bool {
    let short = [Errno::EMFILE, Errno::ENFILE].map(|errno| errno as i32);
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
    ) || error
        .raw_os_error()
        .is_some_and(|code| short.contains(&code))
}
