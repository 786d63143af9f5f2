//! An array map in this process's memory: reads and writes without system calls.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::Error;
use crate::layout::Plain;

/// A BPF_F_MMAPABLE array, mapped read-write.
///
/// The kernel's program reads the same memory at any time: whoever writes an entry makes sure that
/// nothing refers to it yet, or changes one aligned 8-byte word of it with [`Mapped::store`].
#[derive(Debug)]
pub struct Mapped<T> {
    memory: NonNull<T>,
    length: u32,
    bytes: usize,
    entries: PhantomData<T>,
}

// SAFETY: the mapping belongs to no thread, and all access goes through volatile or atomic
// operations on plain integers.
unsafe impl<T: Plain> Send for Mapped<T> {}

// SAFETY: shared references only read, and volatilely; whoever writes has the only reference of this
// process, and what the kernel's program writes meanwhile are plain integers too.
unsafe impl<T: Plain> Sync for Mapped<T> {}

impl<T: Plain> Mapped<T> {
    /// Maps the whole of `map`, which holds `length` entries of `T`.
    pub(crate) fn new(name: &'static str, map: BorrowedFd<'_>, length: u32) -> Result<Self, Error> {
        const {
            assert!(
                size_of::<T>().is_multiple_of(8),
                "array entries lie 8 bytes apart"
            )
        };
        let bytes = size_of::<T>() * length as usize;
        // SAFETY: a new shared mapping at an address of the kernel's choice; the kernel checks that
        // the map is mappable and at least this large.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(memory.cast::<T>()) {
            Some(memory) if memory.as_ptr().cast() != libc::MAP_FAILED => Ok(Self {
                memory,
                length,
                bytes,
                entries: PhantomData,
            }),
            _ => Err(Error::MapOperation {
                name,
                operation: "mmap",
                error: io::Error::last_os_error(),
            }),
        }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.length
    }

    /// Says whether the array has no entries, which the kernel does not allow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn at(&self, index: u32) -> NonNull<T> {
        assert!(index < self.length, "index {index} of {}", self.length);
        // SAFETY: the mapping holds `length` entries and `index` was just checked.
        unsafe { self.memory.add(index as usize) }
    }

    /// Copies an entry out.
    #[must_use]
    pub fn read(&self, index: u32) -> T {
        // SAFETY: `at` is in bounds and aligned (the mapping starts on a page, T is repr(C) with a
        // size that is a multiple of 8); every bit pattern is a T.
        unsafe { self.at(index).read_volatile() }
    }

    /// Overwrites an entry that no packet can be reading.
    pub fn write(&mut self, index: u32, value: &T) {
        // SAFETY: as in `read`; `&mut self` keeps other writers of this process out.
        unsafe { self.at(index).write_volatile(*value) }
    }

    /// Replaces the entry's 8-byte word at byte `offset` in one step, after everything written
    /// before.
    pub fn store(&mut self, index: u32, offset: usize, value: u64) {
        assert!(offset.is_multiple_of(8) && offset + 8 <= size_of::<T>());
        fence(Ordering::SeqCst);
        // SAFETY: in bounds and aligned by the assertions above; the memory is only ever accessed
        // atomically or volatilely while shared.
        let word = unsafe { AtomicU64::from_ptr(self.at(index).as_ptr().byte_add(offset).cast()) };
        word.store(value, Ordering::SeqCst);
    }

    /// Adds to the entry's 8-byte word at byte `offset` in one step, and wraps.
    pub fn add(&mut self, index: u32, offset: usize, count: u64) {
        assert!(offset.is_multiple_of(8) && offset + 8 <= size_of::<T>());
        // SAFETY: as in `store`.
        let word = unsafe { AtomicU64::from_ptr(self.at(index).as_ptr().byte_add(offset).cast()) };
        word.fetch_add(count, Ordering::SeqCst);
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: `memory` and `bytes` are what mmap returned and was given; nothing borrows from
        // the mapping beyond `self`.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}
