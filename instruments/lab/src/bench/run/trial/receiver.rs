//! `mcr receive` at the sink: sequence numbers, latency, skew.

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde::Deserialize;

use crate::bench::results::{Latency, Sequence, Trial};
use crate::bench::run::bed::Bed;
use crate::bench::run::relay::Relay;
use crate::bench::run::shape::{Measure, Shape};
use crate::namespace::Namespace;
use crate::process::Process;
use crate::{binary, wait};

/// Starts `mcr receive` at the first sink and waits until it has joined; `None` if nothing but
/// counts is wanted.
pub(super) fn start(bed: &Bed, relay: &Relay, shape: Shape) -> Result<Option<Process>> {
    if shape.measure == Measure::Count {
        return Ok(None);
    }
    let plan = shape.plan;
    let (sink, link) = &bed.sinks[0];
    let sockets = || sockets(sink);
    let before = sockets();
    let mut command = sink.command(binary::mcr()?);
    command.args(["receive", "--json"]);
    let mut endpoints = 0;
    for stream in plan.numbers() {
        if relay.keeps_groups() {
            let at = plan.input(stream);
            let links = { &bed.sinks }.iter().map(|(_, link)| link);
            for link in links {
                command.arg(at.on(link));
                endpoints += 1;
            }
            continue;
        }
        for at in plan.outputs(stream) {
            command.arg(at.on(link));
            endpoints += 1;
        }
    }
    let process = Process::start(command)?;
    wait::until("mcr receive has joined", || sockets() >= before + endpoints)
        .with_context(|| process.stderr())?;
    Ok(Some(process))
}

/// Ends `mcr receive` and puts its account into the trial.
pub(super) fn finish(receiver: Process, trial: &mut Trial) -> Result<()> {
    let finished = receiver.stop(Signal::SIGINT)?;
    let report: ReceiveReport = serde_json::from_str(&finished.stdout)
        .with_context(|| format!("mcr receive --json: {}{}", finished.stdout, finished.stderr))?;
    let total = report.total;
    trial.sequence = Some(Sequence {
        lost: total.lost,
        duplicated: total.duplicated,
        reordered: total.reordered,
        corrupt: total.corrupt,
    });
    trial.latency_us = Some(total.latency_us);
    trial.skew_us = total.skew_us;
    Ok(())
}

fn sockets(namespace: &Namespace) -> usize {
    let table = namespace.read_proc_net("udp").unwrap_or_default();
    table.lines().skip(1).count()
}

#[derive(Deserialize)]
struct ReceiveReport {
    total: Tally,
}

#[derive(Deserialize)]
struct Tally {
    lost: u64,
    duplicated: u64,
    reordered: u64,
    corrupt: u64,
    latency_us: Latency,
    #[serde(default)]
    skew_us: Option<Latency>,
}
