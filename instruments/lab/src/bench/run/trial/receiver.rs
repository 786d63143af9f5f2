//! `mcr receive` at the sink: sequence numbers, latency, skew.

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use traffic::report::ReceiveReport;

use crate::bench::results::{Sequence, Trial};
use crate::bench::run::bed::Bed;
use crate::bench::run::relay::Relay;
use crate::bench::run::shape::{Measure, Shape};
use crate::binary;
use crate::process::{Process, start_receiver};

/// Starts `mcr receive` at the first sink and waits until it has joined; `None` if only counts are
/// measured.
pub(super) fn start(bed: &Bed, relay: &Relay, shape: Shape) -> Result<Option<Process>> {
    if shape.measure == Measure::Count {
        return Ok(None);
    }
    let plan = shape.plan;
    let (sink, link) = &bed.sinks[0];
    let mut command = sink.command(binary::mcr()?);
    command.args(["receive", "--json"]);
    for stream in plan.numbers() {
        if relay.keeps_groups() {
            let at = plan.input(stream);
            let links = bed.sinks.iter().map(|(_, link)| link);
            for link in links {
                command.arg(at.on(link));
            }
            continue;
        }
        for at in plan.outputs(stream) {
            command.arg(at.on(link));
        }
    }
    start_receiver(command).map(Some)
}

/// Ends `mcr receive` and adds its account to the trial.
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
