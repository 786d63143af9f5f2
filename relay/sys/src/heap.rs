//! Returns freed memory to the kernel.

#![expect(unsafe_code, reason = "mallopt and malloc_trim have no safe wrappers")]

/// Blocks of this size have a mapping of their own, and as much may be free at a heap's end.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 1024 * 1024;

/// Makes the allocator return large blocks as soon as they are freed, as long as the process lives. By
/// default the allocator keeps blocks of up to 32 MiB, and twice that at the end of each thread's
/// heap, where [`trim`] does not reach, once it has seen a block of that size. All threads share one
/// heap: what one frees another uses again, and it grows without a system call for each few pages. To
/// be called before there are threads; does nothing where the C library has no such call.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes no pointer; it sets numbers that the allocator reads, under its
    // own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns freed memory that the allocator keeps for later: tens of megabytes after thousands
/// of rules were read. Takes some milliseconds; does nothing where the C library has no such call.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes no pointer and only gives back pages without live allocations; it
    // takes the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
