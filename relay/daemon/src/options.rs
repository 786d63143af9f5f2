//! How a daemon is started.

use std::ffi::OsString;
use std::path::PathBuf;

use api::reply::LogLevel;
use config::DaemonSettings;
use dataplane::features::Feature;
use rules::ruleset::Policy;

/// How a daemon is started. The defaults are those of the default instance.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the instance; it owns its lock, pins and running rules.
    pub instance: String,
    /// The control socket.
    pub socket: PathBuf,
    /// The configuration; `None`: `/etc/mcr/mcr.toml` if it is there.
    pub config: Option<PathBuf>,
    /// What the command line says; the configuration says the rest.
    pub given: DaemonSettings,
    /// What to do without although the kernel has it, for tests of what older kernels get.
    pub without: Vec<Feature>,
    /// Program and arguments that run a worker; empty: no userspace path.
    pub worker_command: Vec<OsString>,
    /// Program and arguments that run a process that holds membership sockets, which is given the
    /// path of its socket as last argument; empty: memberships end with this process.
    pub fd_holder_command: Vec<OsString>,
    /// Program that captures for clients of the API; `None`: none does.
    pub capture_program: Option<OsString>,
    /// How the level of the log is read and changed; `None`: it is not.
    pub log: Option<LogControl>,
    /// Directory of locks and, one directory per instance, of running rules.
    pub run_directory: PathBuf,
    /// Directory of what is kept over reboots, one directory per instance.
    pub state_directory: PathBuf,
    /// Where bpffs is, or is to be mounted.
    pub bpffs: PathBuf,
}

impl Options {
    /// What the command line permits.
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            allow_link_local: self.given.allow_link_local,
        }
    }
}

/// Reads and changes the level of this process's log, which whoever started the daemon set up.
#[derive(Clone, Copy, Debug)]
pub struct LogControl {
    /// The level.
    pub level: fn() -> LogLevel,
    /// Changes it.
    pub set_level: fn(LogLevel),
    /// Has lines written from now on by a thread of its own; until then they wait.
    pub start: fn(),
    /// How many lines nobody will read, because nobody took them while they waited.
    pub lost: fn() -> u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            instance: "default".to_owned(),
            socket: PathBuf::from("/run/mcr/mcr.sock"),
            config: None,
            given: DaemonSettings::default(),
            without: Vec::new(),
            worker_command: Vec::new(),
            fd_holder_command: Vec::new(),
            capture_program: None,
            log: None,
            run_directory: PathBuf::from("/run/mcr"),
            state_directory: PathBuf::from("/var/lib/mcr"),
            bpffs: PathBuf::from("/sys/fs/bpf"),
        }
    }
}
