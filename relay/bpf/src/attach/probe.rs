//! Asks the kernel, once, whether it lets this process use BPF at all, and if not, why.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported};
use aya_obj::generated::bpf_prog_type;

use crate::link::Hook;
use crate::syscall::{create_tcx_link, instruction, load};

/// Why the kernel path is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// bpf(2) does not exist.
    #[error("the kernel is built without BPF (CONFIG_BPF_SYSCALL)")]
    NoBpf,
    /// tc programs do not exist.
    #[error("the kernel is built without tc BPF programs (CONFIG_NET_CLS_ACT)")]
    NoClassifier,
    /// Privileges are missing.
    #[error("BPF needs the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; missing: {0}")]
    NotPermitted(String),
    /// Something in the kernel forbids it.
    #[error("the kernel refuses BPF programs: {0}")]
    Refused(String),
}

/// Tries the smallest tc program there is, and says what programs are attached with here.
///
/// # Errors
///
/// The reason why it does not load.
pub fn probe() -> Result<Hook, Unavailable> {
    let error = match load_smallest() {
        Ok(program) => return probe_attaching(&program),
        Err(error) => error,
    };
    Err(match error.raw_os_error() {
        Some(libc::ENOSYS) => Unavailable::NoBpf,
        Some(libc::EINVAL) => Unavailable::NoClassifier,
        Some(libc::EPERM | libc::EACCES) => match missing_capabilities() {
            missing if missing.is_empty() => {
                Unavailable::Refused("not permitted, perhaps by a security module".to_owned())
            }
            missing => Unavailable::NotPermitted(missing.join(", ")),
        },
        _ => Unavailable::Refused(error.to_string()),
    })
}

/// Returns whether tc programs may call bpf_loop; `None` if this process may not find out.
pub fn has_loop() -> Option<bool> {
    is_helper_supported(ProgramType::SchedClassifier, BpfHelper::BPF_FUNC_loop).ok()
}

/// `r0 = 0; exit` as a tc program.
fn load_smallest() -> io::Result<OwnedFd> {
    let program = [
        instruction(0xb7, (0, 0), 0, 0),
        instruction(0x95, (0, 0), 0, 0),
    ];
    load(bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS, &program)
}

/// Attaches to an interface that cannot exist: a kernel with tcx complains of the interface, one
/// without of the attach type.
fn probe_attaching(program: &OwnedFd) -> Result<Hook, Unavailable> {
    let missing = missing_capabilities();
    if !missing.is_empty() {
        return Err(Unavailable::NotPermitted(missing.join(", ")));
    }
    match create_tcx_link(program.as_fd(), i32::MAX as u32) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(Hook::Clsact),
        _ => Ok(Hook::Tcx),
    }
}

/// The capabilities that are not effective, by name.
fn missing_capabilities() -> Vec<&'static str> {
    const NEEDED: [(&str, u32); 3] = [("CAP_NET_ADMIN", 12), ("CAP_PERFMON", 38), ("CAP_BPF", 39)];
    const NET_ADMIN: u32 = 12;
    const SYS_ADMIN: u32 = 21;
    let effective = effective_capabilities();
    let has = |capability: u32| effective >> capability & 1 == 1;
    let granted = |bit: u32| has(bit) || (bit != NET_ADMIN && has(SYS_ADMIN));
    NEEDED
        .into_iter()
        .filter(|(_, bit)| !granted(*bit))
        .map(|(name, _)| name)
        .collect()
}

fn effective_capabilities() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}
