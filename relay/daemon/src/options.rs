//! The options that a daemon is started with.

use std::ffi::OsString;
use std::path::PathBuf;

use api::reply::LogLevel;
use config::DaemonSettings;
use dataplane::features::Feature;
use rules::ruleset::Policy;

/// The options that a daemon is started with. The defaults are those of the default instance.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the instance; it owns its lock, pins and running rules.
    pub instance: String,
    /// The control socket.
    pub socket: PathBuf,
    /// The configuration; `None`: `/etc/mcr/mcr.toml` if it exists.
    pub config: Option<PathBuf>,
    /// The settings of the command line, which override the configuration's.
    pub given: DaemonSettings,
    /// Kernel features not to use although present, to test the behaviour on older kernels.
    pub without: Vec<Feature>,
    /// Program and arguments that run a worker; empty: no userspace path.
    pub worker_command: Vec<OsString>,
    /// Program and arguments that run a process that holds membership sockets, to which the path of its
    /// socket is passed as last argument; empty: memberships end with this process.
    pub fd_holder_command: Vec<OsString>,
    /// Program that captures for clients of the API; `None`: no captures.
    pub capture_program: Option<OsString>,
    /// Access to the level of the log; `None`: it cannot be read or changed.
    pub log: Option<LogControl>,
    /// Directory of locks and, one directory per instance, of running rules.
    pub run_directory: PathBuf,
    /// Directory of persistent state, one directory per instance.
    pub state_directory: PathBuf,
    /// Mount point of bpffs.
    pub bpffs: PathBuf,
}

impl Options {
    /// The policy of the command line.
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            allow_link_local: self.given.allow_link_local,
        }
    }
}

/// Access to this process's log, which the caller of the daemon has set up.
#[derive(Clone, Copy, Debug)]
pub struct LogControl {
    /// The level.
    pub level: fn() -> LogLevel,
    /// Changes it.
    pub set_level: fn(LogLevel),
    /// Starts the thread that writes lines; until then they wait.
    pub start: fn(),
    /// The number of lines that were dropped because too many waited.
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
