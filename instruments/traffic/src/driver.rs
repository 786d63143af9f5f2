//! Frames as a driver delivers them, whole and without an skb: a program makes and stamps them, another
//! redirects all of them at XDP, others count what arrives at a sink.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bpf::object::Object;
use bpf::{Error, live};
use packet::craft::Craft;
use sys::memory::Array;
use zerocopy::{FromBytes, IntoBytes};

use crate::clock;
use crate::latency::{Latency, Summary};
use crate::report::{SendReport, Volume};

static OBJECT: &[u8] = bpf::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/driver.bpf.o"));

/// Width of a step of latency.
const STEP_NS: u64 = 250;
/// Bytes of frame headers that the program stores for each stream.
const HEADER_BYTES: usize = 48;
/// Capacity in streams.
pub const STREAMS: u16 = 1024;
/// Frames of a batch, as in NAPI; paced batches are smaller.
const BATCH: u32 = 64;
const PACED_BATCH: u32 = 8;
/// More packets per second than any core generates.
const MOST_PPS: f64 = 4_000_000.0;

/// `struct turn` of the program, in its order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes)]
struct Turn {
    next: u64,
    streams: u64,
    ifindex: u64,
    start_ns: u64,
    length_ns: u64,
    gap_ns: u64,
    sent: u64,
}

/// Counts multicast at an interface; counted packets go no further.
#[derive(Debug)]
pub struct Sink {
    arrived: Array<u64>,
    latencies: Array<u64>,
    _link: OwnedFd,
}

impl Sink {
    /// Starts to count at an interface of the calling thread's network namespace, at XDP or at tc.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open(ifindex: u32, at_xdp: bool) -> Result<Self, Error> {
        let mut object = Object::load(OBJECT, &[], None)?;
        let link = if at_xdp {
            bpf::xdp::attach_while_held(object.program("sink_xdp")?.as_fd(), ifindex)
        } else {
            bpf::link::attach_while_held(object.program("sink_tc")?.as_fd(), ifindex)
        };
        Ok(Self {
            arrived: object.array("arrived")?,
            latencies: object.array("latencies")?,
            _link: link?,
        })
    }

    /// Bytes of UDP payload so far.
    pub fn arrived(&self) -> u64 {
        self.arrived.read(0)
    }

    /// Resets the latencies.
    pub fn forget(&self) {
        (0..self.latencies.len()).for_each(|step| self.latencies.write(step, &0));
    }

    /// Time from generating each frame to counting it, accurate to a quarter of a microsecond.
    pub fn latency(&self) -> Summary {
        let mut latency = Latency::new(3);
        let counted = (0..self.latencies.len()).map(|step| (step, self.latencies.read(step)));
        for (step, count) in counted.filter(|(_, count)| *count > 0) {
            let middle = u64::from(step) * STEP_NS + STEP_NS / 2;
            latency.record_many(middle, count);
            latency.widen(middle, middle);
        }
        latency.summary()
    }
}

/// Redirects all packets that arrive at an interface of the calling thread's network namespace to the
/// interface of index 3000, until the returned link is dropped.
///
/// # Errors
///
/// The kernel's.
pub fn redirect(ifindex: u32) -> Result<OwnedFd, Error> {
    let program = Object::load(OBJECT, &[], None)?.program("redirect")?;
    bpf::xdp::attach_while_held(program.as_fd(), ifindex)
}

/// Generates frames of several streams in turn and sends them through one interface.
#[derive(Debug)]
pub struct Source {
    program: OwnedFd,
    turns: Array<Turn>,
    turn: Turn,
    frame: Vec<u8>,
    size: usize,
}

impl Source {
    /// Prepares frames of `size` bytes of payload to at most [`STREAMS`] groups.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open(
        ifindex: u32,
        source: SocketAddr,
        groups: &[SocketAddr],
        size: usize,
    ) -> Result<Self, Error> {
        let mut object = Object::load(OBJECT, &[], None)?;
        let frames = object.array("frames")?;
        for (stream, to) in (0..).zip(groups) {
            let mut header = [0_u64; HEADER_BYTES / 8];
            let frame = frame(source, *to, size);
            for (word, bytes) in header.iter_mut().zip(frame.as_chunks().0) {
                *word = u64::from_ne_bytes(*bytes);
            }
            frames.write(stream, &header);
        }
        let frame = groups.first().map(|to| frame(source, *to, size));
        Ok(Self {
            program: object.program("generate")?,
            turns: object.array("turns")?,
            turn: Turn {
                streams: groups.len() as u64,
                ifindex: ifindex.into(),
                ..Turn::default()
            },
            frame: frame.unwrap_or_default(),
            size,
        })
    }

    /// Sends for `length` from the calling thread's core, at `rate_pps` for each stream or unpaced.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn send(&self, rate_pps: Option<f64>, length: Duration) -> Result<SendReport, Error> {
        let streams = self.turn.streams as f64;
        let rate = rate_pps.map(|rate| rate * streams);
        let gap = rate.map_or(0.0, |rate| f64::from(PACED_BATCH) * 1e9 / rate);
        let turn = Turn {
            length_ns: clock::nanoseconds(length),
            gap_ns: gap as u64,
            ..self.turn
        };
        self.turns.write(0, &turn);
        let planned = rate.unwrap_or(MOST_PPS) * length.as_secs_f64();
        let batch = rate.map_or(BATCH, |_| PACED_BATCH);
        let count = (planned as u32).next_multiple_of(batch);
        live::run(self.program.as_fd(), &self.frame, 0, (count, batch))?;
        let packets = self.turns.read(0).sent;
        let seconds = length.as_secs_f64();
        let bytes = packets * self.size as u64;
        Ok(SendReport {
            sent: Volume { packets, bytes },
            seconds,
            pps: packets as f64 / seconds,
            ..SendReport::default()
        })
    }
}

/// A stream's frame, whose payload begins with an unset timestamp.
fn frame(source: SocketAddr, to: SocketAddr, size: usize) -> Vec<u8> {
    let mut payload = vec![0; size];
    payload[8..16].fill(0xff);
    let mut craft = Craft::new(source, to, payload);
    craft.ttl = 16;
    craft.frame()
}
