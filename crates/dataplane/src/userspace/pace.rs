//! How a worker shares its core with whoever brings it packets, and with everybody else.
//!
//! What feeds a worker (a NAPI thread, ksoftirqd) often has the same core, and the scheduler gives
//! each its half: then half of what was received is dropped at the full ring, after all the work of
//! receiving it. With a real-time priority the worker empties the ring before more is received, so
//! that under overload packets are refused where it costs nothing, in front of the receiver. Two
//! rests keep that fair: a long one once in a while from a worker that never waits, a short one to
//! let packets gather where the receiver has a backlog.

use std::time::Duration;

/// Packets that a receiver hands over in one go only when more are waiting: a whole NAPI budget.
const BACKLOG: u32 = 64;
/// How long packets gather then. A lone packet never waits.
const GATHER: Duration = Duration::from_micros(100);
/// Longest a worker may keep its core from others.
const BUSY_NS: u64 = 20_000_000;
/// How long it leaves the core to them then, a twentieth.
const BREATH: Duration = Duration::from_millis(1);

/// What a worker does after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The next turn.
    Turn,
    /// Waits for packets.
    Wait,
    /// Leaves the core to others, whether there are packets or not.
    Rest(Duration),
}

/// Decides when a worker rests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    is_real_time: bool,
    busy_since_ns: Option<u64>,
    has_backlog: bool,
}

impl Pace {
    /// Paces a worker that has a real-time priority, or has not: then the scheduler does it.
    #[must_use]
    pub(super) const fn new(is_real_time: bool) -> Self {
        Self {
            is_real_time,
            busy_since_ns: None,
            has_backlog: false,
        }
    }

    /// Decides what comes after a turn that took so many packets.
    #[inline]
    pub(super) fn after(&mut self, taken: u32, now_ns: impl FnOnce() -> u64) -> Next {
        if taken == 0 {
            self.busy_since_ns = None;
            return if std::mem::take(&mut self.has_backlog) {
                Next::Rest(GATHER)
            } else {
                Next::Wait
            };
        }
        if !self.is_real_time {
            return Next::Turn;
        }
        self.has_backlog = taken >= BACKLOG;
        let now_ns = now_ns();
        let since_ns = *self.busy_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < BUSY_NS {
            return Next::Turn;
        }
        self.busy_since_ns = None;
        Next::Rest(BREATH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_packets_are_waited_for_without_a_rest() {
        let mut pace = Pace::new(true);
        for turn in 0..100 {
            assert_eq!(pace.after(1, || turn * BUSY_NS), Next::Turn);
            assert_eq!(pace.after(0, || turn * BUSY_NS), Next::Wait);
        }
    }

    #[test]
    fn packets_gather_once_behind_a_backlog() {
        let mut pace = Pace::new(true);
        assert_eq!(pace.after(BACKLOG, || 0), Next::Turn);
        assert_eq!(pace.after(0, || 0), Next::Rest(GATHER));
        assert_eq!(pace.after(0, || 0), Next::Wait);
    }

    #[test]
    fn a_worker_that_never_waits_leaves_its_core_once_in_a_while() {
        let mut pace = Pace::new(true);
        assert_eq!(pace.after(1, || 0), Next::Turn);
        assert_eq!(pace.after(1, || BUSY_NS - 1), Next::Turn);
        assert_eq!(pace.after(1, || BUSY_NS), Next::Rest(BREATH));
        assert_eq!(pace.after(1, || 2 * BUSY_NS), Next::Turn);
    }

    #[test]
    fn without_a_real_time_priority_the_scheduler_does_it() {
        let mut pace = Pace::new(false);
        assert_eq!(pace.after(256, || 0), Next::Turn);
        assert_eq!(pace.after(256, || 10 * BUSY_NS), Next::Turn);
        assert_eq!(pace.after(0, || 10 * BUSY_NS), Next::Wait);
    }
}
