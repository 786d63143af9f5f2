//! A stream of numbered packets, each with the time it was sent, and every packet that arrives of it:
//! its number, when, and which relay it came through.

use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt};

use super::history::Packet;
use crate::link::End;
use crate::namespace::Namespace;
use crate::socket::{Receiver, Sender, udp_counters};

/// Who sent the last packet forwards, if that is not longer ago.
pub(super) const FRESH: Duration = Duration::from_millis(300);

const MAGIC: &[u8; 8] = b"MCRFLEET";
/// Bytes of UDP payload.
const SIZE: usize = 200;
/// What is under way when the sender has ended arrives within this.
const REST: Duration = Duration::from_millis(400);

/// What is sent, and where it is relayed to.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Packets a second.
    pub rate_pps: u32,
    /// Group and port that the rule receives.
    pub input: (Ipv4Addr, u16),
    /// Group and port that the rule sends to.
    pub output: (Ipv4Addr, u16),
}

/// A stream that runs. Dropping it ends it.
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
    /// The longest time between two sends, in milliseconds: what the machine took from the sender, and
    /// no relay can be blamed for.
    pub stalled_ms: f64,
    /// Packets that the receiver's socket had no room for.
    pub overflowed: u64,
    /// Packets that arrived, in the order of their arrival.
    pub packets: Vec<Packet>,
}

#[derive(Debug)]
struct Sent {
    packets: u64,
    longest_pause: Duration,
}

/// Nanoseconds since 1970, the clock of all times of packets.
#[must_use]
pub fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

impl Traffic {
    /// Joins at the sink, then sends from the source until the value goes.
    ///
    /// # Errors
    /// When a socket cannot be had.
    pub fn start(plan: Plan, source: (End<'_>, Ipv4Addr), sink: End<'_>) -> Result<Self> {
        let receiver = Receiver::join(sink, plan.output.0.into(), plan.output.1)?;
        setsockopt(receiver.socket(), sockopt::ReceiveTimestampns, &true)?;
        let sender = Sender::open(source.0, IpAddr::V4(source.1))?;
        let ended = Arc::new(AtomicBool::new(false));
        let packets = Arc::new(Mutex::new(Vec::new()));
        let overflowed = udp_counters(sink.0)?.buffer_errors;
        let (kept, stop) = (Arc::clone(&packets), Arc::clone(&ended));
        let receiver = thread::spawn(move || receive(&receiver, &kept, &stop));
        let stop = Arc::clone(&ended);
        let sender = thread::spawn(move || send(&sender, plan, &stop));
        Ok(Self {
            ended,
            packets,
            sender: Some(sender),
            receiver: Some(receiver),
            sink: sink.0.clone(),
            overflowed,
        })
    }

    /// The relay that the last packet came through, if that was less than `age` ago.
    #[must_use]
    pub fn forwarder(&self, age: Duration) -> Option<Ipv4Addr> {
        let packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        let last = packets.last()?;
        let passed = now_ns().saturating_sub(last.arrived_ns);
        (u128::from(passed) < age.as_nanos()).then_some(last.relay)
    }

    /// Ends the stream and gives what became of it.
    ///
    /// # Errors
    /// When sender or receiver failed.
    pub fn finish(mut self) -> Result<Record> {
        self.ended.store(true, Ordering::SeqCst);
        let sent = joined(self.sender.take())?.context("the sender")?;
        // The receiver ends when nothing has come for a while.
        joined(self.receiver.take())?.context("the receiver")?;
        let mut packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut packets = std::mem::take(&mut *packets);
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

fn send(sender: &Sender, plan: Plan, ended: &AtomicBool) -> Result<Sent> {
    let (group, port) = plan.input;
    let period = Duration::from_secs(1) / plan.rate_pps.max(1);
    let start = Instant::now();
    let (mut last, mut longest_pause) = (start, Duration::ZERO);
    let mut packets: u32 = 0;
    while !ended.load(Ordering::Relaxed) {
        sender.send(group.into(), port, &payload(u64::from(packets), now_ns()))?;
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

fn payload(number: u64, sent_ns: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend(sent_ns.to_be_bytes());
    bytes.resize(SIZE, 0);
    bytes
}

/// Keeps what comes until the stream has ended and nothing comes any more.
fn receive(receiver: &Receiver, packets: &Mutex<Vec<Packet>>, ended: &AtomicBool) -> Result<()> {
    let socket = receiver.socket();
    socket.set_read_timeout(Some(REST))?;
    let (mut buffer, mut control) = ([0; 2048], vec![0; 256]);
    loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::empty();
        let message =
            recvmsg::<SockaddrIn>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags);
        let message = match message {
            Ok(message) => message,
            Err(Errno::EAGAIN) if ended.load(Ordering::SeqCst) => return Ok(()),
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            Err(error) => return Err(error).context("receiving a packet"),
        };
        let relay = message.address.context("a packet without an address")?.ip();
        let arrived_ns = message.cmsgs()?.find_map(arrival).unwrap_or_else(now_ns);
        let length = message.bytes;
        let packet = read(&buffer[..length], arrived_ns, relay)?;
        packets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(packet);
    }
}

fn arrival(message: ControlMessageOwned) -> Option<u64> {
    let ControlMessageOwned::ScmTimestampns(time) = message else {
        return None;
    };
    let (seconds, rest) = (
        u64::try_from(time.tv_sec()).ok()?,
        u64::try_from(time.tv_nsec()).ok()?,
    );
    Some(seconds * 1_000_000_000 + rest)
}

fn read(payload: &[u8], arrived_ns: u64, relay: Ipv4Addr) -> Result<Packet> {
    let words = payload.strip_prefix(MAGIC).and_then(|rest| {
        let (number, rest) = rest.split_first_chunk::<8>()?;
        Some((*number, *rest.first_chunk::<8>()?))
    });
    let (number, sent_ns) = words.context("a packet that the stream did not send")?;
    Ok(Packet {
        number: u64::from_be_bytes(number),
        sent_ns: u64::from_be_bytes(sent_ns),
        arrived_ns,
        relay,
    })
}
