//! What the kernel path records of a route that is in its maps, or about to be.

use bpf::layout::Word;

use crate::kernel::health::Inspection;
use crate::kernel::key::Key;

/// What one element of `routes` refers to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) index: u32,
    pub(super) word: Word,
    pub(super) placeholder: bool,
    /// Its gate, as in the map.
    pub(super) gate: u16,
    /// What its packets are inspected for.
    pub(super) inspection: Option<Inspection>,
    /// Whether answers to its copies are returned to the sender.
    pub(super) answered: bool,
}

/// A route whose block is written but which no packet sees yet.
pub(super) struct Written {
    pub(super) key: Key,
    pub(super) word: Word,
    pub(super) gate: u16,
    pub(super) inspection: Option<Inspection>,
    pub(super) answered: bool,
}

impl Written {
    /// The entry of a new route, but for its index.
    pub(super) const fn entry(&self) -> Entry {
        Entry {
            index: 0,
            word: self.word,
            placeholder: false,
            gate: self.gate,
            inspection: self.inspection,
            answered: self.answered,
        }
    }
}
