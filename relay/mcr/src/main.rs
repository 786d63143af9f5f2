//! `mcr`: reads the command line, runs one subcommand, turns its outcome into an exit status.

mod capture;
mod cli;
mod command;
mod completion;
mod configuration;
mod control;
mod discover;
mod doctor;
mod each_host;
mod failure;
mod global;
mod hosts;
mod logging;
mod render;
mod rows;
mod save;
mod selection;
mod tap;
mod terms;
mod top;

use std::process::ExitCode;

fn main() -> ExitCode {
    let (cli, name) = cli::Cli::read();
    match cli::run(cli, &name) {
        Ok(code) => code,
        Err(failure) => failure.report(&name),
    }
}
