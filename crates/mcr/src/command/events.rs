//! `mcr events`: what happens in the daemon, a line each, as it happens.

use std::process::ExitCode;

use api::client::Told;
use api::reply::Event;

use crate::cli::Global;
use crate::control::Control;
use crate::failure::{Failure, Status};
use crate::render;

/// Follow what happens: rules, outputs, joins, workers and links that change
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mcr events                                everything
  mcr events cam1 eth0                      what concerns a rule and an interface
  mcr events --json -n 1 cam1               the next event of a rule, for scripts")]
pub(crate) struct Args {
    /// End after this many events
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// Show only events of these rules, interfaces or workers
    #[arg(value_name = "NAME", add = crate::completion::subject())]
    subjects: Vec<String>,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let control = Control::open(global)?;
    let mut following = control.events()?;
    let mut left = args.count;
    while left != Some(0) {
        let event = match control.told(&mut following)? {
            Some(Told::Event(event)) => event,
            Some(Told::Missed(missed)) => {
                eprintln!("mcr events: {missed} events were missed");
                continue;
            }
            None => {
                let message = "the daemon ended";
                return Err(Failure::new(Status::Unreachable, message));
            }
        };
        if !args.subjects.is_empty() && !args.subjects.contains(&event.subject) {
            continue;
        }
        if global.json {
            render::json(&event)?;
        } else {
            render::text(&line(&event))?;
        }
        left = left.map(|left| left - 1);
    }
    Ok(ExitCode::SUCCESS)
}

fn line(event: &Event) -> String {
    let (time, kind) = (render::time_of_day(event.at_ms), &event.kind);
    format!("{time}  {kind:<16}  {}", event.message)
}
