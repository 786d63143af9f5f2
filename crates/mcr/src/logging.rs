//! Where log lines go: standard error, as text for people or JSON for machines.

use std::io::{self, IsTerminal};

use tracing::Level;

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(crate) enum Format {
    /// A line of text for each event
    #[default]
    Text,
    /// A JSON object for each event
    Json,
}

/// Starts logging; to be called once.
pub(crate) fn start(format: Format, verbose: bool) {
    let level = if verbose { Level::DEBUG } else { Level::INFO };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_target(verbose);
    match format {
        Format::Text => subscriber
            .with_ansi(io::stderr().is_terminal() && colours())
            .init(),
        Format::Json => subscriber.json().flatten_event(true).init(),
    }
}

fn colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
