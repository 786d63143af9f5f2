//! Memory that was freed, given back to the kernel.

#![expect(unsafe_code, reason = "malloc_trim has no safe wrapper")]

/// Gives freed memory back that the allocator keeps for later: tens of megabytes after thousands
/// of rules were read. Takes some milliseconds; does nothing where the C library has no such call.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes no pointer and only gives back pages without live allocations; it
    // takes the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
