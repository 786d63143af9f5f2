//! The generator: paces packets by their due times and hands them to the kernel in batches.
//!
//! Single-threaded; one run per thread. When it falls behind, it sends what is due as fast as it
//! can, with the due times unchanged.

mod compose;
mod error;
mod fault;
mod group;
mod line;
mod lines;
mod option;
mod outbox;
mod outcome;
mod plan;
mod raw;
mod replay;
mod restart;
mod size;
mod socket;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use self::error::Error;
pub use self::fault::Faults;
pub use self::line::{Line, LineError, LineFaults};
use self::lines::Lines;
pub(crate) use self::option::pin;
pub use self::option::{Method, Options};
use self::outbox::Outbox;
use self::outcome::Outcome;
use self::plan::Plan;
pub use self::restart::{Restart, RestartError};
pub use self::size::{ParseError as SizeError, Sizes};
use crate::clock;
use crate::report::SendReport;

/// How far past its duration a run may go to send what was due within it, in nanoseconds.
const GRACE_NS: u64 = 100_000_000;

/// Lets other threads watch and stop a run in progress.
#[derive(Debug, Default)]
pub struct Control {
    /// Set to end the run early; it then reports as usual.
    pub stop: Arc<AtomicBool>,
    /// Packets sent so far.
    pub sent: AtomicU64,
}

/// Sends as `options` specify, until their count, their duration or `control.stop`.
///
/// # Errors
/// Whatever prevents the start; errors of single packets are counted instead.
pub fn run(options: &Options, control: &Control) -> Result<SendReport, Error> {
    options.validate()?;
    if let Some(cpu) = options.cpu {
        option::pin(cpu)?;
    }
    clock::sharpen_sleep();
    let run = Run {
        plan: Plan::of(options),
        duration_ns: options.duration.map_or(u64::MAX, clock::nanoseconds),
        delay_ns: clock::nanoseconds(Lines::most_delay(&options.lines)),
        outbox: Outbox::open(options, compose::prefill(options))?,
        control,
    };
    Ok(run.drive())
}

/// How many packets a run sends if nothing ends it early and no fault drops any; `None` where only an
/// interruption ends it.
pub fn planned_packets(options: &Options) -> Option<u64> {
    Plan::of(options).planned(options.duration)
}

struct Run<'a> {
    plan: Plan<'a>,
    duration_ns: u64,
    /// How long lines may hold back what was due within the duration.
    delay_ns: u64,
    outbox: Outbox,
    control: &'a Control,
}

impl Run<'_> {
    fn drive(mut self) -> SendReport {
        let start = clock::monotonic_ns();
        while let Some(now) = self.wait(start) {
            let start_ns = start.wrapping_add(clock::realtime_offset_ns());
            let elapsed = now - start;
            while self.plan.queue_next(elapsed, start_ns, &mut self.outbox) {}
            self.flush();
        }
        while self.plan.queue_rest(&mut self.outbox) {
            self.flush();
        }
        self.flush();
        self.report(clock::monotonic_ns() - start)
    }

    /// Waits until something is due and returns the time; `None` at the end of the run.
    fn wait(&self, start: u64) -> Option<u64> {
        let Some(due) = self.plan.next_due_ns() else {
            if self.plan.is_cut_short() {
                clock::wait_until(start.saturating_add(self.duration_ns), &self.control.stop);
            }
            return None;
        };
        let now = clock::wait_until(start.saturating_add(due), &self.control.stop);
        let grace = if self.plan.is_paced() { GRACE_NS } else { 0 };
        let most = self.duration_ns.saturating_add(grace + self.delay_ns);
        let is_over = now - start >= most;
        (!is_over && !self.control.stop.load(Ordering::Relaxed)).then_some(now)
    }

    fn flush(&mut self) {
        self.outbox.flush();
        let sent = self.outbox.outcome().sent.packets;
        self.control.sent.store(sent, Ordering::Relaxed);
    }

    fn report(&self, elapsed_ns: u64) -> SendReport {
        let is_stopped = self.control.stop.load(Ordering::Relaxed);
        let nanoseconds = if is_stopped {
            elapsed_ns
        } else {
            elapsed_ns.max(self.plan.length_ns())
        };
        let seconds = nanoseconds as f64 / 1e9;
        let Outcome {
            sent,
            errors,
            first_error,
        } = self.outbox.outcome();
        let mut report = SendReport {
            sent: *sent,
            seconds,
            pps: if nanoseconds > 0 {
                sent.packets as f64 / seconds
            } else {
                0.0
            },
            errors: *errors,
            first_error: first_error.clone(),
            ..SendReport::default()
        };
        self.plan.report(&mut report);
        report
    }
}
