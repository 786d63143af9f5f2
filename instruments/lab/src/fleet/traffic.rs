//! A stream of numbered packets, each with the time it was sent, and a record of every packet that
//! arrives: its number, its time, and the relay that forwarded it.

use std::io::ErrorKind::{Interrupted, WouldBlock};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use parking_lot::Mutex;
use sys::udp::option::enable_timestamps;
use sys::udp::receive::{ReceiveBatch, Received};
/// Nanoseconds since 1970, the clock of all times of packets.
pub use traffic::clock::realtime_ns as now_ns;
use traffic::payload::{self, HEADER_BYTES, Payload, Stamp};

use super::history::Packet;
use crate::link::End;
use crate::namespace::Namespace;
use crate::socket::{Receiver, Sender, udp_counters};

/// The relay of the last packet forwards, if that packet is no older.
pub(super) const FRESH: Duration = Duration::from_millis(300);

/// Packets received at once.
const BATCH: usize = 32;
/// Bytes of UDP payload.
const SIZE: usize = 200;
/// Number of the next stream: packets of one may still be queued when the next has started.
static RUN: AtomicU16 = AtomicU16::new(0);
/// Packets in flight when the sender ends arrive within this time.
const REST: Duration = Duration::from_millis(400);

/// What is sent, and where it is relayed.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Packets a second.
    pub rate_pps: u32,
    /// Group and port that the rule receives.
    pub input: (Ipv4Addr, u16),
    /// Group and port that the rule sends to.
    pub output: (Ipv4Addr, u16),
}

/// A running stream. Dropping it ends it.
#[derive(Debug)]
pub struct Traffic {
    ended: Arc<AtomicBool>,
    packets: Arc<Mutex<Vec<Packet>>>,
    sender: Option<JoinHandle<Result<Sent>>>,
    receiver: Option<JoinHandle<Result<()>>>,
    sink: Namespace,
    overflowed: u64,
}

/// A stream that has ended.
#[derive(Clone, Debug)]
pub struct Record {
    /// Packets sent, numbered from 0.
    pub sent: u64,
    /// The longest time between two sends, in milliseconds: a stall of the machine, which no relay can be
    /// blamed for.
    pub stalled_ms: f64,
    /// Packets dropped at the receiver's full socket.
    pub overflowed: u64,
    /// Packets that arrived, in the order of their arrival.
    pub packets: Vec<Packet>,
}

#[derive(Debug)]
struct Sent {
    packets: u64,
    longest_pause: Duration,
}

impl Traffic {
    /// Joins at the sink, then sends from the source until the value is dropped.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub fn start(plan: Plan, source: (End<'_>, Ipv4Addr), sink: End<'_>) -> Result<Self> {
        let receiver = Receiver::join(sink, plan.output.0.into(), plan.output.1)?;
        enable_timestamps(receiver.socket().as_fd())?;
        let sender = Sender::open(source.0, IpAddr::V4(source.1))?;
        let ended = Arc::new(AtomicBool::new(false));
        let packets = Arc::new(Mutex::new(Vec::new()));
        let overflowed = udp_counters(sink.0)?.buffer_errors;
        let (record, stop) = (Arc::clone(&packets), Arc::clone(&ended));
        let run = RUN.fetch_add(1, Ordering::Relaxed);
        let receiver = thread::spawn(move || receive((&receiver, run), &record, &stop));
        let stop = Arc::clone(&ended);
        let sender = thread::spawn(move || send((&sender, run), plan, &stop));
        Ok(Self {
            ended,
            packets,
            sender: Some(sender),
            receiver: Some(receiver),
            sink: sink.0.clone(),
            overflowed,
        })
    }

    /// The relay that forwarded the last packet, if that was less than `age` ago.
    pub fn forwarder(&self, age: Duration) -> Option<Ipv4Addr> {
        let packets = self.packets.lock();
        let last = packets.last()?;
        let elapsed = now_ns().saturating_sub(last.arrived_ns);
        (u128::from(elapsed) < age.as_nanos()).then_some(last.relay)
    }

    /// Ends the stream and returns its record.
    ///
    /// # Errors
    /// When sender or receiver failed.
    pub fn finish(mut self) -> Result<Record> {
        self.ended.store(true, Ordering::SeqCst);
        let sent = joined(self.sender.take())?.context("the sender")?;
        // The receiver ends when nothing has arrived for a while.
        joined(self.receiver.take())?.context("the receiver")?;
        let mut packets = std::mem::take(&mut *self.packets.lock());
        packets.sort_by_key(|packet| packet.arrived_ns);
        Ok(Record {
            sent: sent.packets,
            stalled_ms: sent.longest_pause.as_secs_f64() * 1e3,
            overflowed: udp_counters(&self.sink)?.buffer_errors - self.overflowed,
            packets,
        })
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
    }
}

fn joined<T>(thread: Option<JoinHandle<T>>) -> Result<T> {
    let thread = thread.context("it was ended before")?;
    thread
        .join()
        .map_err(|_| anyhow!("a thread of the stream has panicked"))
}

fn send((sender, run): (&Sender, u16), plan: Plan, ended: &AtomicBool) -> Result<Sent> {
    let (group, port) = plan.input;
    let period = Duration::from_secs(1) / plan.rate_pps.max(1);
    let mut payload = vec![0; SIZE];
    let checksum = payload::body_checksum(&payload[HEADER_BYTES..]);
    let start = Instant::now();
    let (mut last, mut longest_pause) = (start, Duration::ZERO);
    let mut packets: u32 = 0;
    while !ended.load(Ordering::Relaxed) {
        let stamp = Stamp {
            run,
            stream: 0,
            sequence: packets.into(),
            intended_ns: now_ns(),
        };
        payload::write(&mut payload, &stamp, checksum);
        sender.send(group.into(), port, &payload)?;
        let now = Instant::now();
        longest_pause = longest_pause.max(now - last);
        last = now;
        packets += 1;
        thread::sleep((start + period * packets).saturating_duration_since(now));
    }
    Ok(Sent {
        packets: packets.into(),
        longest_pause,
    })
}

fn receive(
    (receiver, run): (&Receiver, u16),
    packets: &Mutex<Vec<Packet>>,
    ended: &AtomicBool,
) -> Result<()> {
    let socket = receiver.socket().as_fd();
    let mut batch = ReceiveBatch::new(BATCH, 2048);
    loop {
        if !sys::wait::readable(socket, REST)? {
            if ended.load(Ordering::SeqCst) {
                return Ok(());
            }
            continue;
        }
        let count = match batch.receive(socket) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => continue,
            Err(error) => return Err(error).context("receiving a packet"),
        };
        for index in 0..count {
            let packet = packet(&batch.received(index), run)?;
            packets.lock().extend(packet);
        }
    }
}

/// A packet of the stream; `None` for a late one of an earlier stream.
fn packet(received: &Received<'_>, run: u16) -> Result<Option<Packet>> {
    let Payload::Good(stamp) = payload::read(received.bytes) else {
        bail!("a packet that the stream did not send");
    };
    let Some(SocketAddr::V4(relay)) = received.source() else {
        bail!("a packet without an address");
    };
    Ok((stamp.run == run).then(|| Packet {
        number: stamp.sequence,
        sent_ns: stamp.intended_ns,
        arrived_ns: received.timestamp_ns.unwrap_or_else(now_ns),
        relay: *relay.ip(),
    }))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn packets_of_an_earlier_stream_are_ignored() -> Result<()> {
        let receiver = UdpSocket::bind("127.0.0.1:0")?;
        let mut payload = vec![0; SIZE];
        let checksum = payload::body_checksum(&payload[HEADER_BYTES..]);
        for (run, sequence) in [(6, 12), (7, 3)] {
            let stamp = Stamp {
                run,
                stream: 0,
                sequence,
                intended_ns: 1,
            };
            payload::write(&mut payload, &stamp, checksum);
            let sender = UdpSocket::bind("127.0.0.1:0")?;
            sender.send_to(&payload, receiver.local_addr()?)?;
        }
        let mut batch = ReceiveBatch::new(BATCH, 2048);
        let mut numbers = Vec::new();
        for _ in 0..2 {
            sys::wait::readable(receiver.as_fd(), Duration::from_secs(5))?;
            for index in 0..batch.receive(receiver.as_fd())? {
                numbers.push(packet(&batch.received(index), 7)?.map(|packet| packet.number));
            }
            if numbers.len() == 2 {
                break;
            }
        }
        assert_eq!(numbers, [None, Some(3)]);
        Ok(())
    }
}
