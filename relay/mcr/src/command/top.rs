//! `mcr top`: rules, rates, drops, workers and events, live on the terminal.

use std::io::{self, IsTerminal};
use std::time::Duration;

use api::query::Order;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::control::Control;
use crate::failure::{Failure, OrFail, Status, usage};
use crate::global::Global;
use crate::rows;
use crate::selection::Selection;
use crate::top::{Feed, ORDERS, Screen, draw};

/// Longest wait for a key before updates are drawn.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Watch rules, rates, drops, workers and events on the terminal
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mcr top\n  mcr top cam --interval 5                  rules whose names contain cam\n  mcr top --sort rate                       the busiest first, not the worst\n  mcr --host all top                        of all hosts together"
)]
pub(crate) struct Args {
    /// Seconds between two looks
    #[arg(long, value_name = "S", default_value = "1", value_parser = super::watch::interval)]
    interval: Duration,
    /// Order of the rules; s goes on to the next
    #[arg(long, value_parser = rows::choice(ORDERS), default_value = "state")]
    sort: Order,
    #[command(flatten)]
    selection: Selection,
    /// Show only what contains this, as typed after /
    #[arg(value_name = "FILTER", default_value = "")]
    filter: String,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let message = "needs a terminal; mcr stats --watch writes to a pipe";
        return Err(usage(message));
    }
    let names = global.host.iter().flat_map(|names| names.split(','));
    let mut targets: Vec<Global> = names.map(|name| global.at(name)).collect();
    if targets.len() < 2 {
        // A daemon that cannot be reached is reported as by every other subcommand.
        Control::open(global)?.status()?;
        targets = vec![global.clone()];
    }
    let mut screen = Screen::default();
    screen.sort = args.sort;
    screen.filter.clone_from(&args.filter);
    screen.selection.clone_from(&args.selection);
    let feed = Feed::start(&targets, args.interval, screen.query());
    let mut terminal = ratatui::try_init().or_fail(DRAWING, Status::Unavailable)?;
    let outcome = watch(&mut terminal, &feed, &mut screen);
    ratatui::restore();
    outcome.or_fail(DRAWING, Status::Unavailable)
}

const DRAWING: &str = "the terminal";

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    feed: &Feed,
    screen: &mut Screen,
) -> io::Result<()> {
    let mut is_changed = true;
    loop {
        for update in feed.take() {
            screen.take(update);
            is_changed = true;
        }
        feed.ask(screen.query(), screen.is_waiting());
        if std::mem::take(&mut is_changed) {
            terminal.draw(|frame| draw(frame, screen))?;
        }
        if !event::poll(POLL_INTERVAL)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release && !screen.press(key) => {
                return Ok(());
            }
            _ => is_changed = true,
        }
    }
}
