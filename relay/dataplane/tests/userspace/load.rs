//! Many streams at once, checked packet by packet at the sink.

use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::socket::Receiver;

use crate::bed::Bed;

/// Group and port that all streams are relayed to; their payloads distinguish them.
const SINK: (&str, u16) = ("239.10.1.1", 6001);
/// The most packets in flight: less than the smallest queue on the way holds, with two tests at once. The
/// sink's socket has room for some 277 (`rmem_default`), a core's queue for 1000 (`netdev_max_backlog`).
const WINDOW: u64 = 200;
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends streams and checks what comes out.
pub(crate) struct Load {
    senders: Vec<UdpSocket>,
    next: Vec<u64>,
    size: usize,
    sent: u64,
    seen: Arc<Seen>,
    reader: Option<JoinHandle<Result<()>>>,
}

#[derive(Default)]
struct Seen {
    packets: AtomicU64,
    stop: AtomicBool,
    reordered: AtomicU64,
    faults: Mutex<Vec<String>>,
}

impl Load {
    /// Adds a rule per stream to the bed and opens the sockets.
    pub(crate) fn new(bed: &mut Bed, streams: u16, size: usize) -> Result<Self> {
        let rules = (0..streams).map(|stream| {
            let output = bed.output(0, SINK.0, SINK.1);
            bed.rule(
                &format!("s{stream}"),
                &group(stream),
                5000 + stream,
                vec![output],
            )
        });
        let rules: Vec<_> = rules.collect();
        bed.apply(rules)?;
        let sink = bed.address(SINK.0);
        let receiver = Receiver::join((&bed.chain.sink, "veth3"), sink, SINK.1)?;
        let senders = bed
            .chain
            .sender
            .run(|| (0..streams).map(connected).collect())?;
        let seen = Arc::new(Seen::default());
        let reader = {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || read(&receiver, &seen, streams))
        };
        Ok(Self {
            senders,
            next: vec![0; streams.into()],
            size,
            sent: 0,
            seen,
            reader: Some(reader),
        })
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn seen(&self) -> u64 {
        self.seen.packets.load(Ordering::Relaxed)
    }

    /// Packets that arrived after a later one of their stream.
    pub(crate) fn reordered(&self) -> u64 {
        self.seen.reordered.load(Ordering::Relaxed)
    }

    /// Sends `packets` packets, spread over the streams in bursts of a few, as fast as the sink
    /// sees them.
    pub(crate) fn send_closed_loop(&mut self, packets: u64) -> Result<()> {
        let goal = self.sent + packets;
        let mut progress = (self.seen(), Instant::now());
        while self.sent < goal {
            while self.sent - self.seen() < WINDOW && self.sent < goal {
                self.burst(8)?;
            }
            let seen = self.seen();
            if seen != progress.0 {
                progress = (seen, Instant::now());
            }
            ensure!(
                progress.1.elapsed() < PATIENCE,
                "{} sent, {seen} seen",
                self.sent
            );
            std::thread::yield_now();
        }
        let seen = &self.seen;
        let sent = self.sent;
        lab::wait::until_within(PATIENCE, "everything arrived", || {
            seen.packets.load(Ordering::Relaxed) >= sent
        })
    }

    /// Sends `rate` packets a second for `time`, whatever becomes of them.
    pub(crate) fn send_open_loop(&mut self, rate: u64, time: Duration) -> Result<()> {
        let (start, before) = (Instant::now(), self.sent);
        while start.elapsed() < time {
            let due = (start.elapsed().as_micros() as u64 * rate / 1_000_000) + before;
            while self.sent < due {
                self.burst(4)?;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Stops the reader; fails if something came twice or damaged.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.seen.stop.store(true, Ordering::Relaxed);
        let reader = self.reader.take().context("already stopped")?;
        reader.join().ok().context("the reader panicked")??;
        let faults = self.seen.faults.lock().ok().context("poisoned")?;
        ensure!(
            faults.is_empty(),
            "{} faults: {:?}",
            faults.len(),
            &faults[..faults.len().min(5)]
        );
        Ok(())
    }

    fn burst(&mut self, packets: u64) -> Result<()> {
        let stream = (self.sent / packets) as usize % self.senders.len();
        for _ in 0..packets {
            let mut payload = lab::socket::payload(self.next[stream], self.size);
            // The stream's number replaces the magic's unused high bytes.
            payload.extend((stream as u16).to_be_bytes());
            self.senders[stream].send(&payload)?;
            self.next[stream] += 1;
            self.sent += 1;
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::Relaxed);
    }
}

fn group(stream: u16) -> String {
    format!("239.1.1.{}", stream + 1)
}

/// A connected socket numbers its packets' IP headers, so that they may be coalesced.
fn connected(stream: u16) -> Result<UdpSocket> {
    let socket = UdpSocket::bind("10.0.0.1:0")?;
    socket.set_multicast_ttl_v4(8)?;
    let group: IpAddr = group(stream).parse()?;
    socket.connect((group, 5000 + stream))?;
    Ok(socket)
}

fn read(receiver: &Receiver, seen: &Seen, streams: u16) -> Result<()> {
    let mut arrived: Vec<Vec<bool>> = vec![Vec::new(); streams.into()];
    while !seen.stop.load(Ordering::Relaxed) {
        let Some(datagram) = receiver.receive(Duration::from_millis(50))? else {
            continue;
        };
        if let Err(fault) = check(&mut arrived, &datagram.payload, seen)
            && let Ok(mut faults) = seen.faults.lock()
        {
            faults.push(fault.to_string());
        }
        seen.packets.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn check(arrived: &mut [Vec<bool>], payload: &[u8], seen: &Seen) -> Result<()> {
    let (body, stream) = payload.split_last_chunk().context("too short")?;
    let stream = u16::from_be_bytes(*stream);
    let number = lab::socket::number(body)? as usize;
    let arrived = arrived
        .get_mut(usize::from(stream))
        .context("no such stream")?;
    if number < arrived.len() {
        seen.reordered.fetch_add(1, Ordering::Relaxed);
    } else {
        arrived.resize(number + 1, false);
    }
    ensure!(!arrived[number], "stream {stream}: {number} came twice");
    arrived[number] = true;
    Ok(())
}

fn exactly_once_in_order(workers: usize, packets: u64) -> Result<()> {
    let mut bed = Bed::new(workers)?;
    let mut load = Load::new(&mut bed, 50, 200)?;
    load.send_closed_loop(packets)?;
    let counters = bed.counters()?;
    let received: u64 = counters.rules.values().map(|r| r.received.packets).sum();
    let sent: u64 = counters
        .rules
        .values()
        .map(|r| r.outputs[&0].sent.packets)
        .sum();
    assert_eq!((received, sent), (load.sent(), load.sent()));
    assert_eq!(load.reordered(), 0);
    let shares: Vec<_> = counters.workers.iter().map(|w| w.matched).collect();
    assert!(shares.iter().all(|share| *share > 0), "shares: {shares:?}");
    load.finish()
}

#[test]
fn two_workers_relay_fifty_streams_exactly_once_and_in_order() -> Result<()> {
    exactly_once_in_order(2, 40_000)
}

#[test]
fn four_workers_relay_fifty_streams_exactly_once_and_in_order() -> Result<()> {
    exactly_once_in_order(4, 40_000)
}

#[test]
#[ignore = "takes a minute: a million packets, twice"]
fn a_million_packets_come_exactly_once_and_in_order() -> Result<()> {
    exactly_once_in_order(2, 1_000_000)?;
    exactly_once_in_order(4, 1_000_000)
}

#[test]
fn the_worker_forwards_while_rules_change() -> Result<()> {
    let mut bed = Bed::new(2)?;
    let mut load = Load::new(&mut bed, 10, 200)?;
    let rules: Vec<_> = bed.rules().collect();
    for round in 0..20 {
        load.send_closed_loop(500)?;
        let output = bed.output(0, "239.10.9.9", 7000);
        let other = bed.rule(
            "other",
            &format!("239.2.2.{}", round + 1),
            5000,
            vec![output],
        );
        bed.apply(rules.iter().cloned().chain([other]))?;
    }
    assert_eq!(load.reordered(), 0);
    load.finish()
}
