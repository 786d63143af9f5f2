//! Since when and until when packets of each share pass, as all workers look at it, those of an earlier
//! supervisor too.

use std::ffi::CStr;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use bpf::layout::{GATES, Gate};
use sys::field;
use sys::memory::{Array, Field, Memory};

use super::region::Region;
use crate::gates::GateMemory;

/// The words, mapped.
#[derive(Debug)]
pub(crate) struct SharedGates {
    gates: Array<Gate>,
    since: Array<u64>,
}

/// As they lie in the region.
#[repr(C)]
struct Layout {
    gates: [Gate; GATES as usize],
    since: [u64; GATES as usize],
}

impl Region for SharedGates {
    const NAME: &CStr = c"mcr-gates";
    const BYTES: usize = size_of::<Layout>();

    fn of(memory: &Memory) -> Self {
        Self {
            gates: memory.array(offset_of!(Layout, gates), GATES),
            since: memory.array(offset_of!(Layout, since), GATES),
        }
    }
}

impl SharedGates {
    /// Until when packets pass, by the kernel's own `CLOCK_BOOTTIME`; 0 of a gate that is not there.
    #[inline]
    pub(crate) fn until(&self, gate: u16) -> u64 {
        self.gates.load(gate.into(), field!(Gate, until))
    }

    /// Since when packets pass that arrive, by the same clock.
    #[inline]
    pub(crate) fn since(&self, gate: u16) -> u64 {
        let word = self.since.word(gate.into(), Field::WHOLE);
        word.map_or(u64::MAX, |word| word.load(Ordering::SeqCst))
    }

    /// The same for who opens and shuts them.
    pub(crate) fn memory(&self) -> GateMemory {
        GateMemory {
            gates: self.gates.clone(),
            since: Some(self.since.clone()),
        }
    }
}
