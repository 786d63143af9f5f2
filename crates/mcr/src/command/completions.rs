//! `mcr completions`: what a shell needs to complete the command line.

use std::process::ExitCode;

use clap_complete::Shell;

use crate::cli;
use crate::failure::Failure;
use crate::render;

/// Print completions for a shell.
///
/// For bash: mcr completions bash > /usr/share/bash-completion/completions/mcr
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell to complete for
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::definition(), "mcr", &mut script);
    render::text(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
