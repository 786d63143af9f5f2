//! `mcr man`: the manual pages, generated from the same source as `--help` and the configuration.

mod configuration;
mod sections;

use std::fs;
use std::path::{Path, PathBuf};

use clap_mangen::Man;

use crate::failure::{Failure, OrFail, Status};
use crate::render;

/// Print the manual page, or write all pages: of every subcommand, and mcr.toml(5).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mcr man | man -l -                                read mcr(1) at once
  mcr man --directory /usr/local/share/man          install all pages")]
pub(crate) struct Args {
    /// Write man1/mcr.1, a page for each subcommand and man5/mcr.toml.5 into this directory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, definition: clap::Command) -> Result<(), Failure> {
    if let Some(directory) = &args.directory {
        return write_all(directory, definition);
    }
    let mut page = Vec::new();
    Man::new(definition).render(&mut page)?;
    let text = completed(&String::from_utf8_lossy(&page), "mcr");
    Ok(render::text(&text)?)
}

/// A generated page with its examples under their own title, and the sections that clap has not.
fn completed(page: &str, name: &str) -> String {
    page.replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n") + &sections::of(name)
}

fn write_all(directory: &Path, definition: clap::Command) -> Result<(), Failure> {
    let (commands, formats) = (directory.join("man1"), directory.join("man5"));
    let write = || {
        fs::create_dir_all(&commands)?;
        fs::create_dir_all(&formats)?;
        clap_mangen::generate_to(definition, &commands)?;
        for entry in fs::read_dir(&commands)? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            if name == "mcr" || name.starts_with("mcr-") {
                let page = completed(&fs::read_to_string(&path)?, &name);
                fs::write(&path, page)?;
            }
        }
        fs::write(formats.join("mcr.toml.5"), configuration::page().render())
    };
    let writing = format!("cannot write manual pages to {}", directory.display());
    write().or_fail(writing, Status::Unavailable)
}
