//! The verifier: joins its endpoints, waits for generators, and counts for one at a time.
//!
//! A client that connects and sends nothing, or nonsense, holds up nobody: every connection has a thread
//! of its own, there are few of them, and only one that has sent a hello may measure.

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

/// Connections at once, those included that have not said hello.
const CONNECTIONS: usize = 8;
/// How often the listener looks whether it shall end.
const TICK: Duration = Duration::from_millis(50);

/// What stands in the way of verifying.
#[derive(Debug, Error)]
pub enum Error {
    /// An endpoint cannot be counted.
    #[error(transparent)]
    Watch(#[from] watch::Error),
    /// An endpoint cannot be joined.
    #[error(transparent)]
    Join(#[from] receiver::Error),
    /// The same group and port stands there twice.
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
    /// Joins the endpoints and sees whether they can be counted.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn open(endpoints: &[Listen]) -> Result<Self, Error> {
        let watch = Watch::of(endpoints)?;
        if watch.keys.len() as u64 > MOST_STREAMS {
            return Err(Error::TooMany(watch.keys.len()));
        }
        let mut seen = HashSet::new();
        let places = endpoints
            .iter()
            .flat_map(|endpoint| endpoint.addresses.iter().map(move |at| (endpoint, at)));
        for ((endpoint, &address), (key, _)) in places.zip(&watch.keys) {
            if !seen.insert(*key) {
                let at = endpoint.at.clone();
                return Err(Error::Twice { at, address });
            }
        }
        let names = endpoints.iter().filter_map(|one| one.interface.clone());
        let verifier = Self {
            // One histogram for all; what each place got stands with its streams.
            keys: watch.keys.iter().map(|(key, _)| (*key, 0)).collect(),
            interfaces: watch.interfaces,
            names: names.collect(),
            is_busy: AtomicBool::new(false),
            _membership: Membership::join(endpoints)?,
        };
        drop(verifier.counter()?);
        Ok(verifier)
    }

    /// Takes generators until `stop`; tells of each in a sentence.
    ///
    /// # Errors
    /// When the listener fails.
    pub fn serve(
        &self,
        listener: &TcpListener,
        stop: &AtomicBool,
        tell: &(dyn Fn(&str) + Sync),
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let open = AtomicUsize::new(0);
        thread::scope(|scope| {
            while !stop.load(Ordering::Relaxed) {
                let (stream, peer) = match listener.accept() {
                    Ok(accepted) => accepted,
                    Err(error) if is_passing(&error) => {
                        thread::sleep(TICK);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                // Closed without a word: a crowd is not answered.
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
                        tell(&format!("{peer}: {end}"));
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

    /// Where it counts.
    pub(super) fn places(&self) -> &[(WatchKey, u32)] {
        &self.keys
    }

    /// The interfaces it counts on.
    pub(super) fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// Takes the only place that there is to measure; `None` while somebody has it.
    pub(super) fn take(&self) -> Option<Turn<'_>> {
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

/// Says whether the next accept may succeed: nobody is there, or somebody has gone, or descriptors
/// are short.
fn is_passing(error: &io::Error) -> bool {
    let short = [Errno::EMFILE, Errno::ENFILE].map(|errno| errno as i32);
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
    ) || error
        .raw_os_error()
        .is_some_and(|code| short.contains(&code))
}
