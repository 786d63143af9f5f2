//! The subcommands, one file each.

pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod man;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod worker;

use std::fmt;
use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::failure::Failure;

/// Runs the subcommand that the command line names.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let json = cli.global.json;
    match cli.command {
        Command::Send(args) => send::run(&args, json),
        Command::Receive(args) => receive::run(&args, json),
        Command::Demo(args) => demo::run(&args, json),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Worker(args) => Ok(worker::run(&args)),
    }
}

/// Where rules run that do not say so themselves.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(crate) enum PathChoice {
    /// On the kernel path if it can serve them, else on the userspace path
    #[default]
    Auto,
    /// eBPF
    Kernel,
    /// Worker processes
    Userspace,
}

impl fmt::Display for PathChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::Userspace => "userspace",
        })
    }
}
