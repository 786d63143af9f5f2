//! Waits until no packet can still see what was just unlinked.

use std::io;

const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;

/// Waits for a grace period: every packet that was inside the program when this was called has left
/// it when this returns. Takes some 10 to 30 ms.
///
/// `membarrier(MEMBARRIER_CMD_GLOBAL)` is synchronize_rcu() by another name (kernel/sched/
/// membarrier.c) and needs no privilege.
///
/// # Errors
///
/// EINVAL on kernels with nohz_full cores, ENOSYS without membarrier.
pub fn wait() -> io::Result<()> {
    // SAFETY: membarrier takes no pointers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
