//! What a terminal shows of a bench while it runs, and the signals that end it.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use lab::bench::results::Results;
use lab::bench::run::engine::{Progress, Watch};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Shows the progress of a run and saves its results.
pub(super) struct Terminal<'a> {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    output: &'a Path,
    /// Trials in the file.
    pub(super) saved_trials: usize,
}

impl<'a> Terminal<'a> {
    /// Draws the bar; signals end the run from here on.
    pub(super) fn new(output: &'a Path) -> std::io::Result<Self> {
        let bar = progress_bar();
        Ok(Self {
            stop: end_on_signals(&bar)?,
            bar,
            output,
            saved_trials: 0,
        })
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for Terminal<'_> {
    fn trial(&mut self, progress: Progress<'_>) -> anyhow::Result<()> {
        anyhow::ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
        show(&self.bar, progress);
        Ok(())
    }

    fn keep(&mut self, results: &Results) -> anyhow::Result<()> {
        results.write(self.output)?;
        self.saved_trials = results.cases.iter().map(|case| case.trials.len()).sum();
        Ok(())
    }
}

/// Has a signal end the run after the current trial, with a message, since a trial may take a
/// minute. Ctrl-C after that ends it at once; the guard then removes what was created.
fn end_on_signals(bar: &ProgressBar) -> std::io::Result<Arc<AtomicBool>> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let stop = Arc::new(AtomicBool::new(false));
    let (is_stopped, bar) = (Arc::clone(&stop), bar.clone());
    std::thread::spawn(move || {
        for signal in signals.forever() {
            // A terminal that is closed may send its signal twice.
            if is_stopped.swap(true, Ordering::Relaxed) && signal == SIGINT {
                std::process::exit(128 + signal);
            }
            let text = "interrupted: ends after this trial; Ctrl-C now ends it at once";
            if bar.is_hidden() {
                eprintln!("{text}");
            } else {
                bar.println(text);
            }
        }
    });
    Ok(stop)
}

fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{wide_bar} {pos}/{len} trials\n{msg}";
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    ProgressBar::new(0).with_style(style)
}

fn show(bar: &ProgressBar, progress: Progress<'_>) {
    let remaining = minutes(progress.seconds_left);
    let (done, total, now) = (progress.done, progress.total, progress.now);
    if bar.is_hidden() {
        eprintln!("{}/{total}, {remaining} left: {now}", done + 1);
    }
    bar.set_length(total as u64);
    bar.set_position(done as u64);
    bar.set_message(format!("{remaining} left: {now}"));
}

/// Minutes and seconds.
pub(super) fn minutes(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
