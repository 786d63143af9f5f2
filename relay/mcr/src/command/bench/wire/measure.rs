//! The trials of a measurement, in order: does everything come through, the rate of each size, then
//! the number of groups.

use anyhow::{Result, anyhow};
use traffic::search;
use traffic::trial::Outcome;
use traffic::wire::trial::{Load, Tester, Trial};

use super::ethernet::{frame_bytes, line_rate};
use super::relay;
use super::report::{Groups, Report, Throughput};
use super::text::limits;
use crate::control::Control;
use crate::render;

/// Share of the rate without loss at which groups are counted, so that only their number changes.
const GROUPS_SHARE: f64 = 0.5;
/// Version of the report's format.
const VERSION: u32 = 1;

/// What to measure.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) rate_pps: f64,
    pub(super) seconds: f64,
    pub(super) sizes: Vec<usize>,
    pub(super) groups: Option<usize>,
}

/// Runs all trials; `announce` gets a sentence before each step.
pub(super) fn measure(
    tester: Tester,
    relay: Option<Control>,
    plan: &Plan,
    announce: impl Fn(&str),
) -> Result<Report> {
    let mut bench = Bench { tester, relay };
    let first = plan.sizes.first().copied().unwrap_or(1024);
    bench.tester.reach(first)?;
    let mut throughput = Vec::new();
    for &size in &plan.sizes {
        announce(&format!(
            "highest rate without loss, {size} bytes of payload"
        ));
        throughput.push(bench.throughput(plan, size)?);
    }
    let rate = throughput.first().map_or(0.0, |size| size.zero_loss_pps);
    let rate_pps = if rate > 0.0 { rate } else { plan.rate_pps } * GROUPS_SHARE;
    let streams = bench.tester.streams();
    let mut groups = Vec::new();
    for number in steps(plan.groups.unwrap_or(streams)) {
        let load = Load {
            rate_pps,
            seconds: plan.seconds,
            size: first,
            streams: number,
        };
        let rate = render::count(rate_pps.round() as u64);
        announce(&format!(
            "{} at once, {rate} packets/s in all",
            render::number::things(number as u64, "group")
        ));
        groups.push(bench.groups(&load)?);
    }
    let passed = groups.iter().take_while(|step| step.trial.missing() <= 0);
    let group_capacity = (!groups.is_empty()).then(|| passed.last().map_or(0, |step| step.groups));
    let generator = bench.tester.generator().clone();
    let verifier = bench.tester.verifier().clone();
    Ok(Report {
        version: VERSION,
        one_clock: generator.has_clock_of(&verifier),
        generator,
        verifier,
        streams,
        copies: bench.tester.copies(),
        highest_pps: plan.rate_pps,
        seconds: plan.seconds,
        throughput,
        groups,
        group_capacity,
    })
}

/// Numbers of groups to try: 1, 2, 4 and so on up to `all`; none for a single stream.
fn steps(all: usize) -> Vec<usize> {
    if all < 2 {
        return Vec::new();
    }
    let doubled = std::iter::successors(Some(1), |step| Some(step * 2));
    let below = doubled.take_while(|step| *step < all);
    below.chain([all]).collect()
}

struct Bench {
    tester: Tester,
    relay: Option<Control>,
}

impl Bench {
    fn throughput(&mut self, plan: &Plan, size: usize) -> Result<Throughput> {
        let mut lossy: Option<Trial> = None;
        let streams = self.tester.streams();
        let result = search::zero_loss(plan.rate_pps, plan.seconds, |rate_pps, seconds| {
            let trial = self.run(&Load {
                rate_pps,
                seconds,
                size,
                streams,
            })?;
            let is_lower = |other: &Trial| trial.asked_pps <= other.asked_pps;
            if trial.missing() > 0 && lossy.as_ref().is_none_or(is_lower) {
                lossy = Some(trial.clone());
            }
            anyhow::Ok(trial)
        })?;
        let is_ipv4 = self.tester.is_ipv4();
        let trial = result.trial;
        let links = self.tester.generator().interfaces.values();
        let speed = links.filter_map(|interface| interface.speed_mbit).max();
        let line_pps = speed.map(|speed| line_rate(size, is_ipv4, speed));
        Ok(Throughput {
            payload_bytes: size,
            frame_bytes: frame_bytes(size, is_ipv4),
            zero_loss_pps: result.zero_loss_pps,
            partial_drop_pps: result.partial_drop_pps,
            limits: limits(lossy.as_ref().unwrap_or(&trial), line_pps),
            trial,
            lossy,
            probes: result.probes,
        })
    }

    fn groups(&mut self, load: &Load) -> Result<Groups> {
        let trial = search::undisturbed(0.0, || self.run(load))?;
        let is_clean = trial.missing() <= 0 && trial.is_on_schedule();
        Ok(Groups {
            groups: load.streams,
            limits: if is_clean {
                Vec::new()
            } else {
                limits(&trial, None)
            },
            trial,
        })
    }

    fn run(&mut self, load: &Load) -> Result<Trial> {
        let relay = self.relay.as_ref();
        let read_stats = || {
            let stats = relay.map(Control::stats).transpose();
            stats.map_err(|failure| anyhow!("--relay-socket: {failure}"))
        };
        let before = read_stats()?;
        let mut trial = self.tester.run(load)?;
        if let (Some(before), Some(after)) = (before, read_stats()?) {
            let copies = self.tester.copies();
            let drops = relay::drops(&before, &after, trial.volume.sent, copies);
            trial.drops.extend(drops);
        }
        Ok(trial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_double_up_to_all() {
        assert!(steps(1).is_empty());
        assert_eq!(steps(2), [1, 2]);
        assert_eq!(steps(20), [1, 2, 4, 8, 16, 20]);
    }
}
