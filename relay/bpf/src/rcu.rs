//! Waits until no packet can still see what was just unlinked.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use aya_obj::generated::{bpf_cmd, bpf_map_type};

use crate::syscall::{attr, bpf, create_array};

const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;

/// Waits for a grace period: every packet that was inside the program when this was called has left
/// it when this returns. Takes some 10 to 30 ms.
///
/// # Errors
///
/// The kernel's, if neither way works.
pub fn wait() -> io::Result<()> {
    by_membarrier().or_else(|_| by_map_update())
}

/// `membarrier(MEMBARRIER_CMD_GLOBAL)` is synchronize_rcu() by another name
/// (kernel/sched/membarrier.c) and needs no privilege, but refuses where some cores run without a
/// tick (nohz_full).
fn by_membarrier() -> io::Result<()> {
    // SAFETY: membarrier takes no pointers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// An update of a map of maps waits in the same way (`maybe_wait_bpf_programs` in
/// kernel/bpf/syscall.c).
fn by_map_update() -> io::Result<()> {
    let inner = create_array(bpf_map_type::BPF_MAP_TYPE_ARRAY, 4, 0, None)?;
    let kind = bpf_map_type::BPF_MAP_TYPE_ARRAY_OF_MAPS;
    let outer = create_array(kind, 4, 0, Some(inner.as_fd()))?;
    let (key, value) = (0u32, inner.as_raw_fd());
    let mut attr = attr();
    attr.__bindgen_anon_2.map_fd = outer.as_raw_fd() as u32;
    attr.__bindgen_anon_2.key = &raw const key as u64;
    attr.__bindgen_anon_2.__bindgen_anon_1.value = &raw const value as u64;
    // SAFETY: key and value are four bytes each, as the map was made.
    unsafe { bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn membarrier_waits() {
        by_membarrier().expect("this kernel has membarrier");
    }

    #[test]
    fn a_map_update_waits_too() {
        if crate::probe::probe().is_err() {
            eprintln!("skipped: needs BPF");
            return;
        }
        by_map_update().expect("a map of maps can be updated");
    }
}
