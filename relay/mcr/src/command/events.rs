//! `mcr events`: what happens in the daemon, a line each, as it happens.

use std::time::Duration;

use api::client::{Events, StreamItem};
use api::reply::{Event, Via};

use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::render;

/// Follow what happens: rules, outputs, joins, workers and links that change
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mcr events                                everything
  mcr events cam1 eth0                      what concerns a rule and an interface
  mcr events --recent 20 --brief            the last 20, and what follows, in few words
  mcr events --json -n 1 cam1               the next event of a rule, for scripts")]
pub(crate) struct Args {
    /// End after this many events
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// Tell many events of a kind that come together as one, as those of before always are
    #[arg(long)]
    brief: bool,
    /// Begin with so many of the events of before; the daemon keeps 200
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(..=200))]
    recent: u32,
    /// Show only events of these rules, interfaces or workers
    #[arg(value_name = "NAME", add = crate::completion::subject())]
    subjects: Vec<String>,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let control = Control::open(global)?;
    let mut stream = control.events(args.recent, args.brief)?;
    let mut remaining = args.count;
    while remaining != Some(0)
        && let Some(event) = next(&control, &mut stream, None, "events")?
    {
        if args.subjects.is_empty() || args.subjects.contains(&event.subject) {
            render::reply(global.json, &event, || line(&event))?;
            remaining = remaining.map(|count| count - 1);
        }
    }
    Ok(())
}

/// Waits for the next event, for ever or within a limit, and reports how many were missed.
pub(super) fn next(
    control: &Control,
    stream: &mut Events,
    within: Option<Duration>,
    command: &str,
) -> Result<Option<Event>, Failure> {
    loop {
        match control.next_event(stream, within)? {
            Some(StreamItem::Event(event)) => return Ok(Some(event)),
            Some(StreamItem::Missed(missed)) => {
                eprintln!("mcr {command}: {}", render::missed(missed));
            }
            None => return Ok(None),
        }
    }
}

fn line(event: &Event) -> String {
    let (time, kind) = (render::moment(event.at_ms), &event.kind);
    // The message of an event outside the relay names its cause already.
    let actors = event
        .by
        .iter()
        .filter(|by| !matches!(by.via, Via::Link | Via::Name));
    let by: String = actors.map(|by| format!(" by {by}")).collect();
    let why = render::because(event.why.as_deref());
    format!("{time}  {kind:<16}  {}{by}{why}", event.message)
}
