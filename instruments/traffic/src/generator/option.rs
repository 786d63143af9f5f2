//! Options of a run of the generator.

use std::net::IpAddr;
use std::time::Duration;

use clap::ValueEnum;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::error::Error;
use super::fault::Faults;
use super::line::{Line, LineFaults};
use super::restart::Restart;
use super::size::Sizes;
use crate::capture::Capture;
use crate::endpoint::Destination;
use crate::framing::Framing;
use crate::schedule::Schedule;

/// The longest UDP payload over IPv4.
pub(crate) const LARGEST_BYTES: usize = 65_507;
/// The most datagrams the kernel cuts from one send (UDP_MAX_SEGMENTS before Linux 6.9).
const MOST_SEGMENTS: usize = 64;
/// The largest payload that a path with Ethernet's MTU takes unfragmented over IPv6; the kernel
/// refuses to segment above the MTU.
const LARGEST_SEGMENT: usize = 1452;
/// From this total rate on, packets of one stream that are due at once leave as one segmented send:
/// a loaded host cannot make up for a delay one packet at a time.
const GROUPING_PPS: f64 = 100_000.0;
/// Above this total rate packets are due in groups: even an idle host cannot keep up with a send call
/// for each. Late packets of several streams do not form groups by themselves, so their limit is
/// lower.
const GROUPED_PPS: f64 = 550_000.0;
const GROUPED_STREAMS_PPS: f64 = 200_000.0;

/// How datagrams are handed to the kernel, as on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// Raw frames for a foreign source address; else sockets, with segmentation offload for packets
    /// due at once from 100,000 packets per second on
    #[default]
    Auto,
    /// UDP sockets, sendmmsg
    Sockets,
    /// UDP sockets with segmentation offload
    Gso,
    /// Whole Ethernet frames with complete checksums
    Raw,
}

/// What to send, where, how fast and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// One stream each, or one leg each.
    pub destinations: Vec<Destination>,
    /// What goes wrong on the way to each destination, where all of them are legs that carry the
    /// same packets; else empty.
    pub lines: Vec<LineFaults>,
    /// Streams that take turns on the legs, each with its own numbers; 1 without legs.
    pub senders: u32,
    /// Packets per second of each stream; `None` for as fast as possible.
    pub rate_pps: Option<f64>,
    /// Packets of each stream; with a capture, rounds through it.
    pub count: Option<u64>,
    /// Length of the run.
    pub duration: Option<Duration>,
    /// Sizes of the UDP payload.
    pub sizes: Sizes,
    /// What surrounds the own header.
    pub framing: Framing,
    /// Number of the first packet, where the framing has numbers; `None` for the framing's default.
    pub start: Option<u64>,
    /// When the numbers restart.
    pub restarts: Vec<Restart>,
    /// Packets of a stream that leave together, at least 1; `None` to let the method choose.
    pub burst: Option<u64>,
    /// Time during which the rate rises evenly from 0.
    pub ramp: Duration,
    /// Faults put in on purpose.
    pub faults: Faults,
    /// Seed of everything random.
    pub seed: u64,
    /// Packets to send instead of test packets.
    pub replay: Option<Capture>,
    /// Speed of a replay, as a multiple of the capture's.
    pub speed: f64,
    /// How datagrams are handed to the kernel.
    pub method: Method,
    /// Whether the kernel can segment what UDP sockets send; [`Method::Auto`] avoids it if not.
    pub segmentation: bool,
    /// TTL or hop limit.
    pub ttl: u8,
    /// DSCP, 0 to 63.
    pub dscp: u8,
    /// Source address.
    pub source: Option<IpAddr>,
    /// Source port.
    pub source_port: Option<u16>,
    /// CPU to run on.
    pub cpu: Option<usize>,
}

impl Options {
    /// Makes options with the defaults of the command line: 1,000 packets a second of 1,024 bytes
    /// with TTL 16.
    pub fn to(destinations: Vec<Destination>) -> Self {
        Self {
            destinations,
            lines: Vec::new(),
            senders: 1,
            rate_pps: Some(1000.0),
            count: None,
            duration: None,
            sizes: Sizes::Fixed(Framing::Own.usual_size()),
            framing: Framing::Own,
            start: None,
            restarts: Vec::new(),
            burst: None,
            ramp: Duration::ZERO,
            faults: Faults::default(),
            seed: 0,
            replay: None,
            speed: 1.0,
            method: Method::Auto,
            segmentation: true,
            ttl: 16,
            dscp: 0,
            source: None,
            source_port: None,
            cpu: None,
        }
    }

    /// The same for packets that are sent on several legs.
    pub fn on(lines: Vec<Line>) -> Self {
        let (destinations, lines) = lines
            .into_iter()
            .map(|line| (line.destination, line.faults))
            .unzip();
        Self {
            lines,
            ..Self::to(destinations)
        }
    }

    /// Streams of packets, each numbered by itself.
    pub(super) fn streams(&self) -> usize {
        if self.lines.is_empty() {
            self.destinations.len()
        } else {
            self.senders as usize
        }
    }

    /// The number of the first packet.
    pub(super) fn first_number(&self) -> u64 {
        let usual = self.framing.first_number();
        self.start.unwrap_or(usual)
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        let is_positive = |number: f64| number.is_finite() && number > 0.0;
        if self.destinations.is_empty() {
            return Err(Error::NoDestination);
        }
        if !self.rate_pps.is_none_or(is_positive) || !is_positive(self.speed) {
            return Err(Error::Rate);
        }
        if !self.faults.are_percentages() {
            return Err(Error::Percentage);
        }
        if let Some(source_address) = self.source {
            let is_other = |to: &&Destination| to.address.is_ipv4() != source_address.is_ipv4();
            if let Some(other) = self.destinations.iter().find(is_other) {
                return Err(Error::Family {
                    destination: other.address,
                    source_address,
                });
            }
        }
        if self.replay.is_some() {
            return Ok(());
        }
        if (self.start.is_some() || !self.restarts.is_empty()) && !self.framing.is_numbered() {
            return Err(Error::Unnumbered);
        }
        if !self.restarts.is_empty() && self.rate_pps.is_none() {
            return Err(Error::Untimed);
        }
        let (smallest, largest) = (self.sizes.smallest(), self.sizes.largest());
        let fits = match &self.sizes {
            Sizes::Mix(mix) => mix.iter().all(|&(size, _)| self.framing.fits(size)),
            Sizes::Range(first, last) if first != last && !self.framing.has_constant_body() => {
                false
            }
            _ => self.framing.fits(smallest),
        };
        if !fits || largest > LARGEST_BYTES {
            return Err(Error::Size {
                smallest,
                largest,
                framing: self.framing,
            });
        }
        Ok(())
    }

    pub(super) fn total_count(&self) -> Option<u64> {
        let streams = self.streams() as u64;
        self.count.map(|count| count.saturating_mul(streams))
    }

    pub(super) fn schedule(&self) -> Schedule {
        let streams = self.streams() as u64;
        let total_rate = self.rate_pps.map(|rate| rate * streams as f64);
        Schedule {
            streams,
            total_rate,
            burst: self
                .burst
                .unwrap_or_else(|| self.default_burst(total_rate))
                .max(1),
            ramp_seconds: self.ramp.as_secs_f64(),
        }
    }

    /// Datagrams per block where the user sets no burst: as many as one segmented send takes when
    /// unpaced, else few enough that a block leaves at least every 20 µs.
    fn default_burst(&self, total_rate: Option<f64>) -> u64 {
        let most = self.segments_per_send() as u64;
        match total_rate {
            None if self.uses_gso() => most,
            None => 32,
            Some(rate) if self.is_grouped(rate) => ((rate / 50_000.0).ceil() as u64).clamp(1, most),
            Some(_) => 1,
        }
    }

    /// Returns whether packets are due in groups where the user sets no burst.
    fn is_grouped(&self, total_rate: f64) -> bool {
        match self.method {
            Method::Gso => true,
            Method::Sockets | Method::Raw => false,
            Method::Auto if self.destinations.len() > 1 => total_rate > GROUPED_STREAMS_PPS,
            Method::Auto => total_rate > GROUPED_PPS,
        }
    }

    /// Returns whether sends are segmented.
    pub(super) fn uses_gso(&self) -> bool {
        match self.method {
            Method::Gso => true,
            Method::Sockets | Method::Raw => false,
            Method::Auto => {
                let streams = self.destinations.len() as f64;
                self.segmentation
                    && self.replay.is_none()
                    && self.sizes.largest() <= LARGEST_SEGMENT
                    && self
                        .rate_pps
                        .is_none_or(|rate| rate * streams >= GROUPING_PPS)
            }
        }
    }

    /// Datagrams of the largest size that fit one segmented send.
    pub(super) fn segments_per_send(&self) -> usize {
        (LARGEST_BYTES / self.largest_payload().max(1)).clamp(1, MOST_SEGMENTS)
    }

    /// The largest payload that can occur, in bytes.
    pub(super) fn largest_payload(&self) -> usize {
        match &self.replay {
            Some(capture) => capture.largest_payload(),
            None => self.sizes.largest(),
        }
    }
}

/// Moves the calling thread to `cpu`.
pub(crate) fn pin(cpu: usize) -> Result<(), Error> {
    let mut set = CpuSet::new();
    set.set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| Error::Cpu {
            cpu,
            source: error.into(),
        })
}
