//! Writes log lines to the journal or standard error, as text for people or JSON for machines.

mod journal;
mod queue;
mod repeats;

use std::io::{self, Write};
use std::os::linux::fs::MetadataExt;
use std::panic;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use api::reply::LogLevel;
use config::LogForm;
use daemon::LogControl;
use queue::{Queue, Sink};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::render::colours;

/// The level, which can be changed while the daemon runs.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Where lines go.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// How long the process waits at its end for the reader of the log.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes the remaining log lines when it is dropped.
#[derive(Debug)]
pub(crate) struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        finish();
    }
}

/// Starts logging. It must be called once only. Lines wait until [`LogControl::start`].
pub(crate) fn start(form: LogForm, verbose: bool) -> Log {
    let level = if verbose {
        LevelFilter::DEBUG
    } else {
        LevelFilter::INFO
    };
    let (filter, handle) = reload::Layer::new(level);
    let (layer, queue) = layer(form, verbose);
    let _ = QUEUE.set(queue.clone());
    tracing_subscriber::registry()
        .with(filter)
        .with(layer)
        .with(repeats::Repeats(move |line| queue.admits(line)))
        .init();
    let _ = LEVEL.set(handle);
    // The default hook would block on the reader of standard error.
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        tracing::error!(thread = thread.name(), "{panic}");
        finish();
    }));
    Log(())
}

fn finish() {
    if let Some(queue) = QUEUE.get() {
        queue.finish(PATIENCE);
    }
}

/// How the daemon reads and changes the level.
pub(crate) const fn control() -> LogControl {
    LogControl {
        level: current,
        set_level: set,
        start: || QUEUE.get().into_iter().for_each(Queue::start),
        lost: || QUEUE.get().map_or(0, Queue::lost),
    }
}

type Filtered = tracing_subscriber::layer::Layered<reload::Layer<LevelFilter, Registry>, Registry>;

fn layer(form: LogForm, verbose: bool) -> (Box<dyn Layer<Filtered> + Send + Sync>, Queue) {
    let to_journal = match form {
        LogForm::Auto => is_connected_to_journal(),
        LogForm::Journal => true,
        LogForm::Text | LogForm::Json => false,
    };
    match to_journal.then(journal::connect) {
        Some(Ok(socket)) => {
            let queue = Queue::new(Sink::Journal(socket));
            return (journal::Journal(queue.clone()).boxed(), queue);
        }
        Some(Err(error)) => {
            let text = "logging text to standard error";
            let _ = writeln!(io::stderr(), "mcr: no journal to log to ({error}); {text}");
        }
        None => {}
    }
    let queue = Queue::new(Sink::Text);
    let lines = fmt::layer().with_writer(queue.clone()).with_target(verbose);
    let layer = match form {
        LogForm::Json => lines.json().flatten_event(true).boxed(),
        _ => lines.with_ansi(colours(&io::stderr())).boxed(),
    };
    (layer, queue)
}

/// Whether standard error is the stream that the service manager connected to the journal
/// (systemd.exec(5), `$JOURNAL_STREAM`).
fn is_connected_to_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let own = std::fs::metadata("/proc/self/fd/2");
    own.is_ok_and(|own| stream == format!("{}:{}", own.st_dev(), own.st_ino()))
}

fn current() -> LogLevel {
    let filter = LEVEL.get().and_then(reload::Handle::clone_current);
    let name = filter.unwrap_or(LevelFilter::INFO).to_string();
    LogLevel::ALL
        .into_iter()
        .find(|level| level.as_str() == name)
        .unwrap_or(LogLevel::Error)
}

fn set(level: LogLevel) {
    let filter = level.as_str().parse().unwrap_or(LevelFilter::INFO);
    if let Some(handle) = LEVEL.get() {
        // It fails only if the subscriber no longer exists, and the log with it.
        let _ = handle.reload(filter);
    }
}
