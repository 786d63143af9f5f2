//! What a batch is executed against.

use bpf::layout::Limit;
use bpf::merge::Windows;
use packet::verdict::DropReason;
use sys::socket_lookup::SocketLookup;

use super::coalesce::Source;
use super::rewrite::{CompiledRoute, Counts};
use crate::counters::Traffic;
use crate::gates;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::gates::SharedGates;
use crate::userspace::shared::layout::WorkerWord;
use crate::userspace::shared::messages::Turn;
use crate::userspace::shared::state::SharedState;

/// A clock at its first reading, and right after it `CLOCK_REALTIME`, by which packets are stamped: time
/// between the two makes packets older than they are, never younger.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock(Option<(u64, u64)>);

/// A packet that seems to have waited longer did not: `CLOCK_REALTIME` was set.
const LONGEST_WAIT_NS: u64 = 30_000_000_000;

/// What a batch is executed against.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// Where the batch came from.
    pub(super) source: Source<'a>,
    /// The routes by index.
    pub(super) routes: &'a [Option<CompiledRoute>],
    /// The worker's counters.
    pub(super) counters: &'a SharedCounters,
    /// [`WorkerWord::Relieved`] when this worker started.
    pub(super) relieved_before: u64,
    /// The state by which workers decide.
    pub(super) state: &'a SharedState,
    /// The windows of merged rules.
    pub(super) merges: &'a Windows,
    /// Until when packets of shares pass.
    pub(super) gates: &'a SharedGates,
    /// Looks up this host's sockets; `None` if that is not possible.
    pub(super) sockets: Option<&'a SocketLookup>,
    /// Cap on what all unicast outputs send together.
    pub(super) budget: Option<&'a Limit>,
    /// Monotonic clock at the start of the batch.
    pub(super) now_ns: u64,
}

impl Clock {
    #[inline]
    fn read(&mut self, clock: fn() -> u64) -> (u64, u64) {
        *self
            .0
            .get_or_insert_with(|| (clock(), sys::clock::realtime_ns()))
    }
}

impl Context<'_> {
    /// Returns whether the packet in `frame` does not pass: its route's gate is shut, or was when it arrived.
    /// The clock is read once for all calls with the same `clock`, and not where no route has a gate.
    #[inline]
    pub(super) fn is_shut(self, route: &CompiledRoute, frame: u32, clock: &mut Clock) -> bool {
        route.gate.is_some_and(|gate| {
            let until = self.gates.until(gate);
            let (now, realtime) = clock.read(sys::clock::kernel_boottime_ns);
            let age = realtime.saturating_sub(self.source.tap.received_ns(frame));
            now >= until || now.saturating_sub(age) < self.gates.since(gate)
        })
    }

    /// Returns whether the packet in `frame` is this worker's: its route may be changing paths, or workers of the
    /// next supervisor take over. Each packet is asked about, because a worker may notice its end late.
    #[inline]
    pub(super) fn takes(self, route: &CompiledRoute, frame: u32) -> bool {
        let is_relieved = self.counters.worker(WorkerWord::Relieved) != self.relieved_before;
        if route.turn.is_none() && !is_relieved {
            return true;
        }
        let came_since = self.source.tap.received_ns(frame) >= self.gates.since(gates::NONE);
        match route.turn {
            // Whose packets they were before is still there.
            Some(Turn::Since) => came_since && !is_relieved,
            Some(Turn::Until) | None => !came_since,
        }
    }

    /// Returns whether the deadline of a route's gate has passed.
    #[inline]
    pub(super) fn is_past(self, route: &CompiledRoute, clock: &mut Clock) -> bool {
        route.gate.is_some_and(|gate| {
            let until = self.gates.until(gate);
            clock.read(sys::clock::kernel_boottime_ns).0 >= until
        })
    }

    /// When the packet in a frame arrived, by `CLOCK_MONOTONIC`, however long it has waited for this worker.
    /// The clocks are read once for all calls with the same `clock`.
    #[inline]
    pub(super) fn arrived_ns(&self, frame: u32, clock: &mut Clock) -> u64 {
        let (now, realtime) = clock.read(sys::clock::monotonic_ns);
        let age = realtime.saturating_sub(self.source.tap.received_ns(frame));
        if age > LONGEST_WAIT_NS {
            now
        } else {
            now - age
        }
    }

    /// Counts packets that the rule of these counters does not pass.
    pub(super) fn drop_packet(
        self,
        counts: Counts,
        reason: DropReason,
        (packets, bytes): (u64, u64),
    ) {
        counts.received(self.counters, self.passed(packets, bytes));
        self.counters.rule_dropped(counts.rule, reason, packets);
        if let (true, Some(input)) = (reason.is_of_an_input(), counts.input) {
            self.counters.input_dropped(input, reason, packets);
        }
    }

    /// What passed with this batch.
    #[inline]
    pub(super) const fn passed(self, packets: u64, bytes: u64) -> Traffic {
        Traffic::from_words([packets, bytes, self.now_ns, 0])
    }
}
