//! What a batch is executed against.

use bpf::merge::Windows;

use super::coalesce::Source;
use super::rewrite::CompiledRoute;
use crate::counters::Traffic;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::limits::CompiledLimit;
use crate::userspace::shared::state::SharedState;

/// What a batch is executed against.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// Where the batch came from.
    pub(super) source: Source<'a>,
    /// The routes by index.
    pub(super) routes: &'a [Option<CompiledRoute>],
    /// Where it is counted.
    pub(super) counters: &'a SharedCounters,
    /// What workers decide with.
    pub(super) state: &'a SharedState,
    /// The windows of merged rules.
    pub(super) merges: Windows<'a>,
    /// Cap on what all unicast outputs send together.
    pub(super) budget: Option<&'a CompiledLimit>,
    /// Monotonic clock at the start of the batch.
    pub(super) now_ns: u64,
}

impl Context<'_> {
    /// What passed with this batch.
    #[inline]
    pub(super) const fn passed(self, packets: u64, bytes: u64) -> Traffic {
        Traffic::from_words([packets, bytes, self.now_ns])
    }
}
