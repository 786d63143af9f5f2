//! What the workers decide with, one word at a time: the state of the rate limits, and of the rules
//! whose inputs stand by for each other; and who asked what rules that reflect have sent. All workers share it, those of an earlier supervisor too, for
//! the packets of a rule may be spread over several of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sys::shared_memory::{self, Words};

use super::askers;
use super::layout::{MAX_INPUTS, MAX_OUTPUTS, MAX_RULES};

/// Words of the limits: rules, outputs, the budget.
pub(super) const LIMITS: usize = (MAX_RULES + MAX_OUTPUTS + 1) as usize;
/// Where the choices of rules lie, two words each.
pub(super) const CHOICES_AT: usize = LIMITS.next_multiple_of(8);
/// Where the lines of inputs lie, two words each.
pub(super) const LINES_AT: usize = CHOICES_AT + 2 * MAX_RULES as usize;
/// Where the askers lie.
pub(super) const ASKERS_AT: usize = LINES_AT + 2 * MAX_INPUTS as usize;
/// Words of the whole; another number is another layout.
pub(crate) const WORDS: usize = ASKERS_AT + askers::WORDS;

/// The words, mapped.
#[derive(Debug)]
pub(crate) struct SharedState {
    pub(super) words: Words,
}

impl SharedState {
    /// Makes the region: every bucket full, no line active.
    ///
    /// # Errors
    /// The system call's.
    pub(crate) fn create() -> io::Result<OwnedFd> {
        shared_memory::create(c"mcr-state", WORDS * size_of::<u64>())
    }

    /// Maps the region another process made.
    ///
    /// # Errors
    /// The system call's.
    pub(crate) fn map(region: BorrowedFd<'_>) -> io::Result<Self> {
        let words = Words::map(region.as_fd(), WORDS * size_of::<u64>())?;
        Ok(Self { words })
    }
}
