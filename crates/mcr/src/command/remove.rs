//! `mcr remove`: takes rules out, all of those named or none.

use std::process::ExitCode;

use crate::cli::Global;
use crate::control::Control;
use crate::failure::Failure;
use crate::render;

/// Remove rules, all of those named or none.
///
/// Exits with status 3 if there is no rule of a name.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr remove cam1
  mcr remove cam1 cam2")]
pub(crate) struct Args {
    /// Names of the rules
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub(crate) fn run(args: Args, global: &Global) -> Result<ExitCode, Failure> {
    let change = Control::open(global)?.remove(args.names)?;
    if global.json {
        render::json(&change)?;
    }
    Ok(ExitCode::SUCCESS)
}
