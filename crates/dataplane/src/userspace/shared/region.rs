//! Memory that the supervisor shares with workers, and leaves to the next supervisor: a region each, with
//! what is in it as arrays.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sys::memory::Memory;
use sys::shared_memory;

/// A region, for others, and what is in it.
pub(crate) type Held<R> = (OwnedFd, R);

/// What is in a region.
pub(crate) trait Region: Sized {
    /// What the region is called where processes' files are listed.
    const NAME: &CStr;
    /// Its length; another one is another layout.
    const BYTES: usize;
    /// The same in words, as labels say it.
    const WORDS: usize = Self::BYTES / size_of::<u64>();

    /// Finds the arrays.
    fn of(memory: &Memory) -> Self;

    /// Makes a region of zeros. It is sparse: only what is written takes memory.
    ///
    /// # Errors
    /// The system call's.
    fn create() -> io::Result<Held<Self>> {
        let region = shared_memory::create(Self::NAME, Self::BYTES)?;
        let mapped = Self::map(region.as_fd())?;
        Ok((region, mapped))
    }

    /// Maps the region another process made.
    ///
    /// # Errors
    /// The system call's.
    fn map(region: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::of(&shared_memory::map(region, Self::BYTES)?))
    }
}
