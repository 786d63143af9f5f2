//! MCR itself, on one path, by its command line.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::running::{Running, Tools};
use crate::bench::results::RelayCount;
use crate::bench::run::bed::Bed;
use crate::bench::run::plan::Plan;
use crate::daemon::{Daemon, Options};

pub(super) fn start(bed: &Bed, plan: Plan, path: &str, tools: &Tools) -> Result<Running> {
    start_with(bed, plan, (path, &[]), tools)
}

/// The kernel path at XDP, and nowhere else.
pub(super) fn start_at_xdp(bed: &Bed, plan: Plan, tools: &Tools) -> Result<Running> {
    start_with(bed, plan, ("kernel", &["--xdp", "on"]), tools)
}

fn start_with(
    bed: &Bed,
    plan: Plan,
    (path, arguments): (&str, &[&str]),
    tools: &Tools,
) -> Result<Running> {
    let mut daemons = Vec::new();
    let (mut started, mut apply) = (Duration::ZERO, Duration::ZERO);
    for index in 0..bed.relays.len() {
        let mut options = Options::path(path);
        options.cores = bed.relay_cores();
        if let Some(workers) = tools.workers.filter(|_| path == "userspace") {
            options.arguments = vec!["--workers".into(), workers.to_string()];
        }
        let further = arguments.iter().map(ToString::to_string);
        options.arguments.extend(further);
        let start = Instant::now();
        let daemon = Daemon::start(&bed.relays[index], options)?;
        started += start.elapsed();
        let rules = config(bed, plan, index);
        let start = Instant::now();
        daemon.apply(&rules)?;
        apply += start.elapsed();
        if !arguments.is_empty() {
            ensure_at_xdp(&daemon)?;
        }
        daemons.push(daemon);
    }
    let roots = daemons.iter().map(Daemon::id).collect();
    let daemons = Arc::new(daemons);
    let held = Arc::clone(&daemons);
    let mut running = Running::new(roots, move || drop(held));
    running.start = Some(started);
    running.apply = Some(apply);
    running.count = Box::new(move || count(&daemons).map(Some));
    Ok(running)
}

fn ensure_at_xdp(daemon: &Daemon) -> Result<()> {
    for rule in daemon.stats()?.rules {
        for input in rule.inputs {
            let (hook, why) = (
                input.hook.unwrap_or_default(),
                input.hook_reason.unwrap_or_default(),
            );
            ensure!(
                hook == "xdp",
                "rule {} is not taken at XDP: {why}",
                rule.name
            );
        }
    }
    Ok(())
}

/// The rules of one relay in a row: the first receives the sender's groups, the last sends the sink's,
/// those between count the second octet up from 2.
fn config(bed: &Bed, plan: Plan, index: usize) -> String {
    let is_last = index + 1 == bed.relays.len();
    let mut text = String::from("version = 1\n");
    for stream in plan.numbers() {
        let input = plan.input(stream).after(index).on("veth1");
        let outputs: Vec<String> = if is_last {
            let egresses = bed.egresses.iter().cycle();
            let pairs = plan.outputs(stream).zip(egresses);
            pairs.map(|(to, link)| to.on(link)).collect()
        } else {
            vec![plan.input(stream).after(index + 1).on("veth2")]
        };
        let _ = write!(
            text,
            "[[rule]]\nname = \"s{stream}\"\ninput = {input:?}\noutputs = {outputs:?}\n"
        );
    }
    text
}

/// What the first relay of a row received and the last one sent; drops of all.
fn count(daemons: &[Daemon]) -> Result<RelayCount> {
    let mut total = RelayCount::default();
    for (index, daemon) in daemons.iter().enumerate() {
        let stats = daemon.stats()?;
        let rings = stats.workers.iter().map(|worker| worker.buffer_exhausted);
        let mut ring_full: u64 = rings.sum();
        for rule in stats.rules {
            let outputs = rule.outputs.len() as u64;
            if index == 0 {
                total.received += rule.received.packets;
            }
            if index + 1 == daemons.len() {
                let sent = rule.outputs.iter().map(|output| output.sent.packets);
                total.sent += sent.sum::<u64>();
            }
            total.dropped += rule.dropped.values().sum::<u64>() * outputs;
            let dropped = rule
                .outputs
                .iter()
                .flat_map(|output| output.dropped.values());
            total.dropped += dropped.sum::<u64>();
            // The rule's own count includes these already.
            let counted = rule.dropped.get("buffer_exhausted").copied();
            ring_full = ring_full.saturating_sub(counted.unwrap_or(0));
        }
        total.ring_full += ring_full;
    }
    Ok(total)
}
