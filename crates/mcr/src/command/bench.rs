//! `mcr bench`: measures relays side by side, compares runs, writes the report.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use lab::bench::engine::{self, Progress};
use lab::bench::relay::{Relay, Tools};
use lab::bench::results::Results;
use lab::bench::scenario::{Options, SCENARIOS, Scenario};
use lab::bench::{compare, report};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Failure, Status};
use crate::render;

/// Measure MCR beside socat, kernel multicast routing and any other relay.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Run(RunArgs),
    Compare(CompareArgs),
    Report(ReportArgs),
}

/// Run scenarios in namespaces made for them, relays in turn, and keep every trial.
///
/// Needs root and, for the peers, socat, smcroute and nftables.
#[derive(Debug, clap::Args)]
#[command(after_help = scenarios_help())]
struct RunArgs {
    /// Scenarios by name or number, see below [default: all]
    #[arg(value_name = "SCENARIO", value_parser = scenario)]
    scenarios: Vec<u8>,
    /// Relays to compare: mcr-kernel, mcr-userspace, kernel-routing, socat
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = relay)]
    only: Vec<Relay>,
    /// A relay of yours: SCRIPT start RULES prints its process ids, SCRIPT stop ends it
    #[arg(long, value_name = "NAME=SCRIPT", value_parser = relay)]
    relay: Vec<Relay>,
    /// Trials of each case
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    trials: Option<u32>,
    /// Seconds of a trial whose length is not part of the scenario
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// A subset of a few minutes: fewer points, shorter trials, 3 of each
    #[arg(long)]
    quick: bool,
    /// Scenario "streams": numbers of streams
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=10_000))]
    streams: Vec<u16>,
    /// Scenarios "streams" and "fan-out": packets per second of each stream
    #[arg(long, value_name = "PPS")]
    rate: Option<f64>,
    /// Scenarios "streams" and "fan-out": packets of each stream
    #[arg(long, value_name = "N")]
    packets: Option<u64>,
    /// Bytes of UDP payload, where the size is not part of the scenario [default: 1024]
    #[arg(long, value_name = "BYTES")]
    size: Option<usize>,
    /// Workers of MCR's userspace path [default: one per core it may use]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// File for the results
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "target/bench/results.json"
    )]
    output: PathBuf,
}

/// Set two runs side by side: medians, their ratio, and whether the spreads overlap.
#[derive(Debug, clap::Args)]
struct CompareArgs {
    /// Results of `mcr bench run`
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Results of another run
    #[arg(value_name = "B")]
    b: PathBuf,
}

/// Write tables and plots of runs beside the published figures.
#[derive(Debug, clap::Args)]
struct ReportArgs {
    /// Results of `mcr bench run`; a later file replaces a scenario of an earlier one
    #[arg(value_name = "FILE", default_value = "target/bench/results.json")]
    results: Vec<PathBuf>,
    /// The report
    #[arg(short, long, value_name = "FILE", default_value = "BENCHMARKS.md")]
    output: PathBuf,
    /// Directory for the plots
    #[arg(long, value_name = "DIRECTORY", default_value = "docs/bench")]
    plots: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    match &args.action {
        Action::Run(args) => measure(args, json),
        Action::Compare(args) => {
            let (a, b) = (read(&args.a)?, read(&args.b)?);
            let comparison = compare::compare(&a, &b);
            if json {
                render::json(&comparison)?;
            } else {
                render::text(&compare::table(&comparison))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Action::Report(args) => {
            let results = args.results.iter().map(|file| read(file));
            let results = results.collect::<Result<Vec<_>, _>>()?;
            report::write(&results, &args.output, &args.plots).map_err(unavailable)?;
            eprintln!("wrote {}", args.output.display());
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn measure(args: &RunArgs, json: bool) -> Result<ExitCode, Failure> {
    if !lab::demo::may_run() {
        let message = "needs root, to make network namespaces: sudo mcr bench run";
        return Err(Failure::new(Status::Privilege, message));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let bar = progress_bar();
    let mut watch = |progress: Progress<'_>| {
        anyhow::ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        show(&bar, progress);
        Ok(())
    };
    let command: Vec<String> = std::env::args().skip(1).collect();
    let command = format!("mcr {}", command.join(" "));
    let results = engine::run(&options(args), &command, &mut watch).map_err(unavailable)?;
    bar.finish_and_clear();
    results.write(&args.output).map_err(unavailable)?;
    if json {
        render::json(&results)?;
    } else {
        render::text(&report::summary(&results))?;
        eprintln!("wrote {}", args.output.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn options(args: &RunArgs) -> Options {
    let defaults = Options::default();
    let mut relays = defaults.relays;
    if !args.only.is_empty() {
        relays.clone_from(&args.only);
    }
    relays.extend(args.relay.iter().cloned());
    Options {
        scenarios: if args.scenarios.is_empty() {
            defaults.scenarios
        } else {
            args.scenarios.clone()
        },
        trials: args.trials.unwrap_or(if args.quick { 3 } else { 5 }),
        seconds: if args.quick { 1.0 } else { args.seconds },
        quick: args.quick,
        relays,
        streams: args.streams.clone(),
        rate_pps: args.rate,
        packets: args.packets,
        size: args.size,
        tools: Tools {
            floor_object: Some(bpf::FLOOR),
            workers: args.workers,
        },
    }
}

fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{wide_bar} {pos}/{len} trials, {eta} left\n{msg}";
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    ProgressBar::new(0).with_style(style)
}

fn show(bar: &ProgressBar, progress: Progress<'_>) {
    if bar.is_hidden() {
        eprintln!("{}/{}: {}", progress.done + 1, progress.total, progress.now);
    }
    bar.set_length(progress.total as u64);
    bar.set_position(progress.done as u64);
    bar.set_message(progress.now.to_owned());
}

fn read(file: &std::path::Path) -> Result<Results, Failure> {
    Results::read(file).map_err(unavailable)
}

fn unavailable(error: anyhow::Error) -> Failure {
    Failure::new(Status::Unavailable, format!("{error:#}"))
}

fn scenario(text: &str) -> Result<u8, String> {
    let found = Scenario::find(text).map(|scenario| scenario.number);
    found.ok_or_else(|| format!("no such scenario; they are:\n{}", scenarios_help()))
}

fn relay(text: &str) -> Result<Relay, String> {
    Relay::parse(text).map_err(|error| error.to_string())
}

fn scenarios_help() -> String {
    let lines = SCENARIOS.iter().map(|scenario| {
        format!(
            "  {:2} {:15} {}\n",
            scenario.number, scenario.name, scenario.title
        )
    });
    std::iter::once("Scenarios:\n".to_owned())
        .chain(lines)
        .collect()
}
