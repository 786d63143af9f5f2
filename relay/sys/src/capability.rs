//! Capabilities, no-new-privileges and the other limits of a process.

#![expect(
    unsafe_code,
    reason = "signal dispositions and priorities are set through unsafe calls"
)]

use std::io;

use caps::{CapSet, Capability, CapsHashSet};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal};
use nix::unistd::Pid;

/// Gives up every capability for good: permitted, effective, inheritable and ambient sets are
/// cleared, the bounding set where allowed, and no program run later can gain any.
///
/// # Errors
/// The system call's.
pub fn renounce_all() -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    empty_bounding_set();
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

/// The capabilities that the daemon requires.
const NEEDED: [(Capability, &str); 3] = [
    (Capability::CAP_NET_ADMIN, "CAP_NET_ADMIN"),
    (Capability::CAP_NET_RAW, "CAP_NET_RAW"),
    (Capability::CAP_BPF, "CAP_BPF"),
];

/// A capability that the daemon uses beyond that: without it the verifier makes the program slower.
const USEFUL: [Capability; 1] = [Capability::CAP_PERFMON];

/// The capabilities to start processes as another user, and to end them.
const SWITCHING: [(Capability, &str); 3] = [
    (Capability::CAP_SETUID, "CAP_SETUID"),
    (Capability::CAP_SETGID, "CAP_SETGID"),
    (Capability::CAP_KILL, "CAP_KILL"),
];

/// Gives up for good what the daemon does not need after start-up, which `switching` users is if it
/// starts workers as another one. It holds for threads and
/// processes started from here on, so it comes before the first of them. The bounding set is empty
/// then, and a program that root runs begins with nothing at all.
///
/// # Errors
/// The system call's.
pub fn keep_needed(switching: bool) -> io::Result<()> {
    let switching = if switching { &SWITCHING[..] } else { &[] };
    let needed = NEEDED.iter().chain(switching);
    let wanted: CapsHashSet = needed.map(|(needed, _)| *needed).chain(USEFUL).collect();
    nix::sys::prctl::set_no_new_privs()?;
    empty_bounding_set();
    let has = caps::read(None, CapSet::Permitted).map_err(io::Error::other)?;
    let keep = has.intersection(&wanted).copied().collect();
    let none = CapsHashSet::new();
    for (set, value) in [
        (CapSet::Ambient, &none),
        (CapSet::Inheritable, &none),
        (CapSet::Effective, &keep),
        (CapSet::Permitted, &keep),
    ] {
        caps::set(None, set, value).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Needs CAP_SETPCAP. Without it the set stays, which no-new-privileges makes harmless: a program gets nothing
/// that its caller does not hold (`cap_bprm_creds_from_file`).
fn empty_bounding_set() {
    for capability in caps::all() {
        let _ = caps::drop(None, CapSet::Bounding, capability);
    }
}

/// Lets this process and its children lock any amount of memory, where that is allowed: before
/// Linux 5.12 the workers' io_urings count against that limit.
pub fn raise_locked_memory_limit() {
    let most = nix::sys::resource::RLIM_INFINITY;
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, most, most);
}

/// Raises the limit of open descriptors as far as allowed.
///
/// # Errors
/// The system call's.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// The most descriptors that this process may have open.
pub fn descriptor_limit() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(limit, _)| limit);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Names the capabilities that the daemon needs and this process does not have.
pub fn missing() -> Vec<&'static str> {
    missing_of(NEEDED)
}

/// Names the capabilities that starting and ending processes of another user needs and this process does not
/// have.
pub fn missing_for_switching() -> Vec<&'static str> {
    missing_of(SWITCHING)
}

fn missing_of<const N: usize>(needed: [(Capability, &'static str); N]) -> Vec<&'static str> {
    let lacks = |capability| !caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    let missing = needed.into_iter().filter(|(needed, _)| lacks(*needed));
    missing.map(|(_, name)| name).collect()
}

/// Ignores SIGINT and SIGTERM, for a child that ends at its parent's request: a terminal and systemd send both to
/// the whole group.
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

/// Gives this process a session of its own. Where the kernel groups tasks by session
/// (`kernel.sched_autogroup_enabled`, its default), tasks of one session share one task's weight over
/// all cores, however many of them are pinned to one core each.
///
/// # Errors
/// `EPERM` for a process that leads a group.
pub fn lead_session() -> io::Result<()> {
    nix::unistd::setsid()?;
    Ok(())
}

/// The niceness of a background thread (sched(7)): a third of a default task's weight. With a tenth, work that was
/// waited for took a minute on a host whose cores had six tasks each.
const STANDS_BACK: i32 = 5;

/// Gives the calling thread, and those that it starts, a lower priority than others of this host. Does nothing
/// where that is not allowed.
pub fn stand_back() {
    // SAFETY: nice takes a number and returns one; on Linux it is of the thread.
    let _ = unsafe { libc::nice(STANDS_BACK) };
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
