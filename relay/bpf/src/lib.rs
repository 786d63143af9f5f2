//! Kernel path: the BPF programs, their layout in Rust, loading and pinning.
//!
//! Knows nothing of rules or routes as `rules` has them: it offers the maps as typed memory and
//! the program as something to attach. `dataplane::kernel` decides what goes in.
#![expect(
    unsafe_code,
    reason = "bpf(2) and maps shared with the kernel by mmap; each use names its invariant"
)]

mod attach;
#[cfg(feature = "test-support")]
pub mod btf;
mod maps;
pub mod merge;
pub mod object;
pub mod rcu;
mod syscall;

pub use attach::{
    attached, device, link, live, orphans, other_instances, pin, probe, program, socket_filter, xdp,
};
#[cfg(feature = "test-support")]
pub use attach::{corrupt, testrun};
pub use aya::include_bytes_aligned;
pub use maps::{Capacity, Maps, flows, layout, map, merge_layout};

use std::io;
use std::path::PathBuf;

use sys::ifreq::called;

/// What goes wrong between MCR and the kernel's BPF.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object does not load: a map cannot be made or the verifier refuses the program.
    #[error("cannot load the kernel path's BPF program: {0}")]
    Load(String),
    /// The verifier refuses a program.
    #[error("the kernel refuses the BPF program {program}: {reason}")]
    Refused {
        /// Name of the program.
        program: String,
        /// The last thing that the verifier said of it.
        reason: String,
        /// All that it said.
        log: String,
    },
    /// A map of the object is not what this build expects.
    #[error("BPF map {name}: {problem}; remove the pins of this instance and start again")]
    Map {
        /// Name of the map.
        name: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An operation on a map failed.
    #[error("BPF map {name}: {operation} failed: {error}")]
    MapOperation {
        /// Name of the map.
        name: &'static str,
        /// What was tried.
        operation: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The program cannot be attached.
    #[error("cannot attach the kernel path to {}: {error}", called(*ifindex))]
    Attach {
        /// Index of the interface.
        ifindex: u32,
        /// The kernel's answer.
        error: io::Error,
    },
    /// What the hook at XDP needs cannot be had.
    #[error("cannot prepare XDP: {0}")]
    Hook(io::Error),
    /// A program that an earlier daemon left cannot be taken away.
    #[error("cannot take the program of an earlier daemon off {}: {error}", called(*ifindex))]
    Detach {
        /// Index of the interface.
        ifindex: u32,
        /// The kernel's answer.
        error: io::Error,
    },
    /// A pin cannot be made, read or removed.
    #[error("{path}: cannot {operation}: {error}; is this a bpffs (mount -t bpf bpf /sys/fs/bpf)?")]
    Pin {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
    /// Another process has the instance's pins.
    #[error(
        "{directory} belongs to another daemon of that name: {owner}, perhaps in a container; stop \
         that one, or choose another name with --instance"
    )]
    Claimed {
        /// The pins.
        directory: PathBuf,
        /// Who has them.
        owner: String,
    },
    /// A test run failed.
    #[error("BPF_PROG_TEST_RUN failed: {0}")]
    TestRun(io::Error),
}

impl Error {
    /// Returns whether the operation failed because the interface does not exist (any more).
    pub fn is_no_such_interface(&self) -> bool {
        matches!(self, Self::Attach { error, .. } if error.raw_os_error() == Some(libc::ENODEV))
    }
}
