//! `mcr receive --method bpf`: joins the groups, has a BPF program at ingress count the packets,
//! and reads its account.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use traffic::clock;
use traffic::endpoint::Listen;
use traffic::ingress::{Count, IngressCounter, WatchKey};
use traffic::latency::Latency;
use traffic::receiver::{Control, Membership, Options};
use traffic::report::{EndpointReport, ReceiveReport, Tally};

use crate::command::traffic_run::refusal;
use crate::failure::{Failure, Status};

/// How often the loop checks for the end of the run and sets the clock.
const TICK: Duration = Duration::from_millis(20);

pub(super) fn run(options: &Options, control: &Control) -> Result<ReceiveReport, Failure> {
    let (watched, interfaces) = watch(&options.endpoints)?;
    let endpoints = options.endpoints.len() as u32;
    let mut counter = IngressCounter::load(endpoints, &watched).map_err(failure)?;
    counter.set_clock_offset(clock::realtime_offset_ns());
    for ifindex in interfaces {
        counter.attach(ifindex).map_err(failure)?;
    }
    let membership = Membership::join(&options.endpoints).map_err(refusal)?;
    control.ready.store(true, Ordering::Release);
    wait(options, control, &mut counter)?;
    drop(membership);
    Ok(report(
        &options.endpoints,
        &counter.counts().map_err(failure)?,
    ))
}

/// A key to count, and the number of its endpoint.
type Watched = (WatchKey, u32);

/// The keys to count under the number of each endpoint, and the interfaces they are on.
fn watch(endpoints: &[Listen]) -> Result<(Vec<Watched>, Vec<u32>), Failure> {
    let mut watched = Vec::new();
    let mut interfaces = Vec::new();
    for (number, endpoint) in endpoints.iter().enumerate() {
        let refuse = |what| Failure::new(Status::Usage, format!("{}: {what}", endpoint.at));
        if !endpoint.sources.is_empty() {
            return Err(refuse(
                "--method bpf does not tell sources apart; leave them out",
            ));
        }
        let needed = "--method bpf needs the interface, as in GROUP%eth0:PORT";
        let ifindex = endpoint.ifindex().map_err(refusal)?;
        let ifindex = ifindex.ok_or_else(|| refuse(needed))?;
        if !interfaces.contains(&ifindex) {
            interfaces.push(ifindex);
        }
        watched.extend(endpoint.addresses.iter().map(|address| {
            let key = WatchKey::new(address.ip(), address.port(), ifindex);
            (key, number as u32)
        }));
    }
    Ok((watched, interfaces))
}

fn wait(options: &Options, control: &Control, counter: &mut IngressCounter) -> Result<(), Failure> {
    let start = Instant::now();
    let (mut seen, mut last_arrival) = (0, start);
    loop {
        thread::sleep(TICK);
        counter.set_clock_offset(clock::realtime_offset_ns());
        let packets = counter.packets().map_err(failure)?;
        control.received.store(packets, Ordering::Relaxed);
        if packets != seen {
            (seen, last_arrival) = (packets, Instant::now());
        }
        let over = control.stop.load(Ordering::Relaxed)
            || options.count.is_some_and(|count| packets >= count)
            || options
                .duration
                .is_some_and(|limit| start.elapsed() >= limit)
            || options
                .idle
                .is_some_and(|limit| last_arrival.elapsed() >= limit);
        if over {
            return Ok(());
        }
    }
}

fn report(endpoints: &[Listen], counts: &[Count]) -> ReceiveReport {
    let mut all = Latency::new(3);
    let reports = endpoints.iter().zip(counts).map(|(endpoint, count)| {
        let latency = latency(count);
        all.add(&latency);
        EndpointReport {
            at: endpoint.at.clone(),
            tally: Tally {
                packets: count.packets,
                bytes: count.bytes,
                lost: count.lost,
                duplicated: count.duplicated,
                reordered: count.reordered,
                corrupt: 0,
                continuity_errors: 0,
                unchecked: count.unchecked,
                receiver_dropped: 0,
                latency_us: latency.summary(),
                skew_us: None,
            },
            union: None,
        }
    });
    let reports = reports.collect();
    ReceiveReport::of(reports, all.summary(), None)
}

fn latency(count: &Count) -> Latency {
    let mut latency = Latency::new(3);
    for &(nanoseconds, packets) in &count.latencies_ns {
        latency.record_many(nanoseconds, packets);
    }
    if let Some((min, max)) = count.latency_range_ns {
        latency.widen(min, max);
    }
    latency
}

fn failure(error: bpf::Error) -> Failure {
    if sys::capability::missing().is_empty() {
        return Failure::new(Status::Unavailable, error);
    }
    let needs = "--method bpf needs CAP_BPF and CAP_NET_ADMIN; run it as root, or count in sockets";
    Failure::new(Status::Privilege, needs)
}
