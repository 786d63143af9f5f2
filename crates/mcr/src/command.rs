//! The subcommands, one file each.

pub(crate) mod add;
pub(crate) mod apply;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod complete;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod form;
pub(crate) mod guard;
pub(crate) mod keeper;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod receive;
pub(crate) mod remove;
pub(crate) mod run;
pub(crate) mod send;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod tap;
pub(crate) mod top;
pub(crate) mod watch;
pub(crate) mod worker;

use std::fmt;
use std::process::ExitCode;

use api::reply::Change;

use crate::cli::{Cli, Command};
use crate::failure::Failure;

/// Runs the subcommand that the command line names.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let global = cli.global;
    match cli.command {
        Command::Run(args) => run::run(args, &global),
        Command::Add(args) => add::run(args, &global),
        Command::Remove(args) => remove::run(args, &global),
        Command::List(args) => list::run(&args, &global),
        Command::Show(args) => show::run(&args, &global),
        Command::Stats(args) => stats::run(&args, &global),
        Command::Top(args) => top::run(&args, &global),
        Command::Tap(args) => tap::run(&args, &global),
        Command::Events(args) => events::run(&args, &global),
        Command::Log(args) => log::run(&args, &global),
        Command::Check(args) => check::run(&args, &global),
        Command::Diff(args) => apply::diff(&args, &global),
        Command::Apply(args) => apply::run(&args, &global),
        Command::Export(args) => export::run(&args, &global),
        Command::Send(args) => send::run(&args, global.json),
        Command::Receive(args) => receive::run(&args, global.json),
        Command::Doctor(args) => doctor::run(&args, &global),
        Command::Demo(args) => demo::run(&args, global.json),
        Command::Bench(args) => bench::run(&args, global.json),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Complete(args) => complete::run(args),
        Command::Guard(args) => guard::run(&args),
        Command::Keeper(args) => keeper::run(&args),
        Command::Worker(args) => Ok(worker::run(&args)),
    }
}

/// Says what keeps accepted rules from relaying all they should.
fn warn(command: &str, change: &Change) {
    for warning in &change.warnings {
        eprintln!("mcr {command}: warning: {warning}");
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

impl PathChoice {
    /// The choice as a rule's document has it.
    pub(crate) fn document(self) -> model::placement::PathChoice {
        match self {
            Self::Auto => model::placement::PathChoice::Auto,
            Self::Kernel => model::placement::PathChoice::Kernel,
            Self::Userspace => model::placement::PathChoice::Userspace,
        }
    }
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
