//! `mcr complete`: called by the scripts of `mcr completions` while the user types.

use std::ffi::OsString;

use crate::failure::Failure;
use crate::{completion, render};

/// Print what the last word may become, a line each.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Append a tab and what it means
    #[arg(long)]
    described: bool,
    /// The words typed so far without `mcr`; the last one, which may be empty, is completed
    #[arg(last = true)]
    words: Vec<OsString>,
}

pub(crate) fn run(args: Args, mut definition: clap::Command) -> Result<(), Failure> {
    completion::remember_daemon(&args.words);
    let mut words = args.words;
    words.insert(0, "mcr".into());
    let last = words.len() - 1;
    let directory = std::env::current_dir().ok();
    definition.build();
    // A word that cannot be completed is no failure: nothing is offered.
    let candidates =
        clap_complete::engine::complete(&mut definition, words, last, directory.as_deref());
    let lines = candidates.unwrap_or_default().into_iter().map(|candidate| {
        let value = candidate.get_value().to_string_lossy();
        match candidate.get_help().filter(|_| args.described) {
            Some(help) => {
                let help = help.to_string();
                format!("{value}\t{}\n", help.lines().next().unwrap_or_default())
            }
            None => format!("{value}\n"),
        }
    });
    Ok(render::text(&lines.collect::<String>())?)
}
