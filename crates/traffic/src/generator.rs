//! The generator: paces packets by their schedule and hands them to the kernel in batches.
//!
//! Single-threaded; one run per thread. What it does when it falls behind: it sends what is due as
//! fast as it can, with the due times unchanged.

mod option;
mod outbox;
mod socket;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) use self::option::pin;
pub use self::option::{Error, Method, Options, Sizes};
use self::outbox::Outbox;
use crate::clock;
use crate::payload::Stamp;
use crate::report::{SendReport, Volume};
use crate::schedule::Schedule;

/// How far past its duration a run may go to send what was due within it, in nanoseconds.
const GRACE_NS: u64 = 100_000_000;

/// What others may watch and do while a run goes on.
#[derive(Debug, Default)]
pub struct Control {
    /// Set to end the run early; it then reports as usual.
    pub stop: Arc<AtomicBool>,
    /// Packets sent so far.
    pub sent: AtomicU64,
}

/// Sends as `options` say, until their count, their duration or `control.stop`.
///
/// # Errors
/// What stands in the way of starting; errors of single packets are counted instead.
pub fn run(options: &Options, control: &Control) -> Result<SendReport, Error> {
    options.validate()?;
    if let Some(cpu) = options.cpu {
        option::pin(cpu)?;
    }
    clock::sharpen_sleep();
    let schedule = options.schedule();
    let outbox = Outbox::open(options)?;
    let run = Run {
        schedule,
        last: options.total_count(),
        duration_ns: options.duration.map(|duration| duration.as_nanos() as u64),
        run_number: clock::realtime_ns() as u16 ^ std::process::id() as u16,
        outbox,
        control,
    };
    Ok(run.drive())
}

struct Run<'a> {
    schedule: Schedule,
    /// Packets to send in all.
    last: Option<u64>,
    duration_ns: Option<u64>,
    run_number: u16,
    outbox: Outbox,
    control: &'a Control,
}

impl Run<'_> {
    fn drive(mut self) -> SendReport {
        let start = clock::monotonic_ns();
        let mut number = 0;
        while let Some(now) = self.wait(start, number) {
            let offset = clock::realtime_offset_ns();
            number = self.queue_due(start, now, offset, number);
            self.outbox.flush();
            self.control
                .sent
                .store(self.outbox.sent().packets, Ordering::Relaxed);
        }
        self.report(clock::monotonic_ns() - start, number)
    }

    /// Waits until packet `number` is due and returns the time; `None` at the end of the run.
    fn wait(&self, start: u64, number: u64) -> Option<u64> {
        if self.last.is_some_and(|last| number >= last) {
            return None;
        }
        let due = self.schedule.due_ns(number);
        let paced = self.schedule.total_rate.is_some();
        let end = self.duration_ns.unwrap_or(u64::MAX);
        if paced && due >= end {
            clock::wait_until(start.saturating_add(end), &self.control.stop);
            return None;
        }
        let now = clock::wait_until(start + due, &self.control.stop);
        let grace = if paced { GRACE_NS } else { 0 };
        let over = now - start >= end.saturating_add(grace);
        (!over && !self.control.stop.load(Ordering::Relaxed)).then_some(now)
    }

    /// Queues packets from `number` on while they are due and there is room; returns the next.
    fn queue_due(&mut self, start: u64, now: u64, offset: u64, mut number: u64) -> u64 {
        let paced = self.schedule.total_rate.is_some();
        let end = self.duration_ns.unwrap_or(u64::MAX);
        while self.last.is_none_or(|last| number < last) {
            let due = self.schedule.due_ns(number);
            if paced && (start + due > now || due >= end) {
                break;
            }
            let intended = if paced { start + due } else { now };
            let slot = self.schedule.slot(number);
            let stamp = Stamp {
                run: self.run_number,
                stream: slot.stream as u32,
                sequence: slot.sequence,
                intended_ns: intended.wrapping_add(offset),
            };
            if !self.outbox.push(&stamp) {
                break;
            }
            number += 1;
        }
        number
    }

    fn report(&self, elapsed_ns: u64, packets: u64) -> SendReport {
        let stopped = self.control.stop.load(Ordering::Relaxed);
        let planned = self.duration_ns.unwrap_or(u64::MAX);
        let length = self.schedule.length_ns(packets).min(planned);
        let seconds = if stopped {
            elapsed_ns
        } else {
            elapsed_ns.max(length)
        } as f64
            / 1e9;
        let sent: Volume = self.outbox.sent();
        SendReport {
            sent,
            seconds,
            pps: if seconds > 0.0 {
                sent.packets as f64 / seconds
            } else {
                0.0
            },
            errors: self.outbox.errors(),
            injected: None,
        }
    }
}
