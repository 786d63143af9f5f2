//! What arrived: per endpoint, per stream.

use std::collections::HashMap;

use clap::ValueEnum;
use sys::udp::receive::Received;

use super::foreign::{Foreign, Gaps, Origin};
use super::skew::{Skew, StreamKey};
use super::socket::Slot;
use crate::clock;
use crate::endpoint::Listen;
use crate::framing::{self, Framed, Framing};
use crate::latency::{Latency, Summary};
use crate::payload::{self, Payload, Stamp};
use crate::report::{EndpointReport, ReceiveReport, Tally};
use crate::sequence::Sequence;

/// Above this many endpoints their histograms have 2 digits instead of 3, to save memory.
const FINE_ENDPOINTS: usize = 64;
/// Streams followed at one endpoint, as many as one generator sends at most: any sender can make up
/// new ones.
const MAX_STREAMS: usize = 65_536;

/// A stream at one of an endpoint's addresses: a relay may send one stream to several of them.
type AddressKey = (usize, StreamKey);

/// Everything counted.
pub(super) struct Account {
    endpoints: Vec<Endpoint>,
    packets: u64,
    digits: u8,
    /// Only where there are several addresses to receive at.
    skew: Option<Skew>,
}

#[derive(Default)]
struct Endpoint {
    at: String,
    packets: u64,
    bytes: u64,
    corrupt: u64,
    receiver_dropped: u64,
    streams: Vec<(AddressKey, Sequence)>,
    /// Index of each stream in `streams`.
    indices: HashMap<AddressKey, usize>,
    latest: usize,
    latency: Option<Latency>,
    foreign: Foreign,
    /// Packets of streams beyond the limit.
    unfollowed: u64,
}

impl Account {
    pub(super) fn new(endpoints: &[Listen]) -> Self {
        let addresses = endpoints.iter().map(|endpoint| endpoint.addresses.len());
        Self {
            skew: (addresses.sum::<usize>() > 1).then(Skew::default),
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

    /// Accounts for one receive.
    pub(super) fn take(&mut self, slot: Slot, received: &Received<'_>) {
        let arrival = received.timestamp_ns.unwrap_or_else(clock::realtime_ns);
        let endpoint = &mut self.endpoints[slot.endpoint];
        for datagram in received.datagrams() {
            self.packets += 1;
            endpoint.count(datagram);
            let stamp = match classify(datagram) {
                Content::Own(payload) => endpoint.take(slot, payload, arrival, self.digits),
                Content::Foreign(framed) => {
                    let source = received.source();
                    let address = slot.address;
                    endpoint.foreign.take(Origin { address, source }, &framed);
                    None
                }
            };
            let Some(stamp) = stamp else {
                continue;
            };
            if let Some(skew) = &mut self.skew {
                skew.record((stamp.run, stamp.stream), slot, stamp.sequence, arrival);
            }
        }
    }

    /// Accounts for datagrams that the endpoint's own socket dropped.
    pub(super) fn dropped(&mut self, endpoint: usize, packets: u64) {
        self.endpoints[endpoint].receiver_dropped += packets;
    }

    pub(super) fn report(&self) -> ReceiveReport {
        let endpoints = self.endpoints.iter().map(Endpoint::report).collect();
        let skew = self.skew.as_ref().and_then(Skew::summary);
        ReceiveReport::of(endpoints, self.latency(), skew)
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
            ..Self::default()
        }
    }

    fn count(&mut self, datagram: &[u8]) {
        self.packets += 1;
        self.bytes += datagram.len() as u64;
    }

    /// Accounts for one of the generator's; returns the stamp of an undamaged one.
    fn take(&mut self, slot: Slot, payload: Payload, arrival: u64, digits: u8) -> Option<Stamp> {
        match payload {
            Payload::Good(stamp) => {
                self.sequence(slot, &stamp);
                // Clocks of different hosts may differ by more than the latency: not below 0.
                let latency = arrival.saturating_sub(stamp.intended_ns);
                self.latency
                    .get_or_insert_with(|| Latency::new(digits))
                    .record(latency);
                Some(stamp)
            }
            Payload::Corrupt(stamp) => {
                self.corrupt += 1;
                self.take_corrupt(slot, &stamp);
                None
            }
            Payload::Foreign => None,
        }
    }

    fn sequence(&mut self, slot: Slot, stamp: &Stamp) {
        let key = (slot.address, (stamp.run, stamp.stream));
        if self
            .streams
            .get(self.latest)
            .is_none_or(|(latest, _)| *latest != key)
        {
            match self.indices.get(&key) {
                Some(&index) => self.latest = index,
                None if self.streams.len() >= MAX_STREAMS => {
                    self.unfollowed += 1;
                    return;
                }
                None => {
                    self.latest = self.streams.len();
                    self.indices.insert(key, self.latest);
                    self.streams
                        .push((key, Sequence::starting_at(stamp.sequence)));
                    return;
                }
            }
        }
        self.streams[self.latest].1.record(stamp.sequence);
    }

    /// A corrupt packet did arrive: it is not lost as well, if its number is plausible.
    fn take_corrupt(&mut self, slot: Slot, stamp: &Stamp) {
        let key = (slot.address, (stamp.run, stamp.stream));
        if let Some(&index) = self.indices.get(&key)
            && self.streams[index].1.is_plausible(stamp.sequence)
        {
            self.streams[index].1.record(stamp.sequence);
        }
    }

    fn report(&self) -> EndpointReport {
        let mut gaps = self.foreign.gaps();
        for (_, sequence) in &self.streams {
            gaps.add(Gaps::of(sequence));
        }
        EndpointReport {
            at: self.at.clone(),
            tally: Tally {
                packets: self.packets,
                bytes: self.bytes,
                lost: gaps.lost,
                duplicated: gaps.duplicated,
                reordered: gaps.reordered,
                corrupt: self.corrupt,
                continuity_errors: gaps.continuity_errors,
                restarts: gaps.restarts,
                unchecked: self.foreign.unchecked() + self.unfollowed,
                receiver_dropped: self.receiver_dropped,
                latency_us: self
                    .latency
                    .as_ref()
                    .map(Latency::summary)
                    .unwrap_or_default(),
                skew_us: None,
            },
            union: None,
        }
    }
}

/// What a datagram holds.
enum Content<'a> {
    Own(Payload),
    Foreign(Framed<'a>),
}

/// Tries the generator's header at the offset of every framing; its magic number identifies it.
fn classify(datagram: &[u8]) -> Content<'_> {
    for framing in Framing::value_variants() {
        let own = datagram.get(framing.own_offset()..).unwrap_or(&[]);
        match payload::read(own) {
            Payload::Foreign => {}
            payload => return Content::Own(payload),
        }
    }
    Content::Foreign(framing::recognise(datagram))
}
