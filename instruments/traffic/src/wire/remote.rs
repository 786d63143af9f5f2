//! The verifier as the generator sees it: a connection, and the clock and host at its end.

use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};
use thiserror::Error;

use super::channel::{self, Channel};
use super::host::Host;
use super::message::{Counted, REPLY_BYTES, Reply, Request, VERSION};
use crate::clock;
use crate::wire::host::Counters;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Longer than a verifier waits for packets still in flight.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// Exchanges of which the fastest gives the clocks' difference.
const EXCHANGES: usize = 20;

/// Why a verifier cannot be used.
#[derive(Debug, Error)]
pub enum Error {
    /// It cannot be reached.
    #[error("verifier {at}: {source}; is `mcr bench wire receive --listen {at}` running there?")]
    Connect {
        /// Its address as given.
        at: String,
        /// The kernel's or the resolver's answer.
        source: std::io::Error,
    },
    /// The conversation broke.
    #[error("verifier: {0}")]
    Channel(#[from] channel::Error),
    /// It refused.
    #[error("the verifier refuses: {0}")]
    Refused(String),
    /// Its reply is of another kind than expected.
    #[error("the verifier answers something else than it was asked: not an mcr of this version?")]
    Unexpected,
}

/// The difference of the verifier's clock from the generator's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offset {
    /// By how much it is ahead, in nanoseconds.
    pub ahead_ns: i64,
    /// How far that may be wrong, in nanoseconds: half of the fastest exchange.
    pub bound_ns: u64,
}

/// A verifier, connected.
#[derive(Debug)]
pub struct Remote {
    channel: Channel,
    stop: Arc<AtomicBool>,
    host: Host,
    places: u32,
    has_own_clock: bool,
}

impl Remote {
    /// Connects to the verifier at `HOST:PORT`.
    ///
    /// # Errors
    /// If nothing or something else answers, or the verifier is busy.
    pub fn connect(at: &str, own: &Host, stop: Arc<AtomicBool>) -> Result<Self, Error> {
        let failed = |source| Error::Connect {
            at: at.to_owned(),
            source,
        };
        let mut last = std::io::ErrorKind::NotFound.into();
        for address in at.to_socket_addrs().map_err(failed)? {
            let socket =
                Socket::new(Domain::for_address(address), Type::STREAM, None).map_err(failed)?;
            match socket.connect_timeout(&address.into(), CONNECT_LIMIT) {
                Ok(()) => {
                    socket.set_tcp_nodelay(true).map_err(failed)?;
                    return Self::open(socket, own, stop);
                }
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    /// Sends hello on a connected socket.
    ///
    /// # Errors
    /// As [`Remote::connect`].
    pub fn open(socket: Socket, own: &Host, stop: Arc<AtomicBool>) -> Result<Self, Error> {
        let mut remote = Self {
            channel: Channel::new(socket, REPLY_BYTES)?,
            stop,
            host: Host::default(),
            places: 0,
            has_own_clock: false,
        };
        match remote.exchange(&Request::Hello { version: VERSION })? {
            Reply::Welcome { places, host, .. } => {
                remote.has_own_clock = !own.has_clock_of(&host);
                (remote.places, remote.host) = (places, *host);
                Ok(remote)
            }
            _ => Err(Error::Unexpected),
        }
    }

    /// What it runs on.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// The number of groups and ports it counts at.
    pub const fn places(&self) -> u32 {
        self.places
    }

    /// Whether its clock is not the generator's.
    pub const fn has_own_clock(&self) -> bool {
        self.has_own_clock
    }

    /// Measures the clocks' difference; none where both are the same clock.
    ///
    /// # Errors
    /// When the conversation breaks.
    pub fn offset(&mut self) -> Result<Offset, Error> {
        if !self.has_own_clock {
            return Ok(Offset::default());
        }
        let mut best: Option<Offset> = None;
        for _ in 0..EXCHANGES {
            let sent_ns = clock::realtime_ns();
            let Reply::Clock { realtime_ns } = self.exchange(&Request::Clock {})? else {
                return Err(Error::Unexpected);
            };
            let bound_ns = clock::realtime_ns().saturating_sub(sent_ns).div_ceil(2);
            let ahead_ns = realtime_ns.wrapping_sub(sent_ns + bound_ns) as i64;
            let offset = Offset { ahead_ns, bound_ns };
            if best.is_none_or(|best| bound_ns < best.bound_ns) {
                best = Some(offset);
            }
        }
        Ok(best.unwrap_or_default())
    }

    /// Starts its counting; returns its host's counters at that moment.
    pub(super) fn begin(&mut self, seconds: f64, offset: Offset) -> Result<Counters, Error> {
        let Offset { ahead_ns, bound_ns } = offset;
        let begin = Request::Begin {
            seconds,
            ahead_ns,
            bound_ns,
        };
        match self.exchange(&begin)? {
            Reply::Ready { counters } => Ok(counters),
            _ => Err(Error::Unexpected),
        }
    }

    /// Ends its counting; returns what arrived.
    pub(super) fn end(&mut self, copies: u64) -> Result<Counted, Error> {
        match self.exchange(&Request::End { copies })? {
            Reply::Counted(counted) if counted.received.len() == self.places as usize => {
                Ok(*counted)
            }
            _ => Err(Error::Unexpected),
        }
    }

    fn exchange(&mut self, request: &Request) -> Result<Reply, Error> {
        self.channel.send(request)?;
        let stop = &self.stop;
        let is_running = || !stop.load(Ordering::Relaxed);
        match self.channel.receive(REPLY_LIMIT, is_running)? {
            Reply::Refused { reason } => Err(Error::Refused(reason)),
            reply => Ok(reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::wire::message::REQUEST_BYTES;

    const AHEAD_NS: u64 = 5_000_000_000;

    /// A verifier of another kernel whose clock is ahead.
    fn answer(socket: Socket) {
        let mut channel = Channel::new(socket, REQUEST_BYTES).unwrap();
        let limit = Duration::from_secs(10);
        while let Ok(request) = channel.receive(limit, || true) {
            let reply = match request {
                Request::Hello { .. } => Reply::Welcome {
                    version: VERSION,
                    places: 1,
                    host: Box::new(Host {
                        boot_id: "another".to_owned(),
                        ..Host::default()
                    }),
                },
                Request::Clock {} => Reply::Clock {
                    realtime_ns: clock::realtime_ns() + AHEAD_NS,
                },
                _ => Reply::Refused {
                    reason: "not today".to_owned(),
                },
            };
            channel.send(&reply).unwrap();
        }
    }

    #[test]
    fn the_clocks_difference_is_measured_within_its_bound() {
        let (near, far) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| answer(far));
            let own = Host {
                boot_id: "own".to_owned(),
                ..Host::default()
            };
            let mut remote = Remote::open(near, &own, Arc::default()).unwrap();
            assert!(remote.has_own_clock());
            let offset = remote.offset().unwrap();
            let error = (offset.ahead_ns - AHEAD_NS as i64).unsigned_abs();
            assert!(error <= offset.bound_ns, "{offset:?}");
            let refused = remote.end(0).unwrap_err();
            assert_eq!(refused.to_string(), "the verifier refuses: not today");
        });
    }
}
