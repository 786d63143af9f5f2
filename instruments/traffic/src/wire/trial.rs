//! One trial: packets of one size to some of the streams at one rate, and their outcome.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::drops::{self, Drop};
use super::host::{Counters, Host};
use super::remote::{self, Offset, Remote};
use crate::endpoint::Destination;
use crate::generator::{self, Control, Options, Sizes};
use crate::latency::Summary;
use crate::report::SendReport;
use crate::trial::{Outcome, Volume};

/// Packets of each stream that show whether it arrives.
const REACH_PACKETS: u64 = 2;
/// How fast they are sent, over all streams.
const REACH_PPS: f64 = 5000.0;
/// How often that is tried before a stream counts as not arriving: a join takes time.
const REACH_ATTEMPTS: usize = 20;
/// A generator that offers less than this share of the requested rate could not keep up.
const KEPT_UP: f64 = 0.98;

/// What prevents a trial.
#[derive(Debug, Error)]
pub enum Error {
    /// The verifier.
    #[error(transparent)]
    Remote(#[from] remote::Error),
    /// The generator.
    #[error(transparent)]
    Generator(#[from] generator::Error),
    /// The verifier's groups and ports do not match the streams' copies.
    #[error(
        "{streams} streams are sent and the verifier counts at {places} places: it must count each \
         stream at the same number of places, all streams in order, once for each copy"
    )]
    Places {
        /// Streams.
        streams: usize,
        /// Groups and ports of the verifier.
        places: u32,
    },
    /// Some streams do not arrive.
    #[error(
        "{silent} of {places} places get nothing, the first that of stream {first}: is it relayed, \
         and does the verifier name the groups that it is relayed to, in the order of the streams?"
    )]
    Silent {
        /// Groups and ports without a packet.
        silent: u64,
        /// All groups and ports.
        places: usize,
        /// Where the first of these streams is sent.
        first: String,
    },
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

/// What is offered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Packets per second, over all streams.
    pub rate_pps: f64,
    /// Seconds.
    pub seconds: f64,
    /// Bytes of UDP payload.
    pub size: usize,
    /// How many of the streams, from the first on.
    pub streams: usize,
}

/// The outcome.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Bytes of UDP payload.
    pub payload_bytes: usize,
    /// Streams that packets were sent to.
    pub streams: usize,
    /// Requested packets per second.
    pub asked_pps: f64,
    /// What was offered, and what was delivered.
    #[serde(flatten)]
    pub volume: Volume,
    /// Packets that the generator's kernel refused.
    pub refused: u64,
    /// Its error for the first of them.
    pub first_refusal: Option<String>,
    /// Copies that arrived again.
    pub duplicated: u64,
    /// Copies that arrived after a later one of their stream.
    pub reordered: u64,
    /// Groups and ports that received nothing.
    pub silent: u64,
    /// From the intended send time to the verifier's ingress, microseconds.
    pub latency_us: Summary,
    /// The clocks' difference and its uncertainty; absent where generator and verifier have one
    /// clock.
    pub clock: Option<Offset>,
    /// Where missing copies were dropped, as far as any counter shows.
    pub drops: Vec<Drop>,
    /// What the generator's host counted meanwhile.
    pub generator: Counters,
    /// What the verifier's host counted meanwhile.
    pub verifier: Counters,
}

impl Outcome for Trial {
    fn volume(&self) -> Volume {
        self.volume
    }
}

impl Trial {
    /// Whether the generator offered the requested rate.
    pub fn is_on_schedule(&self) -> bool {
        self.offered_pps() >= KEPT_UP * self.asked_pps
    }

    /// Missing copies that no counter explains.
    pub fn unexplained(&self) -> u64 {
        let counted: u64 = self.drops.iter().map(|drop| drop.copies).sum();
        u64::try_from(self.missing()).map_or(0, |missing| missing.saturating_sub(counted))
    }
}

/// A generator with its verifier.
#[derive(Debug)]
pub struct Tester {
    options: Options,
    remote: Remote,
    own: Host,
    names: BTreeSet<String>,
    /// Copies of each packet that arrive.
    copies: u64,
    control: Control,
}

impl Tester {
    /// Combines a generator and a verifier. `options` set destinations and method; size, rate,
    /// duration and number of streams are each trial's.
    ///
    /// # Errors
    /// If the verifier's groups and ports are no multiple of the streams.
    pub fn new(
        options: Options,
        remote: Remote,
        own: Host,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let (streams, places) = (options.destinations.len(), remote.places());
        let copies = places as usize / streams.max(1);
        if copies == 0 || copies * streams != places as usize {
            return Err(Error::Places { streams, places });
        }
        Ok(Self {
            names: interfaces(&options.destinations),
            options,
            remote,
            own,
            copies: copies as u64,
            control: Control {
                stop,
                ..Control::default()
            },
        })
    }

    /// The host that sends.
    pub const fn generator(&self) -> &Host {
        &self.own
    }

    /// The host that counts.
    pub const fn verifier(&self) -> &Host {
        self.remote.host()
    }

    /// Streams that can be sent.
    pub fn streams(&self) -> usize {
        self.options.destinations.len()
    }

    /// Whether all streams are of IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.options
            .destinations
            .iter()
            .all(|to| to.address.is_ipv4())
    }

    /// Copies of each packet that arrive.
    pub const fn copies(&self) -> u64 {
        self.copies
    }

    /// Sends some packets of each stream until all arrive.
    ///
    /// # Errors
    /// If some do not.
    pub fn reach(&mut self, size: usize) -> Result<(), Error> {
        let streams = self.streams();
        let load = Load {
            rate_pps: REACH_PPS,
            seconds: (REACH_PACKETS * streams as u64) as f64 / REACH_PPS,
            size,
            streams,
        };
        let mut silent = Vec::new();
        for _ in 0..REACH_ATTEMPTS {
            let mut options = self.options_for(&load);
            options.count = Some(REACH_PACKETS);
            options.duration = None;
            silent = self.offer(&options, &load)?.1;
            if silent.is_empty() {
                return Ok(());
            }
        }
        Err(Error::Silent {
            silent: silent.len() as u64,
            places: streams * self.copies as usize,
            first: self.options.destinations[silent[0] % streams].to_string(),
        })
    }

    /// Offers a load and counts what arrives.
    ///
    /// # Errors
    /// Whatever prevents it; packets that are refused or lost are in the outcome instead.
    pub fn run(&mut self, load: &Load) -> Result<Trial, Error> {
        let options = self.options_for(load);
        Ok(self.offer(&options, load)?.0)
    }

    /// Also returns the indices of the groups and ports that received nothing.
    fn offer(&mut self, options: &Options, load: &Load) -> Result<(Trial, Vec<usize>), Error> {
        let offset = self.remote.offset()?;
        let verifier_before = self.remote.begin(load.seconds, offset)?;
        let own_before = Counters::read(&self.names);
        let sent = generator::run(options, &self.control)?;
        if self.control.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let own = Counters::read(&self.names).since(&own_before);
        let expected = sent.sent.packets * self.copies;
        let counted = self.remote.end(expected)?;
        let offset_after = self.remote.offset()?;
        let verifier = counted.counters.since(&verifier_before);
        let streams = self.streams();
        let is_silent =
            |index: &usize| index % streams < load.streams && counted.received[*index] == 0;
        let silent: Vec<usize> = (0..counted.received.len()).filter(is_silent).collect();
        let one_host = !self.remote.has_own_clock();
        let SendReport {
            seconds,
            errors,
            first_error,
            ..
        } = sent;
        let trial = Trial {
            payload_bytes: load.size,
            streams: load.streams,
            asked_pps: load.rate_pps,
            volume: Volume {
                sent: sent.sent.packets,
                seconds,
                expected,
                delivered: counted.received.iter().sum(),
            },
            refused: errors,
            first_refusal: first_error,
            duplicated: counted.duplicated,
            reordered: counted.reordered,
            silent: silent.len() as u64,
            latency_us: counted.latency_us,
            clock: (!one_host).then(|| widened(offset, offset_after)),
            drops: drops::of_hosts(&own, &verifier, self.copies, one_host),
            generator: own,
            verifier,
        };
        Ok((trial, silent))
    }

    fn options_for(&self, load: &Load) -> Options {
        let streams = load.streams.clamp(1, self.streams());
        Options {
            destinations: self.options.destinations[..streams].to_vec(),
            rate_pps: Some(load.rate_pps / streams as f64),
            duration: Some(Duration::from_secs_f64(load.seconds)),
            sizes: Sizes::Fixed(load.size),
            ..self.options.clone()
        }
    }
}

/// The egress interfaces that the destinations name.
pub fn interfaces(destinations: &[Destination]) -> BTreeSet<String> {
    let names = destinations.iter().filter_map(|to| to.interface.clone());
    names.collect()
}

/// The offset a trial was measured with; clocks that drifted meanwhile make it less certain.
fn widened(before: Offset, after: Offset) -> Offset {
    let drift = before.ahead_ns.abs_diff(after.ahead_ns);
    Offset {
        ahead_ns: before.ahead_ns,
        bound_ns: before.bound_ns.max(after.bound_ns).saturating_add(drift),
    }
}

#[cfg(test)]
mod tests {
    use super::super::drops::Stage;
    use super::*;

    #[test]
    fn missing_copies_without_a_counter_are_unexplained() {
        let mut trial = Trial {
            asked_pps: 1000.0,
            volume: Volume {
                sent: 900,
                seconds: 1.0,
                expected: 900,
                delivered: 800,
            },
            ..Trial::default()
        };
        assert_eq!(trial.unexplained(), 100);
        assert!(!trial.is_on_schedule());
        trial.drops.push(Drop {
            at: Stage::Relay,
            what: "rule cam1: rate_limited".to_owned(),
            copies: 150,
        });
        assert_eq!(trial.unexplained(), 0);
        trial.volume.delivered = 901;
        assert_eq!((trial.missing(), trial.unexplained()), (-1, 0));
    }

    #[test]
    fn clocks_that_drift_are_less_certain() {
        let offset = |ahead_ns, bound_ns| Offset { ahead_ns, bound_ns };
        assert_eq!(widened(offset(-50, 7), offset(30, 5)), offset(-50, 87));
    }
}
