//! Memory that several processes, or programs in the kernel, read and write at the same time: arrays of
//! plain structs, be they in a BPF array or in a [region](crate::shared_memory).
//!
//! It is only accessed atomically and by whole 64-bit words, so a peer that writes at the same time, or that died
//! while writing, cannot make this process misbehave. Missing entries read as zeros and are not written.

#![expect(unsafe_code, reason = "mapping memory needs raw system calls")]

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use zerocopy::{FromBytes, IntoBytes};

const WORD: usize = size_of::<u64>();

/// A type that is shared byte by byte: without padding, and every bit pattern is a value.
pub trait Plain: Copy + Default + PartialEq + FromBytes + IntoBytes + 'static {}

impl<T: Copy + Default + PartialEq + FromBytes + IntoBytes + 'static> Plain for T {}

/// Maps the first `bytes` bytes of a file, to read and to write.
pub(crate) fn map_shared(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<NonNull<c_void>> {
    let length = NonZeroUsize::new(bytes).ok_or(Errno::EINVAL)?;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping is asked for, so no memory in use is replaced.
    Ok(unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, fd, 0) }?)
}

/// A shared mapping; clones are the same one.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to no thread and stays at its address until drop.
unsafe impl Send for Mapping {}
// SAFETY: all access goes through atomics.
unsafe impl Sync for Mapping {}

impl Memory {
    /// Maps the first `bytes` bytes of a file, to read and to write, rounded down to whole words. The
    /// caller ensures that they exist and will stay: touching others would end the process.
    ///
    /// # Errors
    /// The system call's; `EINVAL` for a length of 0.
    pub fn map(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let base = map_shared(fd, bytes)?.cast();
        let words = bytes / WORD;
        Ok(Self(Arc::new(Mapping { base, words })))
    }

    /// The `length` entries that begin `at` bytes into it, a multiple of 8; none if they do not all exist.
    pub fn array<T: Plain>(&self, at: usize, length: u32) -> Array<T> {
        let first = at / WORD;
        let words = length as usize * Array::<T>::ENTRY;
        let is_there = first
            .checked_add(words)
            .is_some_and(|end| end <= self.0.words);
        let (first, words) = if is_there { (first, words) } else { (0, 0) };
        Array {
            // SAFETY: the mapping holds as many words, or `first` is 0.
            base: unsafe { self.0.base.add(first) },
            words,
            mapping: Arc::clone(&self.0),
            entries: PhantomData,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `Memory::map` made the mapping; munmap rounds the length up to whole pages.
        let _ = unsafe { munmap(self.base.cast(), self.words * WORD) };
    }
}

/// Entries of one kind in shared memory; clones are the same ones.
///
/// Other processes read and write them at any time. Before [writing](Array::write) an entry make sure that nothing
/// refers to it yet, or change only one word of it.
#[derive(Clone, Debug)]
pub struct Array<T> {
    base: NonNull<AtomicU64>,
    words: usize,
    mapping: Arc<Mapping>,
    entries: PhantomData<fn(T) -> T>,
}

// SAFETY: as of the mapping, which it holds on to.
unsafe impl<T> Send for Array<T> {}
// SAFETY: as of the mapping, which it holds on to.
unsafe impl<T> Sync for Array<T> {}

/// A 64-bit word of a `T`; [`field!`](crate::field) names it.
#[derive(Clone, Copy, Debug)]
pub struct Field<T> {
    at: usize,
    of: PhantomData<fn(T) -> T>,
}

/// Names the 64-bit word of a struct that begins with a field.
#[macro_export]
macro_rules! field {
    ($of:ty, $($field:tt)+) => {
        $crate::memory::Field::<$of>::at(::std::mem::offset_of!($of, $($field)+))
    };
}

impl<T> Field<T> {
    /// The word at an offset into a `T` in bytes, a multiple of 8.
    pub const fn at(at: usize) -> Self {
        assert!(at.is_multiple_of(WORD), "words lie 8 bytes apart");
        Self {
            at,
            of: PhantomData,
        }
    }

    /// The word a number of words further on.
    #[must_use]
    pub const fn skip(self, words: usize) -> Self {
        Self::at(self.at + words * WORD)
    }

    /// A word of the entry at `index` of an array of `E` that begins here.
    #[must_use]
    pub const fn of_entry<E>(self, index: usize, inner: Field<E>) -> Self {
        Self::at(self.at + index * size_of::<E>() + inner.at)
    }
}

impl Field<u64> {
    /// All of it.
    pub const WHOLE: Self = Self::at(0);
}

impl<T: Plain> Array<T> {
    /// Words of an entry.
    const ENTRY: usize = {
        assert!(
            size_of::<T>().is_multiple_of(WORD) && align_of::<T>() <= WORD,
            "entries lie 8 bytes apart"
        );
        size_of::<T>() / WORD
    };

    /// Number of entries.
    pub const fn len(&self) -> u32 {
        (self.words / Self::ENTRY) as u32
    }

    /// Returns whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// The bytes of entries in the memory.
    pub fn bytes(&self, entries: Range<u32>) -> Range<usize> {
        let first = self.base.addr().get() - self.mapping.base.addr().get();
        let at = |entry: u32| first + entry as usize * size_of::<T>();
        at(entries.start)..at(entries.end)
    }

    /// The words of an entry; none if it does not exist.
    #[inline]
    pub fn words(&self, index: u32) -> &[AtomicU64] {
        let at = index as usize * Self::ENTRY;
        self.all().get(at..at + Self::ENTRY).unwrap_or_default()
    }

    /// The words of all entries.
    #[inline]
    pub fn all(&self) -> &[AtomicU64] {
        // SAFETY: `Memory::array` saw that the mapping holds so many words from there on; it stays as
        // long as `mapping` does.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// A word of an entry, if that exists.
    #[inline]
    pub fn word(&self, index: u32, field: Field<T>) -> Option<&AtomicU64> {
        self.words(index).get(field.at / WORD)
    }

    /// Reads a word.
    #[inline]
    pub fn load(&self, index: u32, field: Field<T>) -> u64 {
        let word = self.word(index, field);
        word.map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Replaces a word in one step, after everything written before.
    pub fn store(&self, index: u32, field: Field<T>, value: u64) {
        if let Some(word) = self.word(index, field) {
            word.store(value, Ordering::SeqCst);
        }
    }

    /// Adds to a word in one step, and wraps.
    pub fn add(&self, index: u32, field: Field<T>, count: u64) {
        if let Some(word) = self.word(index, field) {
            word.fetch_add(count, Ordering::SeqCst);
        }
    }

    /// Copies an entry out, while others may write it.
    #[inline]
    pub fn read(&self, index: u32) -> T {
        let mut entry = T::new_zeroed();
        let bytes = entry.as_mut_bytes().chunks_exact_mut(WORD);
        for (bytes, word) in bytes.zip(self.words(index)) {
            bytes.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
        }
        entry
    }

    /// Overwrites an entry that is not in use, after everything written before.
    pub fn write(&self, index: u32, entry: &T) {
        let mut entry = *entry;
        fence(Ordering::SeqCst);
        let bytes = entry.as_mut_bytes().chunks_exact(WORD);
        for (bytes, word) in bytes.zip(self.words(index)) {
            word.store(
                u64::read_from_bytes(bytes).unwrap_or_default(),
                Ordering::Release,
            );
        }
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::shared_memory;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes)]
    struct Entry {
        owner: [u32; 2],
        times: [u64; 2],
    }

    #[repr(C)]
    struct Layout {
        head: [u64; 3],
        entries: [Entry; 5],
    }

    fn memory() -> Memory {
        let region = shared_memory::create(c"mcr-test", size_of::<Layout>()).unwrap();
        Memory::map(region.as_fd(), size_of::<Layout>()).unwrap()
    }

    fn entries(memory: &Memory) -> Array<Entry> {
        memory.array(std::mem::offset_of!(Layout, entries), 5)
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_and_touches_no_other() {
        let memory = memory();
        let (head, entries) = (memory.array::<u64>(0, 3), entries(&memory));
        let entry = Entry {
            owner: [1, 2],
            times: [3, 4],
        };
        entries.write(2, &entry);
        assert_eq!(entries.clone().read(2), entry);
        let second = field!(Entry, times).skip(1);
        entries.store(2, second, 9);
        entries.add(2, second, u64::MAX);
        assert_eq!(entries.load(2, field!(Entry, times)), 3);
        assert_eq!(entries.read(2).times, [3, 8]);
        let others = [0, 1, 3, 4].map(|index| entries.read(index));
        assert_eq!(others, [Entry::default(); 4]);
        assert_eq!([0, 1, 2].map(|index| head.read(index)), [0; 3]);
        assert_eq!(entries.bytes(2..4), 72..120);
        let in_words = field!(Layout, entries).of_entry(2, second);
        assert_eq!(in_words.at, 3 * 8 + 2 * 24 + 16);
    }

    #[test]
    fn what_is_not_there_is_zero_and_stays_so() {
        let memory = memory();
        let entries = entries(&memory);
        let entry = Entry {
            owner: [1, 2],
            times: [3, 4],
        };
        entries.write(5, &entry);
        entries.store(u32::MAX, field!(Entry, owner), 1);
        assert_eq!(entries.read(5), Entry::default());
        assert!(entries.word(5, field!(Entry, owner)).is_none());
        assert!(
            entries
                .all()
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == 0)
        );
        let behind = std::mem::offset_of!(Layout, entries) + 8;
        assert!(memory.array::<Entry>(behind, 5).is_empty());
        assert!(memory.array::<Entry>(0, u32::MAX).is_empty());
    }

    #[test]
    fn entries_outlive_whoever_mapped_them() {
        let entries = entries(&memory());
        entries.store(4, field!(Entry, times), 7);
        assert_eq!(entries.read(4).times, [7, 0]);
    }
}
