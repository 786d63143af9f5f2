//! `--watch`: prints the same report again and again.

use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

use crate::failure::Failure;
use crate::render;

/// Shortest interval: a daemon has other work.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Whether to go on, and how often.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Watch {
    /// Show it again and again until interrupted
    #[arg(short, long)]
    watch: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "S", default_value = "1", value_parser = interval, requires = "watch")]
    interval: Duration,
}

/// Reads an interval.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let interval = super::traffic_run::seconds(text)?;
    if interval < INTERVAL_MIN {
        Err(format!("at least {} s", INTERVAL_MIN.as_secs_f64()))
    } else {
        Ok(interval)
    }
}

impl Watch {
    /// Prints what `text` returns, on a terminal each time on a clear screen.
    pub(crate) fn print(
        self,
        mut text: impl FnMut() -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let clear = self.watch && std::io::stdout().is_terminal();
        let home = if clear { "\x1b[H\x1b[2J" } else { "" };
        loop {
            render::text(&format!("{home}{}", text()?))?;
            if !self.watch {
                return Ok(());
            }
            thread::sleep(self.interval);
        }
    }
}
