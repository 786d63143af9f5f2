//! `mcr fleet`: manages many relays with one set of rules, through any of their daemons.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use api::reply::{Event, FleetChange, FleetDone};
use api::request::{FleetMove, FleetRelayName, FleetRuleList};
use rules::duration;

use super::events;
use super::watch::Watch;
use crate::completion;
use crate::configuration;
use crate::control::Control;
use crate::failure::{Failure, OrFail, Status};
use crate::global::Global;
use crate::render::{self, number::things};

/// Kinds of events that concern a fleet.
const KINDS: [&str; 7] = [
    "share_opened",
    "share_shut",
    "relay_fenced",
    "etcd_away",
    "etcd_back",
    "fleet_rules_applied",
    "fleet_rules_refused",
];

/// Silence after which no more of the past events are expected.
const SETTLED: Duration = Duration::from_millis(500);

/// Run many relays as one: one set of rules, each forwarded by one relay at a time.
///
/// Any relay's daemon answers; which fleet it is in, [fleet] of its configuration says.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr fleet apply plant.toml --dry-run      what would change
  mcr fleet apply plant.toml                on all relays, as one step
  mcr fleet status --watch                  relays and shares, the worst first
  mcr fleet drain relay-a                   before its host is taken down
  mcr fleet move cam1 cam2 relay-b          have another relay forward them")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show relays and shares, what is wrong with them first
    #[command(after_help = "Examples:
  mcr fleet status
  mcr fleet status --watch")]
    Status(Watch),
    /// List the fleet's rules and who forwards each
    #[command(after_help = "Examples:
  mcr fleet list
  mcr fleet list --json | jq .generation")]
    List,
    /// Make the fleet's rules those of a file, on all relays as one step
    #[command(after_help = "Examples:
  mcr fleet apply plant.toml --dry-run
  mcr fleet apply plant.toml --generation 7")]
    Apply(ApplyArgs),
    /// Say what mcr fleet apply would change; exits with status 1 where something would
    #[command(after_help = "Examples:
  mcr fleet diff plant.toml
  mcr fleet diff - < plant.toml")]
    Diff(FileArgs),
    /// Print the fleet's rules as a file that mcr fleet apply takes back unchanged
    #[command(after_help = "Examples:
  mcr fleet export > plant.toml")]
    Export,
    /// Have a relay give away what it forwards, and take nothing until mcr fleet undrain
    #[command(after_help = "Examples:
  mcr fleet drain relay-a")]
    Drain(RelayArgs),
    /// Let a relay take shares again; none comes back by itself
    #[command(after_help = "Examples:
  mcr fleet undrain relay-a
  mcr fleet undrain relay-a && mcr fleet rebalance")]
    Undrain(RelayArgs),
    /// Have a relay forward these rules
    #[command(after_help = "Examples:
  mcr fleet move cam1 cam2 relay-b")]
    Move(MoveArgs),
    /// Spread the shares anew over the relays that are there
    #[command(after_help = "Examples:
  mcr fleet rebalance")]
    Rebalance,
    /// End the session of a relay that is known to be dead, where no other relay may
    ///
    /// Another relay may take its shares at once: switch its host off first. Refused where this
    /// daemon hears it beat.
    #[command(after_help = "Examples:
  mcr fleet fence relay-a")]
    Fence(RelayArgs),
    /// Write down what this daemon's part of the fleet was told of late, for a report
    ///
    /// Whatever it did then can be done again from that. The fleet's secret is not in it; names,
    /// addresses and what stands in etcd are.
    #[command(after_help = "Examples:
  mcr fleet record --last 10m plant.record")]
    Record(RecordArgs),
    /// Show what happened in the fleet, as this daemon saw it
    #[command(after_help = "Examples:
  mcr fleet events
  mcr fleet events --follow --json")]
    Events(EventsArgs),
}

#[derive(Debug, clap::Args)]
struct RecordArgs {
    /// Of how long at least, as in 10m; as far as it is kept
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = record_time)]
    last: Duration,
    /// The file to write
    file: PathBuf,
}

fn record_time(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| "give a time, as in 10m or 90s".to_owned())
}

#[derive(Debug, clap::Args)]
struct FileArgs {
    /// The rules, TOML, with roles for interfaces; - is standard input
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
struct ApplyArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Only say what would change, like mcr fleet diff
    #[arg(long)]
    dry_run: bool,
    /// Only in the place of the rules of this generation
    #[arg(long, value_name = "N")]
    generation: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct RelayArgs {
    /// The relay
    #[arg(add = completion::relay())]
    relay: String,
}

#[derive(Debug, clap::Args)]
struct MoveArgs {
    /// Rules or shares; the other rules of a share go with it
    #[arg(required = true, value_name = "RULE", add = completion::fleet_rule())]
    rules: Vec<String>,
    /// The relay that is to forward them
    #[arg(add = completion::relay())]
    relay: String,
}

#[derive(Debug, clap::Args)]
struct EventsArgs {
    /// Go on with what happens from now on
    #[arg(short, long)]
    follow: bool,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let control = Control::open(global)?;
    match &args.command {
        Command::Status(watch) => status(*watch, &control, global)?,
        Command::List => return list(&control, global),
        Command::Apply(args) => {
            let dry_run = args.dry_run;
            replace(&args.file.file, dry_run, args.generation, &control, global)?;
        }
        Command::Diff(args) => return diff(&args.file, &control, global),
        Command::Export => export(&control, global)?,
        Command::Drain(args) => done(&control.fleet_drain(&name(args), true)?, "drained", global)?,
        Command::Undrain(args) => {
            let relay = name(args);
            done(&control.fleet_drain(&relay, false)?, "undrained", global)?;
        }
        Command::Move(MoveArgs { rules, relay }) => {
            let (rules, relay) = (rules.clone(), relay.clone());
            done(
                &control.fleet_move(&FleetMove { rules, relay })?,
                "moving",
                global,
            )?;
        }
        Command::Rebalance => done(&control.fleet_rebalance()?, "rebalancing", global)?,
        Command::Fence(args) => done(&control.fleet_fence(&name(args))?, "fenced", global)?,
        Command::Record(args) => record(args, &control)?,
        Command::Events(args) => show_events(args, &control, global)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn name(RelayArgs { relay }: &RelayArgs) -> FleetRelayName {
    let relay = relay.clone();
    FleetRelayName { relay }
}

fn status(watch: Watch, control: &Control, global: &Global) -> Result<(), Failure> {
    watch.print(|| {
        let status = control.fleet()?;
        if global.json {
            Ok(render::json_text(&status)?)
        } else {
            Ok(render::fleet::screen(&status))
        }
    })
}

/// Lists the rules; those that the relay last had are marked, and the exit status says that etcd is away.
fn list(control: &Control, global: &Global) -> Result<ExitCode, Failure> {
    let rules = control.fleet_known_rules()?;
    if global.json {
        render::json(&rules)?;
    } else if rules.rules.is_empty() && rules.problem.is_none() {
        eprintln!("no rules; mcr fleet apply brings some");
    } else {
        let status = control.fleet()?;
        render::text(&render::fleet::rules(&rules.rules, &status))?;
    }
    match rules.problem {
        None => Ok(ExitCode::SUCCESS),
        Some(problem) => Err(Failure::new(Status::Unavailable, problem)),
    }
}

fn export(control: &Control, global: &Global) -> Result<(), Failure> {
    let rules = control.fleet_rules()?;
    let text = || config::export_fleet(rules.rules.clone());
    render::reply(global.json, &rules, text)
}

fn diff(file: &Path, control: &Control, global: &Global) -> Result<ExitCode, Failure> {
    let change = replace(file, true, None, control, global).map_err(Failure::of_comparison)?;
    Ok(ExitCode::from(u8::from(change.differs())))
}

fn replace(
    file: &Path,
    dry_run: bool,
    generation: Option<u64>,
    control: &Control,
    global: &Global,
) -> Result<FleetChange, Failure> {
    let rules = configuration::read_fleet(file)?;
    let request = FleetRuleList { generation, rules };
    let change = control.fleet_apply(&request, dry_run)?;
    super::warn("fleet", &change.warnings);
    render::reply(global.json, &change, || render::fleet::change(&change))?;
    Ok(change)
}

fn record(args: &RecordArgs, control: &Control) -> Result<(), Failure> {
    let record = control.fleet_record(args.last.as_secs().try_into().unwrap_or(u32::MAX))?;
    let digits = record.data.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Vec<u8> = digits.filter_map(byte).collect();
    let file = args.file.display();
    std::fs::write(&args.file, bytes)
        .or_fail(format_args!("{file}: cannot be written"), Status::Refused)
}

fn done(outcome: &FleetDone, what: &str, global: &Global) -> Result<(), Failure> {
    let which = match outcome.shares.len() as u64 {
        0 => String::new(),
        count => format!(" {}: {}", things(count, "share"), outcome.shares.join(", ")),
    };
    render::reply(global.json, outcome, || format!("{what}{which}"))
}

fn show_events(args: &EventsArgs, control: &Control, global: &Global) -> Result<(), Failure> {
    let mut stream = control.events(200, false)?;
    let within = (!args.follow).then_some(SETTLED);
    while let Some(event) = events::next(control, &mut stream, within, "fleet")? {
        if KINDS.contains(&event.kind.as_str()) {
            render::reply(global.json, &event, || line(&event))?;
        }
    }
    Ok(())
}

fn line(event: &Event) -> String {
    let (time, kind) = (render::moment(event.at_ms), &event.kind);
    format!("{time}  {kind:<19}  {}", event.message)
}
