//! `mcr log`: how much the daemon logs, and who changed what.

use api::reply::{ChangeRecord, Log, LogLevel};
use rules::printable::printable;

use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::render;
use crate::rows;

/// Show or change how much the daemon logs, while it runs; show who changed what.
///
/// Lasts until the daemon ends. Workers log only what goes wrong, whatever the level.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mcr log\n  mcr log debug\n  mcr log changes --last 5",
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<LogCommand>,
    /// From here on up lines are written
    #[arg(value_parser = rows::choice(LEVELS))]
    level: Option<LogLevel>,
}

const LEVELS: rows::Choice<LogLevel> = &[
    ("error", LogLevel::Error, "What failed"),
    ("warn", LogLevel::Warn, "And what goes wrong"),
    ("info", LogLevel::Info, "And each change of state"),
    ("debug", LogLevel::Debug, "And what leads to it"),
    ("trace", LogLevel::Trace, "And everything else"),
];

#[derive(Debug, clap::Subcommand)]
enum LogCommand {
    Changes(ChangesArgs),
}

/// Show who changed the rules, when, why, and what.
///
/// The newest comes last. 10,000 changes are kept, or 32 MiB, over restarts and reboots.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr log changes
  mcr log changes --last 1
  mcr log changes --json | jq -r '.[] | select(.by.user == \"alice\") | .what'")]
struct ChangesArgs {
    /// Only the last so many
    #[arg(long, value_name = "N")]
    last: Option<u32>,
}

fn changes(args: &ChangesArgs, global: &Global) -> Result<(), Failure> {
    let changes = Control::open(global)?.changes(args.last.unwrap_or(u32::MAX))?;
    let texts = || changes.iter().map(text).collect();
    render::reply(global.json, &changes, texts)
}

fn text(change: &ChangeRecord) -> String {
    let parts = [
        Some(render::second(change.at_ms)),
        Some(format!("{} -> {}", change.before, change.generation)),
        Some(change.by.to_string()),
        change.outcome.map(|outcome| match change.of {
            Some(of) => format!("{} generation {of}", outcome.as_str()),
            None => outcome.as_str().to_owned(),
        }),
    ];
    let head: Vec<String> = parts.into_iter().flatten().collect();
    let message = change.message.iter().map(|text| format!("\"{text}\""));
    let mut text = format!("{}\n", printable(&head.join("  ")));
    for line in message.chain(change.what.lines().map(str::to_owned)) {
        text += &format!("    {}\n", printable(&line));
    }
    if change.left_out > 0 {
        let more = render::count(change.left_out as u64);
        text += &format!("    and {more} more lines\n");
    }
    text
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    if let Some(LogCommand::Changes(args)) = &args.command {
        return changes(args, global);
    }
    let control = Control::open(global)?;
    let log = match args.level {
        None => control.log()?,
        Some(level) => control.set_log(&Log { level })?,
    };
    let text = || log.level.as_str().to_owned();
    render::reply(global.json, &log, text)
}
