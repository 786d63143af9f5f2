//! `mcr log`: how much the daemon logs.

use std::process::ExitCode;

use api::reply::{Log, LogLevel};

use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::render;

/// Show or change how much the daemon logs, while it runs.
///
/// Lasts until the daemon ends. Workers log only what goes wrong, whatever the level.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mcr log\n  mcr log debug")]
pub(crate) struct Args {
    /// From here on up lines are written
    #[arg(value_enum)]
    level: Option<Level>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Level {
    /// What failed
    Error,
    /// And what goes wrong
    Warn,
    /// And each change of state
    Info,
    /// And what leads to it
    Debug,
    /// And everything else
    Trace,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let control = Control::open(global)?;
    let log = match args.level {
        None => control.log()?,
        Some(level) => control.set_log(&Log {
            level: match level {
                Level::Error => LogLevel::Error,
                Level::Warn => LogLevel::Warn,
                Level::Info => LogLevel::Info,
                Level::Debug => LogLevel::Debug,
                Level::Trace => LogLevel::Trace,
            },
        })?,
    };
    if global.json {
        render::json(&log)?;
    } else {
        render::text(log.level.as_str())?;
    }
    Ok(ExitCode::SUCCESS)
}
