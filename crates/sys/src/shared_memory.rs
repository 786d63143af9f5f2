//! Memory shared between processes: memfd regions and mapped BPF arrays, seen as 64-bit words.
//!
//! Words are only ever accessed atomically, so a peer that writes at the same time, or that died
//! while writing, cannot make this process misbehave.

#![expect(unsafe_code, reason = "mapping memory needs raw system calls")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

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

/// A shared mapping, read and written word by word.
#[derive(Debug)]
pub struct Words {
    base: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping stays at its address until drop, and every access to it is atomic.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the first `bytes` bytes of `fd` (a memfd or a `BPF_F_MMAPABLE` map), rounded down to
    /// whole words.
    ///
    /// # Errors
    /// The system call's; `EINVAL` for a length of 0 or beyond the region.
    pub fn map(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping is asked for, so no memory in use is replaced.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_fd().as_raw_fd(),
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
        // drop; memfds are sealed against shrinking and BPF maps have a fixed size.
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
    fn a_region_cannot_be_shrunk_under_its_readers() {
        let region = create(c"mcr-test", 4096).unwrap();
        let file = std::fs::File::from(region);
        assert!(file.set_len(0).is_err());
    }
}
