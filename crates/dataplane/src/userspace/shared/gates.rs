//! Until when packets of each share pass, as all workers look at it, those of an earlier supervisor
//! too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use bpf::layout::{GATES, Gate, SHARE_NAME};
use sys::shared_memory::{self, Words};

use crate::gates::Place;

const WORD: usize = size_of::<u64>();
/// Words of a gate: until when, and the share's name.
const GATE: usize = size_of::<Gate>() / WORD;
/// Words of the whole.
pub(crate) const WORDS: usize = GATES as usize * GATE;

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
        if let Some(word) = self.words.as_slice().get(usize::from(index) * GATE) {
            word.store(until, Ordering::SeqCst);
        }
    }
}
