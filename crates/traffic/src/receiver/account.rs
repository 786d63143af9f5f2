//! What arrived: per endpoint, per stream of the generator.

use std::collections::HashMap;

use sys::udp::receive::Received;

use crate::clock;
use crate::endpoint::Listen;
use crate::latency::{Latency, Summary};
use crate::payload::{self, Payload, Stamp};
use crate::report::{EndpointReport, ReceiveReport, Tally};
use crate::sequence::Sequence;

/// Above this many endpoints their histograms have 2 digits instead of 3, to save memory.
const FINE_ENDPOINTS: usize = 64;

/// Tells streams apart: the run's number and the stream's.
type StreamKey = (u16, u32);

/// Everything counted.
pub(super) struct Account {
    endpoints: Vec<Endpoint>,
    packets: u64,
    digits: u8,
}

struct Endpoint {
    at: String,
    packets: u64,
    bytes: u64,
    corrupt: u64,
    streams: Vec<Sequence>,
    numbers: HashMap<StreamKey, usize>,
    latest: Option<(StreamKey, usize)>,
    latency: Option<Latency>,
}

impl Account {
    pub(super) fn new(endpoints: &[Listen]) -> Self {
        Self {
            endpoints: endpoints.iter().map(Endpoint::new).collect(),
            packets: 0,
            digits: if endpoints.len() > FINE_ENDPOINTS {
                2
            } else {
                3
            },
        }
    }

    /// Packets of all endpoints.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Accounts for one receive at the endpoint with the number `endpoint`.
    pub(super) fn take(&mut self, endpoint: usize, received: &Received<'_>) {
        let arrival = received.timestamp_ns.unwrap_or_else(clock::realtime_ns);
        let endpoint = &mut self.endpoints[endpoint];
        for datagram in received.datagrams() {
            self.packets += 1;
            endpoint.take(datagram, arrival, self.digits);
        }
    }

    pub(super) fn report(&self) -> ReceiveReport {
        let endpoints: Vec<_> = self.endpoints.iter().map(Endpoint::report).collect();
        let mut total = Tally::default();
        for endpoint in &endpoints {
            let tally = &endpoint.tally;
            total.packets += tally.packets;
            total.bytes += tally.bytes;
            total.lost += tally.lost;
            total.duplicated += tally.duplicated;
            total.reordered += tally.reordered;
            total.corrupt += tally.corrupt;
        }
        total.latency_us = self.latency();
        ReceiveReport { endpoints, total }
    }

    fn latency(&self) -> Summary {
        let mut all = Latency::new(self.digits);
        for latency in self.endpoints.iter().filter_map(|e| e.latency.as_ref()) {
            all.add(latency);
        }
        all.summary()
    }
}

impl Endpoint {
    fn new(listen: &Listen) -> Self {
        Self {
            at: listen.at.clone(),
            packets: 0,
            bytes: 0,
            corrupt: 0,
            streams: Vec::new(),
            numbers: HashMap::new(),
            latest: None,
            latency: None,
        }
    }

    fn take(&mut self, datagram: &[u8], arrival: u64, digits: u8) {
        self.packets += 1;
        self.bytes += datagram.len() as u64;
        match payload::read(datagram) {
            Payload::Foreign => {}
            Payload::Corrupt(stamp) => {
                self.corrupt += 1;
                self.take_corrupt(&stamp);
            }
            Payload::Good(stamp) => {
                self.sequence(&stamp);
                // Clocks of different hosts may differ by more than the latency: not below 0.
                let latency = arrival.saturating_sub(stamp.intended_ns);
                self.latency
                    .get_or_insert_with(|| Latency::new(digits))
                    .record(latency);
            }
        }
    }

    fn sequence(&mut self, stamp: &Stamp) {
        let key = (stamp.run, stamp.stream);
        let index = match self.latest {
            Some((latest, index)) if latest == key => Some(index),
            _ => self.numbers.get(&key).copied(),
        };
        if let Some(index) = index {
            self.streams[index].record(stamp.sequence);
            self.latest = Some((key, index));
        } else {
            self.numbers.insert(key, self.streams.len());
            self.latest = Some((key, self.streams.len()));
            self.streams.push(Sequence::starting_at(stamp.sequence));
        }
    }

    /// A corrupt packet did arrive: it is not lost as well, if its number can be believed.
    fn take_corrupt(&mut self, stamp: &Stamp) {
        if let Some(&index) = self.numbers.get(&(stamp.run, stamp.stream))
            && self.streams[index].is_plausible(stamp.sequence)
        {
            self.streams[index].record(stamp.sequence);
        }
    }

    fn report(&self) -> EndpointReport {
        let sum = |field: fn(&Sequence) -> u64| self.streams.iter().map(field).sum();
        EndpointReport {
            at: self.at.clone(),
            tally: Tally {
                packets: self.packets,
                bytes: self.bytes,
                lost: sum(Sequence::lost),
                duplicated: sum(Sequence::duplicated),
                reordered: sum(Sequence::reordered),
                corrupt: self.corrupt,
                latency_us: self
                    .latency
                    .as_ref()
                    .map(Latency::summary)
                    .unwrap_or_default(),
                skew_us: None,
            },
        }
    }
}
