//! `mcr bench`: measures relays side by side, compares runs, writes the report.

mod fleet;
mod terminal;
mod wire;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lab::bench::report::{self, compare};
use lab::bench::results::Results;
use lab::bench::results::reliability::Reliability;
use lab::bench::run::engine;
use lab::bench::run::estimate::Estimate;
use lab::bench::run::relay::{Relay, Tools};
use lab::bench::run::scenario::{Options, SCENARIOS, Scenario};

use self::terminal::{Terminal, minutes};
use crate::failure::{Failure, OrFail, SIGNALS, Status, unavailable};
use crate::render;

/// Measure MCR beside socat, kernel multicast routing and any other relay.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mcr bench run --quick\n  mcr bench report")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Run(RunArgs),
    Compare(CompareArgs),
    Report(ReportArgs),
    Wire(wire::Args),
    Fleet(fleet::Args),
}

/// Run scenarios in namespaces made for them, relays in turn, and keep every trial.
///
/// Needs root and, for the peers, socat, smcroute and nftables.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true, after_help = scenarios_help())]
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
    /// Trials of each case [default: 5 where a promise stands on it, fewer where it is long, else 1
    /// or 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    trials: Option<u32>,
    /// Seconds of a trial whose length is not part of the scenario
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = positive)]
    seconds: f64,
    /// A subset of a few minutes: fewer points, shorter trials, 3 of each
    #[arg(long)]
    quick: bool,
    /// Only the cases that a promise of BENCHMARKS.md stands on: 25 minutes
    #[arg(long, conflicts_with = "quick")]
    promises: bool,
    /// Scenario "streams": numbers of streams
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=10_000))]
    streams: Vec<u16>,
    /// Scenarios "streams" and "fan-out": packets per second of each stream
    #[arg(long, value_name = "PPS", value_parser = positive)]
    rate: Option<f64>,
    /// Scenarios "streams" and "fan-out": packets of each stream
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    packets: Option<u64>,
    /// Bytes of UDP payload, where the size is not part of the scenario [default: 1024]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(32..=65_507))]
    size: Option<u16>,
    /// Workers of MCR's userspace path [default: one per core it may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
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
#[command(after_help = "Examples:\n  mcr bench compare before.json after.json")]
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
#[command(
    after_help = "Examples:\n  mcr bench report target/bench/results.json --output report.md"
)]
struct ReportArgs {
    /// Results of `mcr bench run`, parts of one run or several; a later file replaces cases of an
    /// earlier one
    #[arg(value_name = "FILE", default_value = "target/bench/results.json")]
    results: Vec<PathBuf>,
    /// The report
    #[arg(short, long, value_name = "FILE", default_value = "BENCHMARKS.md")]
    output: PathBuf,
    /// What faults cost, of `make reliability` [default: target/bench/reliability.json, if there]
    #[arg(long, value_name = "FILE")]
    reliability: Option<PathBuf>,
    /// Directory for the plots
    #[arg(long, value_name = "DIRECTORY", default_value = "docs/bench")]
    plots: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    match &args.action {
        Action::Run(args) => measure(args, json)?,
        Action::Wire(args) => return wire::run(args, json),
        Action::Fleet(args) => fleet::run(args, json)?,
        Action::Compare(args) => {
            let (a, b) = (read(&args.a)?, read(&args.b)?);
            let comparison = compare::compare(&a, &b);
            render::reply(json, &comparison, || compare::table(&a, &b, &comparison))?;
        }
        Action::Report(args) => {
            let files = args.results.iter().map(|file| read(file));
            let results = files.collect::<Result<Vec<_>, _>>()?;
            let reliability = reliability(args.reliability.as_deref())?;
            let (output, plots) = (&args.output, &args.plots);
            let warnings = report::write(&results, &reliability, output, plots);
            for warning in warnings.map_err(unavailable)? {
                eprintln!("warning: {warning}");
            }
            eprintln!("wrote {}", args.output.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &RunArgs, json: bool) -> Result<(), Failure> {
    super::require_root("bench run")?;
    let options = options(args);
    lab::bench::run::needs::check(&options.relays).map_err(unavailable)?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = format!("mcr {}", arguments.join(" "));
    announce(&options);
    let mut terminal = Terminal::new(&args.output).or_fail(SIGNALS, Status::Unavailable)?;
    let outcome = engine::run(&options, &command, &mut terminal);
    let saved = terminal.saved_trials;
    drop(terminal);
    let results = outcome.map_err(|error| {
        let file = args.output.display();
        unavailable(error.context(format!("ended early; {saved} trials are kept in {file}")))
    })?;
    if json {
        render::json(&results)?;
    } else {
        render::text(&report::summary(&results))?;
        eprintln!("wrote {}", args.output.display());
    }
    Ok(())
}

/// Prints what will run and how long it will take.
fn announce(options: &Options) {
    let estimate = Estimate::of(&engine::cases(options), options);
    for (number, trials, seconds) in estimate.scenarios() {
        let scenario = SCENARIOS.iter().find(|scenario| scenario.number == *number);
        let name = scenario.map_or("", |scenario| scenario.name);
        eprintln!(
            "{number:2} {name:15} {trials:5} trials {:>7}",
            minutes(*seconds)
        );
    }
    let (trials, seconds) = (estimate.trials(), estimate.seconds());
    eprintln!(
        "   {:15} {trials:5} trials {:>7} min:s, estimated",
        "all",
        minutes(seconds)
    );
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
        trials: args.trials,
        seconds: if args.quick { 1.0 } else { args.seconds },
        quick: args.quick,
        promises: args.promises,
        relays,
        streams: args.streams.clone(),
        rate_pps: args.rate,
        packets: args.packets,
        size: args.size.map(usize::from),
        tools: Tools {
            workers: args.workers.map(usize::from),
        },
    }
}

fn reliability(file: Option<&Path>) -> Result<Reliability, Failure> {
    let default = Path::new("target/bench/reliability.json");
    let file = file.or_else(|| Some(default).filter(|default| default.exists()));
    let read = file.map(Reliability::read).transpose();
    Ok(read.map_err(unavailable)?.unwrap_or_default())
}

fn read(file: &Path) -> Result<Results, Failure> {
    Results::read(file).map_err(unavailable)
}

fn scenario(text: &str) -> Result<u8, String> {
    let number = Scenario::find(text).map(|scenario| scenario.number);
    number.ok_or_else(|| format!("no such scenario; there are:\n{}", scenarios().trim_end()))
}

fn relay(text: &str) -> Result<Relay, String> {
    Relay::parse(text).map_err(|error| error.to_string())
}

fn positive(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok();
    let number = parsed.filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "not a number above 0".to_owned())
}

fn scenarios_help() -> String {
    let examples = "mcr bench run --quick\n  mcr bench run fan-out --only mcr-kernel,socat";
    format!("Examples:\n  {examples}\n\nScenarios:\n{}", scenarios())
}

fn scenarios() -> String {
    let lines = SCENARIOS.iter().map(|scenario| {
        format!(
            "  {:2} {:15} {}\n",
            scenario.number, scenario.name, scenario.title
        )
    });
    lines.collect()
}
