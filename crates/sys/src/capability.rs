//! Capabilities, no-new-privileges and the other fences of a process.

#![expect(
    unsafe_code,
    reason = "signal dispositions are set through an unsafe call"
)]

use std::io;

use caps::{CapSet, Capability};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{SigHandler, Signal};
use nix::unistd::Pid;

/// Gives up every capability for good: permitted, effective, inheritable and ambient sets are
/// cleared, the bounding set where allowed, and no program run later can gain any.
///
/// # Errors
/// The system call's.
pub fn renounce_all() -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    // Emptying the bounding set needs CAP_SETPCAP; without it nothing could be gained anyway.
    let _ = caps::clear(None, CapSet::Bounding);
    for set in [
        CapSet::Ambient,
        CapSet::Inheritable,
        CapSet::Effective,
        CapSet::Permitted,
    ] {
        caps::clear(None, set).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Names what the daemon needs of capabilities and this process does not have.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    let needed = [
        (Capability::CAP_NET_ADMIN, "CAP_NET_ADMIN"),
        (Capability::CAP_NET_RAW, "CAP_NET_RAW"),
        (Capability::CAP_BPF, "CAP_BPF"),
    ];
    let lacks = |capability| !caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    let missing = needed.into_iter().filter(|(needed, _)| lacks(*needed));
    missing.map(|(_, name)| name).collect()
}

/// Ignores SIGINT and SIGTERM, for a child that ends when its parent tells it to: a terminal and
/// systemd send both to the whole group.
///
/// # Errors
/// The system call's.
pub fn ignore_termination() -> io::Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { nix::sys::signal::signal(signal, SigHandler::SigIgn) }?;
    }
    Ok(())
}

/// Pins the calling thread to one core.
///
/// # Errors
/// `EINVAL` for a core that does not exist or that this process may not use.
pub fn pin_to_cpu(cpu: u32) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu as usize)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// The cores this process may use, in order.
///
/// # Errors
/// The system call's.
pub fn usable_cpus() -> io::Result<Vec<u32>> {
    let set = nix::sched::sched_getaffinity(Pid::from_raw(0))?;
    let usable = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
    Ok((0..CpuSet::count())
        .filter(usable)
        .map(|cpu| cpu as u32)
        .collect())
}
