//! `--watch`: the same look again and again.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use crate::failure::Failure;
use crate::render;

/// How often to look.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Watch {
    /// Show it again and again until interrupted
    #[arg(short, long)]
    watch: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "S", default_value = "1", value_parser = super::send::seconds, requires = "watch")]
    interval: Duration,
}

impl Watch {
    /// Prints what `look` sees, on a terminal each time on a clear screen.
    pub(crate) fn print(
        self,
        mut look: impl FnMut() -> Result<String, Failure>,
    ) -> Result<ExitCode, Failure> {
        let clear = self.watch && std::io::stdout().is_terminal();
        let home = if clear { "\x1b[H\x1b[2J" } else { "" };
        loop {
            render::text(&format!("{home}{}", look()?))?;
            if !self.watch {
                return Ok(ExitCode::SUCCESS);
            }
            thread::sleep(self.interval);
        }
    }
}
