//! Since when and until when packets of each share pass, for all workers, those of an earlier
//! supervisor too.

use std::sync::atomic::Ordering;

use bpf::layout::{GATES, Gate};
use sys::field;
use sys::memory::Field;

use crate::gates::GateMemory;

sys::region! {
    /// The words, mapped.
    pub(crate) struct SharedGates as c"mcr-gates" {
        gates: [Gate; GATES],
        since: [u64; GATES],
    }
}

impl SharedGates {
    /// Until when packets pass, by the kernel's own `CLOCK_BOOTTIME`; 0 for a gate that does not exist.
    #[inline]
    pub(crate) fn until(&self, gate: u16) -> u64 {
        self.gates.load(gate.into(), field!(Gate, until))
    }

    /// Since when packets pass that arrive, by the same clock; of nobody's gate, since when packets are their new
    /// path's whose routes change paths, by the clock of receive timestamps.
    #[inline]
    pub(crate) fn since(&self, gate: u16) -> u64 {
        let word = self.since.word(gate.into(), Field::WHOLE);
        word.map_or(u64::MAX, |word| word.load(Ordering::SeqCst))
    }

    /// The memory, for opening and shutting gates.
    pub(crate) fn memory(&self) -> GateMemory {
        GateMemory {
            gates: self.gates.clone(),
            since: self.since.clone(),
        }
    }
}
