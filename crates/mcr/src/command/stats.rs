//! `mcr stats`: what every rule and output counted.

use std::process::ExitCode;

use api::reply::Stats;

use super::form::Output;
use super::watch::Watch;
use crate::completion;
use crate::control::{self, Control};
use crate::failure::Failure;
use crate::global::Global;
use crate::render::{self, Form};
use crate::selection::Selection;

/// Show what every rule and output counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr stats --watch                         with rates
  mcr stats -o wide                         with joins and the reason for the path
  mcr stats cam1 --json")]
pub(crate) struct Args {
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    selection: Selection,
    /// Show only these rules
    #[arg(value_name = "NAME", add = completion::rule())]
    names: Vec<String>,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let control = Control::open(global)?;
    let form = args.output.form(global);
    let mut before = None;
    args.watch.print(|| {
        let mut stats = control.stats()?;
        if !args.names.is_empty() {
            select(&mut stats, &args.names)?;
        }
        stats
            .rules
            .retain(|rule| args.selection.takes(&rule.labels));
        let text = match form {
            Form::Json => render::json_text(&stats)?,
            Form::Name => stats
                .rules
                .iter()
                .map(|rule| format!("{}\n", rule.name))
                .collect(),
            Form::Table | Form::Wide => {
                let table = render::stats::table(&stats, before.as_ref(), form == Form::Wide);
                let footer = render::stats::footer(&stats);
                format!("{table}\n\n{footer}")
            }
        };
        before = Some(stats);
        Ok(text)
    })
}

fn select(stats: &mut Stats, names: &[String]) -> Result<(), Failure> {
    let known: Vec<&str> = stats.rules.iter().map(|rule| rule.name.as_str()).collect();
    control::require(names, &known)?;
    stats.rules.retain(|rule| names.contains(&rule.name));
    Ok(())
}
