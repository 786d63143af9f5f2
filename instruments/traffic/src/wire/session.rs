//! One conversation of a verifier: hello, then trials, each begun and ended. The end of a conversation
//! in the middle of a trial also ends the counting.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::Socket;

use super::channel::{Channel, Error};
use super::host::{Counters, Host};
use super::message::{Counted, REQUEST_BYTES, Reply, Request, TRIAL_SECONDS, VERSION};
use super::verifier::Verifier;
use crate::clock;
use crate::ingress::{IngressCounter, WatchKey};
use crate::latency::Summary;
use crate::trial::arrivals;

/// How long a connection may take to send hello.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// How long a generator may be silent between trials, and after one should be over.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for arrivals.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(10);
/// The largest uncertainty of clocks that can be compensated, in nanoseconds.
const MOST_BOUND_NS: u64 = 10_000_000_000;

impl Verifier {
    /// Holds one conversation to its end; returns how it ended, unless that was regular.
    pub fn converse(&self, socket: Socket, stop: &AtomicBool) -> Option<String> {
        let mut channel = match Channel::new(socket, REQUEST_BYTES) {
            Ok(channel) => channel,
            Err(error) => return Some(error.to_string()),
        };
        let mut session = Session {
            verifier: self,
            trial: None,
            stop,
        };
        match session.converse(&mut channel) {
            Ok(()) | Err(End::Channel(Error::Ended | Error::Stopped)) => {
                let unfinished = session.trial.is_some();
                unfinished.then(|| "ended in the middle of a trial".to_owned())
            }
            Err(End::Channel(error)) => {
                let reason = error.to_string();
                let _ = channel.send(&refused(&reason));
                Some(reason)
            }
            Err(End::Refused(reason)) => {
                let _ = channel.send(&refused(&reason));
                Some(reason)
            }
        }
    }
}

/// Why a conversation ends.
enum End {
    Channel(Error),
    Refused(String),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Channel(error)
    }
}

fn refused(reason: &str) -> Reply {
    Reply::Refused {
        reason: reason.to_owned(),
    }
}

struct Session<'a> {
    verifier: &'a Verifier,
    trial: Option<Trial>,
    stop: &'a AtomicBool,
}

/// A trial in progress.
struct Trial {
    counter: IngressCounter,
    /// By how much this host's clock is ahead of the generator's.
    ahead_ns: i64,
    /// Added so that no latency is below 0, and subtracted again from the results.
    margin_ns: u64,
    limit: Duration,
}

impl Session<'_> {
    fn converse(&mut self, channel: &mut Channel) -> Result<(), End> {
        let stop = self.stop;
        let is_running = || !stop.load(Ordering::Relaxed);
        match channel.receive(HELLO_LIMIT, is_running)? {
            Request::Hello { version: VERSION } => {}
            Request::Hello { version } => {
                return Err(End::Refused(format!(
                    "this verifier speaks version {VERSION}, the generator version {version}: use \
                     the same mcr on both hosts"
                )));
            }
            _ => return Err(End::Refused("say hello first".to_owned())),
        }
        let Some(_turn) = self.verifier.claim() else {
            return Err(End::Refused(
                "busy: another generator measures here; one at a time".to_owned(),
            ));
        };
        channel.send(&Reply::Welcome {
            version: VERSION,
            places: self.verifier.keys().len() as u32,
            host: Box::new(Host::describe(self.verifier.names())),
        })?;
        loop {
            let trial = &mut self.trial;
            let limit = trial.as_ref().map_or(SILENCE_LIMIT, |trial| trial.limit);
            let request = channel.receive(limit, || {
                trial.iter_mut().for_each(Trial::set_clock);
                is_running()
            })?;
            let reply = self.answer(&request).map_err(End::Refused)?;
            channel.send(&reply)?;
        }
    }

    fn answer(&mut self, request: &Request) -> Result<Reply, String> {
        match *request {
            Request::Hello { .. } => Err("hello was said already".to_owned()),
            Request::Clock {} => Ok(Reply::Clock {
                realtime_ns: clock::realtime_ns(),
            }),
            Request::Begin {
                seconds,
                ahead_ns,
                bound_ns,
            } => self.begin(seconds, ahead_ns, bound_ns),
            Request::End { copies } => {
                let trial = self.trial.take().ok_or("no trial has begun")?;
                let counted = self.count(trial, copies);
                counted.map_err(|error| format!("cannot read the counters: {error}"))
            }
        }
    }

    fn begin(&mut self, seconds: f64, ahead_ns: i64, bound_ns: u64) -> Result<Reply, String> {
        if self.trial.is_some() {
            return Err("a trial goes on already".to_owned());
        }
        if !(0.0..=TRIAL_SECONDS).contains(&seconds) {
            return Err(format!("a trial lasts 0 to {TRIAL_SECONDS} seconds"));
        }
        if bound_ns > MOST_BOUND_NS {
            return Err("the clocks' difference is not known well enough".to_owned());
        }
        let counter = self
            .verifier
            .counter()
            .map_err(|error| format!("cannot count at ingress: {error}"))?;
        let mut trial = Trial {
            counter,
            ahead_ns,
            margin_ns: 2 * bound_ns,
            limit: Duration::from_secs_f64(seconds) + SILENCE_LIMIT,
        };
        trial.set_clock();
        self.trial = Some(trial);
        Ok(Reply::Ready {
            counters: Counters::read(self.verifier.names()),
        })
    }

    fn count(&self, mut trial: Trial, copies: u64) -> Result<Reply, bpf::Error> {
        arrivals(copies, ARRIVAL_LIMIT, || {
            trial.set_clock();
            if self.stop.load(Ordering::Relaxed) {
                Ok(copies)
            } else {
                trial.counter.packets()
            }
        })?;
        let keys = self.verifier.keys().iter().zip(0..);
        let indices: HashMap<WatchKey, usize> = keys.map(|((key, _), at)| (*key, at)).collect();
        let mut received = vec![0; indices.len()];
        for (key, state) in trial.counter.streams()? {
            if let Some(&index) = indices.get(&key.at) {
                received[index] += state.distinct;
            }
        }
        let counts = trial.counter.counts()?;
        let count = counts.into_iter().next().unwrap_or_default();
        Ok(Reply::Counted(Box::new(Counted {
            received,
            duplicated: count.duplicated,
            reordered: count.reordered,
            latency_us: subtract(count.latency().summary(), trial.margin_ns),
            counters: Counters::read(self.verifier.names()),
        })))
    }
}

impl Trial {
    fn set_clock(&mut self) {
        let generators = clock::realtime_offset_ns().wrapping_sub(self.ahead_ns as u64);
        let offset_ns = generators.wrapping_add(self.margin_ns);
        self.counter.set_clock_offset(offset_ns);
    }
}

/// Subtracts `by_ns` from every figure.
fn subtract(summary: Summary, by_ns: u64) -> Summary {
    let less = |figure: Option<f64>| figure.map(|us| us - by_ns as f64 / 1000.0);
    Summary {
        min: less(summary.min),
        p50: less(summary.p50),
        p99: less(summary.p99),
        p99_9: less(summary.p99_9),
        max: less(summary.max),
    }
}
