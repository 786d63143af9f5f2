//! The subcommands, one file each.

pub(crate) mod completions;
pub(crate) mod man;
pub(crate) mod receive;
pub(crate) mod send;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::failure::Failure;

/// Runs the subcommand that the command line names.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let json = cli.global.json;
    match cli.command {
        Command::Send(args) => Ok(send::run(&args, json)),
        Command::Receive(args) => Ok(receive::run(&args, json)),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
