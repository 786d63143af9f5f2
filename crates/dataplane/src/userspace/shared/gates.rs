//! Since when and until when packets of each share pass, as all workers look at it, those of an earlier
//! supervisor too.
//!
//! What arrived while a gate was shut stays shut out: it may wait in a worker's ring for as long as the
//! worker is not let run, and the relay that held the share before has sent it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use bpf::layout::{GATES, Gate, SHARE_NAME};
use sys::clock::kernel_boottime_ns;
use sys::shared_memory::{self, Words};

use crate::gates::Place;

const WORD: usize = size_of::<u64>();
/// Words of a gate: until when, and the share's name.
const GATE: usize = size_of::<Gate>() / WORD;
/// The first of the words that say since when each gate is open, behind all gates.
const SINCE: usize = GATES as usize * GATE;
/// Words of the whole.
pub(crate) const WORDS: usize = SINCE + GATES as usize;

/// The words, mapped.
#[derive(Debug)]
pub(crate) struct SharedGates {
    words: Words,
}

impl SharedGates {
    /// Makes the region: all are shut, and nobody's.
    ///
    /// # Errors
    /// The system call's.
    pub(crate) fn create() -> io::Result<OwnedFd> {
        shared_memory::create(c"mcr-gates", WORDS * WORD)
    }

    /// Maps the region another process made.
    ///
    /// # Errors
    /// The system call's.
    pub(crate) fn map(region: BorrowedFd<'_>) -> io::Result<Self> {
        let words = Words::map(region.as_fd(), WORDS * WORD)?;
        Ok(Self { words })
    }

    /// Until when packets pass, by the kernel's own `CLOCK_BOOTTIME`; 0 of a gate that is not there.
    #[inline]
    pub(crate) fn until(&self, gate: u16) -> u64 {
        let word = self.words.as_slice().get(usize::from(gate) * GATE);
        word.map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Since when packets pass that arrive, by the same clock.
    #[inline]
    pub(crate) fn since(&self, gate: u16) -> u64 {
        let word = self.words.as_slice().get(SINCE + usize::from(gate));
        word.map_or(u64::MAX, |word| word.load(Ordering::SeqCst))
    }

    /// Notes since when a gate is open that was not. A worker that sees it open sees this too.
    fn note_opening(&self, index: u16, until: u64) {
        let now = kernel_boottime_ns();
        if until > now
            && self.until(index) <= now
            && let Some(word) = self.words.as_slice().get(SINCE + usize::from(index))
        {
            word.store(now, Ordering::SeqCst);
        }
    }
}

impl Place for SharedGates {
    fn read(&self, index: u16) -> Gate {
        let mut gate = Gate {
            until: self.until(index),
            ..Gate::default()
        };
        let at = usize::from(index) * GATE + 1;
        let words = self.words.as_slice().get(at..at + SHARE_NAME / WORD);
        let bytes = gate.share.chunks_exact_mut(WORD);
        for (bytes, word) in bytes.zip(words.unwrap_or_default()) {
            bytes.copy_from_slice(&word.load(Ordering::SeqCst).to_ne_bytes());
        }
        gate
    }

    fn write(&self, index: u16, gate: &Gate) {
        let at = usize::from(index) * GATE + 1;
        let words = self.words.as_slice().get(at..at + SHARE_NAME / WORD);
        let (bytes, _) = gate.share.as_chunks::<WORD>();
        for (bytes, word) in bytes.iter().zip(words.unwrap_or_default()) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::SeqCst);
        }
        self.set(index, gate.until);
    }

    fn set(&self, index: u16, until: u64) {
        self.note_opening(index, until);
        if let Some(word) = self.words.as_slice().get(usize::from(index) * GATE) {
            word.store(until, Ordering::SeqCst);
        }
    }
}
