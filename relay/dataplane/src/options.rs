//! How the dataplane is opened and closed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::task::Waker;

use bpf::Capacity;
use sys::user::User;

use crate::features::Feature;

/// How to open the dataplane.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the instance, and of the directory of its pins.
    pub instance: String,
    /// Where bpffs is mounted.
    pub bpffs: PathBuf,
    /// Worker processes of the userspace path; 0 for one per core that this process may use.
    pub workers: usize,
    /// Whether to use the kernel path at all.
    pub kernel: bool,
    /// Features to do without although the kernel has them, to test the substitutes of older kernels.
    pub without: Vec<Feature>,
    /// Program and arguments that run [`crate::userspace::worker::main`]; empty for no userspace path.
    pub worker_command: Vec<OsString>,
    /// The user that workers run as; `None` for this process's user.
    pub worker_user: Option<User>,
    /// Where to write the verifier's log that shows why the kernel path is not available.
    pub log_directory: Option<PathBuf>,
    /// Woken when a worker has ended: [`crate::Dataplane::tick`] is to be called then.
    pub attention: Waker,
    /// Sizes of the kernel path's maps, unless pinned ones are adopted.
    pub capacity: Capacity,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            instance: "default".to_owned(),
            bpffs: PathBuf::from(bpf::pin::BPFFS),
            workers: 0,
            kernel: true,
            without: Vec::new(),
            worker_command: Vec::new(),
            worker_user: None,
            log_directory: None,
            attention: Waker::noop().clone(),
            capacity: Capacity::default(),
        }
    }
}

/// How to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Everything is detached and removed.
    Detach,
    /// The kernel path goes on without a process; the userspace path's workers end.
    KeepForwarding,
    /// Both paths go on: somebody holds [`crate::Dataplane::descriptors`].
    HandOver,
}
