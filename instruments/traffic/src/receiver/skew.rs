//! Replication skew: how far apart the copies of one packet arrive at different endpoints.

use std::collections::HashMap;

use super::socket::Slot;
use crate::latency::{Latency, Summary};

/// Packets of a stream whose copies may be outstanding at once.
const OUTSTANDING: usize = 4096;
/// Streams that are measured, the first that are seen at several slots: each takes 128 KiB.
const MAX_STREAMS: usize = 256;
/// Streams that are registered at all: any sender can make up new ones.
const MAX_REGISTERED: usize = 65_536;

/// Identifies one of the generator's streams: the run's number and the stream's.
pub(super) type StreamKey = (u16, u32);

/// The streams seen, and the skew of those that are seen at several slots.
pub(super) struct Skew {
    streams: Vec<Stream>,
    indices: HashMap<StreamKey, usize>,
    latest: usize,
    /// How many are measured.
    measured: usize,
    latency: Latency,
}

struct Stream {
    key: StreamKey,
    /// Where the stream was seen first.
    slot: Slot,
    /// Packets by sequence number; empty until the stream is seen at a second slot.
    packets: Vec<Packet>,
}

#[derive(Clone, Copy, Default)]
struct Packet {
    sequence: u64,
    copies: u32,
    first_ns: u64,
    last_ns: u64,
}

impl Default for Skew {
    fn default() -> Self {
        Self {
            streams: Vec::new(),
            indices: HashMap::new(),
            latest: 0,
            measured: 0,
            latency: Latency::new(3),
        }
    }
}

impl Skew {
    /// Records one copy of a packet.
    pub(super) fn record(&mut self, key: StreamKey, slot: Slot, sequence: u64, arrival: u64) {
        if !self.select(key, slot) {
            return;
        }
        let stream = &mut self.streams[self.latest];
        if stream.packets.is_empty() {
            if stream.slot == slot || self.measured >= MAX_STREAMS {
                return;
            }
            self.measured += 1;
            stream.packets = vec![Packet::default(); OUTSTANDING];
        }
        let packet = &mut stream.packets[sequence as usize % OUTSTANDING];
        if packet.copies > 0 && packet.sequence == sequence {
            packet.copies += 1;
            packet.first_ns = packet.first_ns.min(arrival);
            packet.last_ns = packet.last_ns.max(arrival);
            return;
        }
        packet.finish(&mut self.latency);
        *packet = Packet {
            sequence,
            copies: 1,
            first_ns: arrival,
            last_ns: arrival,
        };
    }

    /// Makes `latest` the stream of that key, registering it if new; `false` if there is no room.
    fn select(&mut self, key: StreamKey, slot: Slot) -> bool {
        if self
            .streams
            .get(self.latest)
            .is_some_and(|latest| latest.key == key)
        {
            return true;
        }
        let next = self.streams.len();
        match self.indices.get(&key) {
            Some(index) => self.latest = *index,
            None if next >= MAX_REGISTERED => return false,
            None => {
                self.latest = next;
                self.indices.insert(key, next);
                self.streams.push(Stream {
                    key,
                    slot,
                    packets: Vec::new(),
                });
            }
        }
        true
    }

    /// The distribution over all packets with more than one copy; `None` when there were none.
    pub(super) fn summary(&self) -> Option<Summary> {
        let mut latency = self.latency.clone();
        let outstanding = self.streams.iter().flat_map(|stream| &stream.packets);
        outstanding.for_each(|packet| packet.finish(&mut latency));
        let summary = latency.summary();
        summary.max.is_some().then_some(summary)
    }
}

impl Packet {
    fn finish(&self, latency: &mut Latency) {
        if self.copies > 1 {
            latency.record(self.last_ns - self.first_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: usize) -> Slot {
        let endpoint = 0;
        Slot { endpoint, address }
    }

    #[test]
    fn skew_is_between_the_first_and_the_last_copy() {
        let mut skew = Skew::default();
        for sequence in 0..3 {
            for endpoint in [0, 2, 1] {
                let arrival = 1_000_000 * (sequence + 1) + 1000 * endpoint as u64;
                skew.record((1, 7), at(endpoint), sequence, arrival);
            }
        }
        let summary = skew.summary().unwrap();
        // The very first copy arrived before the stream was seen at several slots.
        assert_eq!((summary.min, summary.max), (Some(1.0), Some(2.0)));
    }

    #[test]
    fn any_number_of_streams_takes_bounded_memory() {
        let mut skew = Skew::default();
        for number in 0..2 * MAX_REGISTERED as u32 {
            (0..2).for_each(|slot| skew.record((1, number), at(slot), 0, 0));
        }
        assert_eq!(skew.streams.len(), MAX_REGISTERED);
        let measured = skew.streams.iter().filter(|it| !it.packets.is_empty());
        assert_eq!(measured.count(), MAX_STREAMS);
    }

    #[test]
    fn a_stream_at_one_endpoint_has_no_skew() {
        let mut skew = Skew::default();
        (0..10).for_each(|sequence| skew.record((1, 7), at(0), sequence, sequence));
        assert_eq!(skew.summary(), None);
    }
}
