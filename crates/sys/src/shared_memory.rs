//! Memory shared between processes: memfd regions, seen as 64-bit words.
//!
//! Words are only ever accessed atomically, so a peer that writes at the same time, or that died
//! while writing, cannot make this process misbehave.

#![expect(unsafe_code, reason = "mapping memory needs raw system calls")]

use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::fcntl::{FallocateFlags, fallocate};

/// Creates a region of `bytes` zero bytes that can be neither shrunk nor grown.
///
/// # Errors
/// The system call's.
pub fn create(name: &CStr, bytes: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: `name` is a terminated string that lives during the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: `fd` is open; both calls take integers only.
    let failed = unsafe {
        libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) < 0
            || libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) < 0
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// Makes bytes of a region zero again and gives back the pages that lie between the first and the last
/// of them.
///
/// # Errors
/// The system call's.
pub fn clear(fd: BorrowedFd<'_>, bytes: Range<usize>) -> io::Result<()> {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let (start, length) = (bytes.start as libc::off_t, bytes.len() as libc::off_t);
    Ok(fallocate(fd, mode, start, length)?)
}

/// A shared mapping, read and written word by word.
#[derive(Debug)]
pub struct Words {
    base: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping belongs to no thread and stays at its address until drop.
unsafe impl Send for Words {}
// SAFETY: the only access there is, through `as_slice`, is to atomics.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the first `bytes` bytes of a region that [`create`] made, rounded down to whole words.
    ///
    /// # Errors
    /// The system call's; `EINVAL` for a length of 0, or for anything but a region of at least
    /// that length that can never be shrunk: touching what is not there would kill the process.
    pub fn map(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: F_GET_SEALS takes no argument, and `fd` is open while borrowed.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        let length = nix::sys::stat::fstat(fd)?.st_size;
        let is_fixed = seals >= 0 && seals & libc::F_SEAL_SHRINK != 0;
        if !is_fixed || usize::try_from(length).is_ok_and(|length| length < bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a new mapping is asked for, so no memory in use is replaced.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidData)?;
        let count = bytes / size_of::<AtomicU64>();
        Ok(Self { base, count })
    }

    /// All words.
    #[inline]
    #[must_use]
    pub const fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: `map` made a mapping of at least `count` words, page-aligned, that stays until
        // drop, of a region that it found at least as large and sealed against shrinking.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping; munmap rounds the length up to whole pages.
        unsafe {
            libc::munmap(
                self.base.as_ptr().cast(),
                self.count * size_of::<AtomicU64>(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_see_the_same_words() {
        let region = create(c"mcr-test", 4096).unwrap();
        let one = Words::map(region.as_fd(), 4096).unwrap();
        let other = Words::map(region.as_fd(), 4096).unwrap();
        one.as_slice()[511].store(7, Ordering::Relaxed);
        assert_eq!(other.as_slice()[511].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn what_is_no_whole_region_is_not_mapped() {
        let region = create(c"mcr-test", 4096).unwrap();
        assert!(Words::map(region.as_fd(), 4097).is_err());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Words::map(file.as_fd(), 4096).is_err());
    }

    #[test]
    fn cleared_bytes_are_zero_and_take_no_memory() {
        use std::os::unix::fs::MetadataExt;

        const BYTES: usize = 8 << 20;
        let region = create(c"mcr-test", BYTES).unwrap();
        let words = Words::map(region.as_fd(), BYTES).unwrap();
        for word in words.as_slice() {
            word.store(7, Ordering::Relaxed);
        }
        let file = std::fs::File::from(region);
        let taken = || file.metadata().unwrap().blocks();
        let before = taken();
        clear(file.as_fd(), 512 * 8..BYTES - 8).unwrap();
        // Before the words are read: that takes memory again.
        let after = taken();
        let values = words.as_slice().iter().map(|w| w.load(Ordering::Relaxed));
        assert_eq!(values.sum::<u64>(), 7 * 513);
        assert!(after < before / 100, "{after} of {before}");
    }

    #[test]
    fn a_region_cannot_be_shrunk_under_its_readers() {
        let region = create(c"mcr-test", 4096).unwrap();
        let file = std::fs::File::from(region);
        assert!(file.set_len(0).is_err());
    }
}
