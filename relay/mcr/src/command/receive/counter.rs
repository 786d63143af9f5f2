//! `mcr receive --method bpf`: joins the groups, has a BPF program at ingress count the packets,
//! and reads its counters.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use traffic::clock;
use traffic::endpoint::Listen;
use traffic::ingress::watch::{self, Watch};
use traffic::ingress::{Count, IngressCounter};
use traffic::latency::Latency;
use traffic::receiver::{Control, Membership, Options};
use traffic::report::{EndpointReport, ReceiveReport, Tally};

use crate::command::traffic_run::refusal;
use crate::failure::{Failure, Status, unavailable, usage};

/// How often the loop checks for the end of the run and sets the clock.
const TICK: Duration = Duration::from_millis(20);

pub(super) fn run(options: &Options, control: &Control) -> Result<ReceiveReport, Failure> {
    let watch = Watch::of(&options.endpoints).map_err(refused)?;
    let endpoints = options.endpoints.len() as u32;
    let mut counter = IngressCounter::load(endpoints, &watch.keys).map_err(failure)?;
    counter.set_clock_offset(clock::realtime_offset_ns());
    for ifindex in watch.interfaces {
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

fn wait(options: &Options, control: &Control, counter: &mut IngressCounter) -> Result<(), Failure> {
    let start = Instant::now();
    let (mut last_packets, mut last_arrival) = (0, start);
    loop {
        thread::sleep(TICK);
        counter.set_clock_offset(clock::realtime_offset_ns());
        let packets = counter.packets().map_err(failure)?;
        control.received.store(packets, Ordering::Relaxed);
        if packets != last_packets {
            (last_packets, last_arrival) = (packets, Instant::now());
        }
        let is_over = control.stop.load(Ordering::Relaxed)
            || options.count.is_some_and(|count| packets >= count)
            || options
                .duration
                .is_some_and(|limit| start.elapsed() >= limit)
            || options
                .idle
                .is_some_and(|limit| last_arrival.elapsed() >= limit);
        if is_over {
            return Ok(());
        }
    }
}

fn report(endpoints: &[Listen], counts: &[Count]) -> ReceiveReport {
    let mut all = Latency::new(3);
    let reports = endpoints.iter().zip(counts).map(|(endpoint, count)| {
        let latency = count.latency();
        all.add(&latency);
        EndpointReport {
            at: endpoint.at.clone(),
            tally: Tally {
                packets: count.packets,
                bytes: count.bytes,
                lost: count.lost,
                duplicated: count.duplicated,
                reordered: count.reordered,
                unchecked: count.unchecked,
                latency_us: latency.summary(),
                ..Tally::default()
            },
            union: None,
        }
    });
    let reports = reports.collect();
    ReceiveReport::of(reports, all.summary(), None)
}

/// Why an endpoint cannot be counted by BPF.
pub(in crate::command) fn refused(error: watch::Error) -> Failure {
    match error {
        watch::Error::NoInterface(error) => refusal(error),
        other => usage(other),
    }
}

/// Why nothing can be counted by BPF.
pub(in crate::command) fn failure(error: bpf::Error) -> Failure {
    if sys::capability::missing().is_empty() {
        return unavailable(error);
    }
    let needs = "counting at ingress by BPF needs CAP_BPF and CAP_NET_ADMIN: run it as root (or, of mcr receive, \
                 count in sockets)";
    Failure::new(Status::Privilege, needs)
}
