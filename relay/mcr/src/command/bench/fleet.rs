//! `mcr bench fleet`: a hundred relays against a real etcd.

use std::time::Duration;

use lab::fleet::etcd::Storage;
use lab::fleet::simulation::{self, Options, Report};

use crate::failure::{Failure, unavailable, usage};
use crate::render;

/// Measure what a fleet of a hundred relays costs etcd, and how fast it is.
///
/// Starts three members of etcd and so many relays in a namespace made for them: the fleet's own code,
/// each with its connections, around a daemon that relays nothing. Applies rules, measures the fleet at
/// rest, then has some relays stand still and measures how soon others have their shares. Needs root
/// and etcd.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mcr bench fleet\n  mcr bench fleet --relays 20 --rules 1000 --json"
)]
pub(super) struct Args {
    /// Relays
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(2..=1000))]
    relays: u16,
    /// Rules
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    rules: u32,
    /// Shares that the rules are grouped in
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    shares: u32,
    /// How long a beat counts, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1200, value_parser = clap::value_parser!(u64).range(300..=5000))]
    hold: u64,
    /// Seconds that the fleet at rest is measured
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Relays that are stopped at once
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(0..=100))]
    stopped: u16,
    /// Keep etcd's data in memory, so that the machine's disk does not count
    #[arg(long)]
    in_memory: bool,
}

pub(super) fn run(args: &Args, json: bool) -> Result<(), Failure> {
    super::super::require_root("bench fleet")?;
    if args.stopped >= args.relays {
        let message = "--stopped: give less than --relays, so that somebody takes over";
        return Err(usage(message));
    }
    let options = Options {
        relays: args.relays,
        rules: args.rules,
        shares: args.shares.min(args.rules),
        hold: Duration::from_millis(args.hold),
        rest: Duration::from_secs(args.seconds),
        stopped: args.stopped,
        storage: if args.in_memory {
            Storage::Memory
        } else {
            Storage::Disk
        },
    };
    let report = simulation::run(&options, |step| eprintln!("{step}")).map_err(unavailable)?;
    render::reply(json, &report, || text(&report))
}

fn text(report: &Report) -> String {
    let takeover = report.takeover_ms.map_or_else(
        || "none".to_owned(),
        |[least, median, most]| format!("{least:.0} / {median:.0} / {most:.0} ms"),
    );
    let rest = &report.rest;
    format!(
        "\n{} relays, {} rules in {} shares, hold {} ms, etcd {}{}\n\
         all alive after {:.1} s; apply answered after {:.1} s, every share open after {:.1} s,\n\
         the last relay live after {:.1} s\n\
         at rest for {:.0} s: {:.0} writes a second, {:.0} kB a second between etcd and relays,\n\
         {:.0} kB a second to the leader's disk, etcd {:.2} cores, relays {:.2} cores\n\
         shares of one relay: {} to {}\n\
         {} relays stopped with {} shares; others opened them after {takeover} (least / median / most)\n\
         gates open at two relays at once: {}; changes of owner at rest: {}\n",
        report.relays,
        report.rules,
        report.shares,
        report.hold_ms,
        report.etcd,
        if report.in_memory { " in memory" } else { "" },
        report.joined_s,
        report.applied_s,
        report.open_s,
        report.live_s,
        rest.seconds,
        rest.writes,
        rest.client_bytes / 1e3,
        rest.disk_bytes / 1e3,
        rest.etcd_cores,
        rest.relays_cores,
        report.held.0,
        report.held.1,
        report.stopped,
        report.bereft,
        report.overlaps,
        report.flaps,
    )
}
