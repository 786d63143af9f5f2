//! `mcr man`: the manual pages, generated from the same source as `--help`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_mangen::Man;

use crate::cli;
use crate::failure::{Failure, Status};
use crate::render;

/// Print the manual page, or write the pages of all subcommands.
///
/// To read it at once: mcr man | man -l -
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write mcr.1 and a page for each subcommand into this directory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.directory {
        Some(directory) => write_all(directory)?,
        None => {
            let mut page = Vec::new();
            Man::new(cli::definition()).render(&mut page)?;
            render::text(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write_all(directory: &Path) -> Result<(), Failure> {
    clap_mangen::generate_to(cli::definition(), directory).map_err(|error| {
        let message = format!(
            "cannot write manual pages to {}: {error}",
            directory.display()
        );
        Failure::new(Status::Unavailable, message)
    })
}
