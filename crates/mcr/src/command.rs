//! The subcommands, one file each.

pub(crate) mod completions;
pub(crate) mod man;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::failure::Failure;

/// Runs the subcommand that the command line names.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
