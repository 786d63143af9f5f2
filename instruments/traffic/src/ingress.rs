//! Counts test traffic at tc ingress: sequence and latency of each stream, without sockets, so that
//! counting itself never loses packets. Counted packets go no further.
//!
//! The program reads the payload of `payload.rs`; it does not verify its checksum.

pub mod watch;

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use bpf::Error;
use bpf::link::attach_while_held;
use bpf::map::HashMap;
use bpf::object::Object;
use sys::memory::Array;
use zerocopy::{FromBytes, IntoBytes};

use crate::latency;

/// The compiled program, an ELF file.
pub static OBJECT: &[u8] = bpf::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/ingress.bpf.o"));

/// Capacity in streams: for each watched group and port on average, and at least in total.
const STREAMS_EACH: u32 = 4;
const FEWEST_STREAMS: u32 = 1024;

/// Words of 64 sequence numbers within which a duplicate is recognised.
pub const WINDOW_WORDS: usize = 16;
const LATENCY_FINE: usize = 256;
const LATENCY_STEPS: usize = 128;
const LATENCY_POWERS: usize = 28;
const LATENCY_BUCKETS: usize = LATENCY_FINE + LATENCY_STEPS * LATENCY_POWERS;

/// What is counted: a group (or unicast address) and port on an interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes)]
pub struct WatchKey {
    /// Address in network order, IPv4 in the last word.
    pub group: [u32; 4],
    /// Interface the packets arrive on.
    pub ifindex: u32,
    /// Port in network order.
    pub port: u16,
    /// 0.
    pub pad: u16,
}

impl WatchKey {
    /// Makes the key of an address and port on an interface.
    pub fn new(address: IpAddr, port: u16, ifindex: u32) -> Self {
        let mut group = [0; 4];
        match address {
            IpAddr::V4(address) => group[3] = address.to_bits().to_be(),
            IpAddr::V6(address) => {
                for (word, bytes) in group.iter_mut().zip(address.octets().chunks_exact(4)) {
                    *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
        }
        Self {
            group,
            ifindex,
            port: port.to_be(),
            pad: 0,
        }
    }
}

/// One stream at one watched group and port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct StreamKey {
    /// Where it arrives.
    pub at: WatchKey,
    /// The generator's stream number, in network order.
    pub stream: u32,
    /// The generator's run, as the program loads it.
    pub run: u32,
}

/// The program's state of one stream.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct StreamState {
    /// The kernel's.
    pub lock: u32,
    /// Number of the endpoint that watches.
    pub endpoint: u32,
    /// Datagrams, whatever their number.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
    /// Lowest sequence number seen.
    pub first: u64,
    /// Highest sequence number seen.
    pub highest: u64,
    /// Different sequence numbers seen.
    pub distinct: u64,
    /// Sequence numbers seen again.
    pub duplicated: u64,
    /// Packets seen after one with a higher number.
    pub reordered: u64,
    /// Shortest latency in nanoseconds.
    pub min_ns: u64,
    /// Longest latency in nanoseconds.
    pub max_ns: u64,
    /// Which of the latest numbers were seen.
    pub seen: [u64; WINDOW_WORDS],
}

/// Latencies of one endpoint, by bucket.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Latency {
    /// Packets in each bucket.
    pub buckets: [u64; LATENCY_BUCKETS],
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            buckets: [0; LATENCY_BUCKETS],
        }
    }
}

/// Datagrams at one endpoint that are not the generator's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Foreign {
    /// Datagrams.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
}

/// Converts the program's clock to the generator's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Clock {
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC, in nanoseconds.
    pub offset_ns: u64,
}

/// What one endpoint received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Datagrams of any kind.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
    /// Datagrams that are not the generator's: there is nothing in them to check.
    pub unchecked: u64,
    /// Sequence numbers missing between the lowest and the highest seen.
    pub lost: u64,
    /// Sequence numbers seen again.
    pub duplicated: u64,
    /// Packets that arrived after a higher sequence number.
    pub reordered: u64,
    /// Shortest and longest latency in nanoseconds, if anything was measured.
    pub latency_range_ns: Option<(u64, u64)>,
    /// Latencies in nanoseconds with their number of packets, accurate to 1/128.
    pub latencies_ns: Vec<(u64, u64)>,
}

/// The program, loaded, with its maps and links. Dropping it detaches the program.
#[derive(Debug)]
pub struct IngressCounter {
    program: OwnedFd,
    streams: HashMap<StreamKey, StreamState>,
    latencies: Array<Latency>,
    foreigns: Array<Foreign>,
    clocks: Array<Clock>,
    links: Vec<OwnedFd>,
}

impl IngressCounter {
    /// Loads the program to count the keys in `watched`, each under the number of its endpoint, which
    /// is below `endpoints`. Needs CAP_BPF and CAP_NET_ADMIN.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] with the verifier's last words.
    pub fn load(endpoints: u32, watched: &[(WatchKey, u32)]) -> Result<Self, Error> {
        let key_count = watched.len() as u32;
        let streams = (key_count * STREAMS_EACH).max(FEWEST_STREAMS);
        let sizes = [
            ("watched", key_count.max(1)),
            ("streams", streams),
            ("latencies", endpoints.max(1)),
            ("foreigns", endpoints.max(1)),
        ];
        let mut object = Object::load(OBJECT, &sizes, None)?;
        let (keys, values): (Vec<_>, Vec<_>) = watched.iter().copied().unzip();
        object.hash_map("watched")?.insert(&keys, &values)?;
        Ok(Self {
            program: object.program("sequence")?,
            streams: object.hash_map("streams")?,
            latencies: object.array("latencies")?,
            foreigns: object.array("foreigns")?,
            clocks: object.array("clocks")?,
            links: Vec::new(),
        })
    }

    /// Attaches the program to the ingress of an interface of the calling thread's network
    /// namespace.
    ///
    /// # Errors
    ///
    /// ENODEV without such an interface, EPERM without CAP_NET_ADMIN.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), Error> {
        self.links
            .push(attach_while_held(self.program.as_fd(), ifindex)?);
        Ok(())
    }

    /// Sets CLOCK_REALTIME minus CLOCK_MONOTONIC, in nanoseconds: before the program counts, and now
    /// and then, because the first is adjusted as it runs.
    pub fn set_clock_offset(&mut self, offset_ns: u64) {
        self.clocks.write(0, &Clock { offset_ns });
    }

    /// Datagrams counted so far.
    ///
    /// # Errors
    ///
    /// When the maps cannot be read.
    pub fn packets(&self) -> Result<u64, Error> {
        let streams = self.streams.entries()?;
        let own: u64 = streams.iter().map(|(_, state)| state.packets).sum();
        let foreign = (0..self.foreigns.len()).map(|index| self.foreigns.read(index).packets);
        Ok(own + foreign.sum::<u64>())
    }

    /// Reads what each endpoint received, in the order of their numbers.
    ///
    /// # Errors
    ///
    /// When the maps cannot be read.
    pub fn counts(&self) -> Result<Vec<Count>, Error> {
        let endpoints = self.foreigns.len();
        let mut counts: Vec<_> = (0..endpoints)
            .map(|endpoint| self.endpoint(endpoint))
            .collect();
        for (_, state) in self.streams.entries()? {
            if let Some(count) = counts.get_mut(state.endpoint as usize) {
                count.add(&state);
            }
        }
        Ok(counts)
    }

    /// Reads the state of each stream at each watched group and port.
    ///
    /// # Errors
    ///
    /// When the maps cannot be read.
    pub fn streams(&self) -> Result<Vec<(StreamKey, StreamState)>, Error> {
        self.streams.entries()
    }

    fn endpoint(&self, endpoint: u32) -> Count {
        let Foreign { packets, bytes } = self.foreigns.read(endpoint);
        let buckets = self.latencies.read(endpoint).buckets;
        let filled = buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        Count {
            packets,
            bytes,
            unchecked: packets,
            latencies_ns: filled.map(|(at, count)| (middle_ns(at), *count)).collect(),
            ..Count::default()
        }
    }
}

impl Count {
    /// The distribution of the latencies.
    pub fn latency(&self) -> latency::Latency {
        let mut latency = latency::Latency::new(3);
        for &(nanoseconds, packets) in &self.latencies_ns {
            latency.record_many(nanoseconds, packets);
        }
        if let Some((min, max)) = self.latency_range_ns {
            latency.widen(min, max);
        }
        latency
    }

    fn add(&mut self, state: &StreamState) {
        self.packets += state.packets;
        self.bytes += state.bytes;
        self.lost += (state.highest - state.first + 1).saturating_sub(state.distinct);
        self.duplicated += state.duplicated;
        self.reordered += state.reordered;
        let (min, max) = self
            .latency_range_ns
            .unwrap_or((state.min_ns, state.max_ns));
        self.latency_range_ns = Some((min.min(state.min_ns), max.max(state.max_ns)));
    }
}

/// The middle of a bucket.
fn middle_ns(bucket: usize) -> u64 {
    let Some(above) = bucket.checked_sub(LATENCY_FINE) else {
        return bucket as u64;
    };
    let (power, step) = (above / LATENCY_STEPS + 8, (above % LATENCY_STEPS) as u64);
    let width = 1 << (power - 7);
    (1 << power) + step * width + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let middles: Vec<_> = (0..LATENCY_BUCKETS).map(middle_ns).collect();
        assert!(middles.is_sorted_by(|a, b| a < b));
        assert_eq!((middles[0], middles[255], middles[256]), (0, 255, 257));
        assert_eq!(middles[LATENCY_BUCKETS - 1] >> 35, 1);
    }
}
