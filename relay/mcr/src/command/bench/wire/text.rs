//! The text of a measurement: hosts, rates by size, groups, and what limits them.

use comfy_table::Cell;
use traffic::latency::Summary;
use traffic::trial::Outcome;
use traffic::wire::drops::Drop;
use traffic::wire::host::{Host, Interface};
use traffic::wire::trial::Trial;

use super::report::{Groups, Report, Throughput};
use crate::render::number::{self, things};
use crate::render::{self, Column, count};

/// The whole report.
pub(super) fn of(report: &Report) -> String {
    let mut text = host("generator", &report.generator) + &host("verifier", &report.verifier);
    text += &clock(report);
    text += &format!(
        "\nHighest rate without loss (RFC 2544, 26.1), up to {} packets/s, {}, {} of each, confirmed \
         for {} s\n",
        count(report.highest_pps.round() as u64),
        things(report.streams as u64, "stream"),
        copies(report.copies),
        report.seconds,
    );
    text += &throughput(report);
    if let Some(capacity) = report.group_capacity {
        text += &format!("\nGroups forwarded at once (RFC 3918, 7.1), without loss: {capacity}\n");
        text += &groups(report);
    }
    text
}

fn copies(copies: u64) -> String {
    match copies {
        1 => "one copy".to_owned(),
        more => format!("{} copies", count(more)),
    }
}

const THROUGHPUT: &[Column<Throughput>] = &[
    ("PAYLOAD", |size| Cell::new(size.payload_bytes)),
    ("FRAME", |size| Cell::new(size.frame_bytes)),
    ("RATE pps", |size| rate(size.zero_loss_pps)),
    ("0.5 % pps", |size| rate(size.partial_drop_pps)),
    ("RATE bit/s", |size| {
        let bits = size.zero_loss_pps * (size.frame_bytes * 8) as f64;
        Cell::new(render::bits_per_second(bits))
    }),
    ("P50 µs", |size| latency(size.trial.latency_us.p50)),
    ("P99 µs", |size| latency(size.trial.latency_us.p99)),
    ("MAX µs", |size| latency(size.trial.latency_us.max)),
    ("P99-MIN µs", |size| variation(&size.trial)),
];

fn throughput(report: &Report) -> String {
    let table = render::table(THROUGHPUT, &report.throughput);
    let mut text = render::table_text(&table) + "\n\nWhat limits\n";
    for size in &report.throughput {
        text += &format!("{} bytes: {}\n", size.payload_bytes, size.limits.join("; "));
    }
    text
}

const GROUPS: &[Column<Groups>] = &[
    ("GROUPS", |step| Cell::new(step.groups)),
    ("PPS", |step| rate(step.trial.offered_pps())),
    ("SENT", |step| Cell::new(count(step.trial.volume.expected))),
    ("ARRIVED", |step| {
        Cell::new(count(step.trial.volume.delivered))
    }),
    ("LOST", |step| Cell::new(count(lost(&step.trial)))),
    ("SILENT", |step| Cell::new(count(step.trial.silent))),
    ("P50 µs", |step| latency(step.trial.latency_us.p50)),
    ("P99 µs", |step| latency(step.trial.latency_us.p99)),
    ("MAX µs", |step| latency(step.trial.latency_us.max)),
    ("P99-MIN µs", |step| variation(&step.trial)),
];

fn groups(report: &Report) -> String {
    let table = render::table(GROUPS, &report.groups);
    let mut text = render::table_text(&table) + "\n";
    for step in report.groups.iter().filter(|step| !step.limits.is_empty()) {
        text += &format!("{} groups: {}\n", step.groups, step.limits.join("; "));
    }
    text
}

fn rate(pps: f64) -> Cell {
    Cell::new(count(pps.round() as u64))
}

fn latency(us: Option<f64>) -> Cell {
    Cell::new(number::tenths(us))
}

fn variation(trial: &Trial) -> Cell {
    let Summary { min, p99, .. } = trial.latency_us;
    latency(p99.zip(min).map(|(p99, min)| p99 - min))
}

fn lost(trial: &Trial) -> u64 {
    u64::try_from(trial.missing()).unwrap_or(0)
}

/// What keeps a trial from a higher rate, the most important first; `line_pps` is what the
/// generator's link carries of this size.
pub(super) fn limits(trial: &Trial, line_pps: Option<f64>) -> Vec<String> {
    let mut limits = Vec::new();
    let lost = lost(trial);
    let of = format!(
        "at {} packets/s {} of {} copies were lost",
        count(trial.offered_pps().round() as u64),
        count(lost),
        count(trial.volume.expected)
    );
    if lost > 0 {
        limits.push(of);
        let mut drops: Vec<&Drop> = trial.drops.iter().collect();
        drops.sort_by_key(|drop| std::cmp::Reverse(drop.copies));
        limits.extend(drops.iter().map(|drop| {
            let (at, what) = (drop.at.as_str(), &drop.what);
            format!("{at}: {what}: {}", count(drop.copies))
        }));
        let unexplained = trial.unexplained();
        if unexplained > 0 {
            let rest = count(unexplained);
            limits.push(format!(
                "between generator and verifier, counted by neither: {rest}"
            ));
        }
        let squeezed = trial.verifier.time_squeeze;
        if squeezed > 0 {
            limits.push(format!(
                "verifier: softirq ran out of its budget {} (net.core.netdev_budget)",
                things(squeezed, "time")
            ));
        }
    }
    if let Some(refusal) = &trial.first_refusal {
        let refused = things(trial.refused, "packet");
        limits.push(format!(
            "generator: its kernel refused {refused}: {refusal}"
        ));
    }
    if !trial.is_on_schedule() {
        let (offered, asked) = (trial.offered_pps(), trial.asked_pps);
        let is_full = line_pps.is_some_and(|line| offered > 0.95 * line);
        let why = if is_full {
            "its link is full"
        } else {
            "its processor or its device does not take more"
        };
        limits.push(format!(
            "generator: {} of {} packets/s: {why}, and latency has its own delay in it",
            count(offered.round() as u64),
            count(asked.round() as u64)
        ));
    }
    if limits.is_empty() {
        limits.push("nothing up to --rate".to_owned());
    }
    limits
}

fn host(role: &str, host: &Host) -> String {
    let cores = things(host.cores as u64, "core");
    let mut head = vec![host.name.clone(), format!("Linux {}", host.kernel), cores];
    for (name, value) in &host.settings {
        head.push(format!("{name} {value}"));
    }
    let mut text = format!("{role}: {}\n", head.join(", "));
    for (name, interface) in &host.interfaces {
        text += &format!("  {name}: {}\n", facts(interface));
    }
    text
}

fn facts(interface: &Interface) -> String {
    let ring = |name: &str, ring: Option<(u32, u32)>| {
        ring.map(|(now, most)| format!("{name} ring {now} of {most}"))
    };
    let queues = interface.rps.iter();
    let rps: Vec<String> = queues
        .map(|(queue, mask)| format!("{queue} {mask}"))
        .collect();
    let facts = [
        interface.driver.clone(),
        interface.speed_mbit.map(|speed| format!("{speed} Mbit/s")),
        interface.mtu.map(|mtu| format!("MTU {mtu}")),
        ring("receive", interface.receive_ring),
        ring("transmit", interface.transmit_ring),
        interface
            .receive_queues
            .map(|queues| things(queues.into(), "receive queue")),
        (!interface.offloads.is_empty()).then(|| interface.offloads.join(" ")),
        (!rps.is_empty()).then(|| format!("RPS {}", rps.join(" "))),
    ];
    facts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn clock(report: &Report) -> String {
    if report.one_clock {
        return "latency: one clock, from the intended send time to the verifier's ingress\n"
            .to_owned();
    }
    let size_trials = report.throughput.iter().map(|size| &size.trial);
    let trials = size_trials.chain(report.groups.iter().map(|step| &step.trial));
    let bounds = trials.filter_map(|trial| Some(trial.clock?.bound_ns));
    let bound = bounds.max().unwrap_or(0) as f64 / 1000.0;
    format!(
        "latency: two clocks, whose difference was known to ±{bound:.0} µs and is taken off; P99-MIN \
         does not depend on it\n"
    )
}

#[cfg(test)]
mod tests {
    use traffic::trial::Volume;
    use traffic::wire::drops::Stage;

    use super::*;

    fn trial(offered: u64, delivered: u64) -> Trial {
        Trial {
            asked_pps: 1000.0,
            volume: Volume {
                sent: offered,
                seconds: 1.0,
                expected: offered,
                delivered,
            },
            ..Trial::default()
        }
    }

    #[test]
    fn who_lost_most_is_named_first() {
        let mut lossy = trial(1000, 100);
        for (at, copies) in [(Stage::Verifier, 100), (Stage::Relay, 700)] {
            let what = "ring".to_owned();
            lossy.drops.push(Drop { at, what, copies });
        }
        let texts = limits(&lossy, None);
        assert_eq!(texts[1..3], ["relay: ring: 700", "verifier: ring: 100"]);
        assert!(texts[3].ends_with("counted by neither: 100"), "{texts:?}");
    }

    #[test]
    fn a_generator_that_cannot_do_more_says_why() {
        let slow = trial(900, 900);
        assert!(limits(&slow, Some(910.0))[0].contains("link is full"));
        assert!(limits(&slow, Some(9000.0))[0].contains("processor"));
        assert_eq!(limits(&trial(1000, 1000), None), ["nothing up to --rate"]);
    }
}
