//! `mcr stats`: what every rule and output counted.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use api::reply::Stats;

use crate::cli::Global;
use crate::control::Control;
use crate::failure::{Failure, Status};
use crate::render;

/// Show what every rule and output counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr stats --watch
  mcr stats cam1 --json")]
pub(crate) struct Args {
    /// Show it again and again, with rates, until interrupted
    #[arg(short, long)]
    watch: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "S", default_value = "1", value_parser = super::send::seconds, requires = "watch")]
    interval: Duration,
    /// Show only these rules
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let control = Control::open(global)?;
    let clear = args.watch && !global.json && std::io::stdout().is_terminal();
    let mut before = None;
    loop {
        let mut stats = control.stats()?;
        if !args.names.is_empty() {
            select(&mut stats, &args.names)?;
        }
        if global.json {
            render::json(&stats)?;
        } else {
            let home = if clear { "\x1b[H\x1b[2J" } else { "" };
            let table = render::stats::table(&stats, before.as_ref());
            let footer = render::stats::footer(&stats);
            render::text(&format!("{home}{table}\n\n{footer}"))?;
        }
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        before = Some(stats);
        thread::sleep(args.interval);
    }
}

fn select(stats: &mut Stats, names: &[String]) -> Result<(), Failure> {
    let known: Vec<&str> = stats.rules.iter().map(|rule| rule.name.as_str()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let message = format!("rule {name:?}: no such rule (have: {})", known.join(", "));
        return Err(Failure::new(Status::Rule, message));
    }
    stats.rules.retain(|rule| names.contains(&rule.name));
    Ok(())
}
