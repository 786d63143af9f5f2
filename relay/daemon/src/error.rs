//! Why a daemon does not start or fails, and the exit status for it.

use std::io;
use std::path::PathBuf;

use config::ConfigErrors;

/// Why a daemon does not start or fails.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Another process runs the instance.
    #[error(
        "instance {name:?} is run by {holder} already; stop that one, or choose another \
         name with --instance and another socket with --socket"
    )]
    AlreadyRunning {
        /// Name of the instance.
        name: String,
        /// The process that runs it, as its lock names it.
        holder: String,
    },
    /// The control socket cannot be used.
    #[error("control socket {path}: {problem}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A file or directory cannot be used.
    #[error("{path}: cannot {operation}: {source}{}", remedy(source))]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A directory of running state cannot be trusted.
    #[error("{path} {problem}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A configuration file cannot be read.
    #[error("{}", config::unreadable(path, source))]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is no configuration to read.
    #[error("there is no {path}; write it, or start the daemon with --config FILE")]
    NoConfig {
        /// The default file.
        path: PathBuf,
    },
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The fleet that the configuration names cannot be joined.
    #[error("{0}")]
    Fleet(String),
    /// Workers cannot run as the configured user.
    #[error("worker_user {name:?}: {problem}")]
    WorkerUser {
        /// The user.
        name: String,
        /// What is wrong and what to do.
        problem: String,
        /// Capabilities this process lacks.
        missing: Vec<&'static str>,
    },
    /// Neither path, or not the requested one, is available.
    #[error("{reason}{}", hint(.missing))]
    NoPath {
        /// Which path, and why.
        reason: String,
        /// Capabilities this process lacks.
        missing: Vec<&'static str>,
    },
    /// The host's links cannot be followed.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// The dataplane failed.
    #[error(transparent)]
    Dataplane(#[from] crate::dataplane_thread::Error),
    /// The read-only listener cannot be opened.
    #[error("cannot listen on {address}: {source}; choose another address with --listen")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Threads, timers or signals are unavailable.
    #[error("cannot start: {0}")]
    Runtime(io::Error),
}

impl DaemonError {
    /// The exit status for scripts: 69 unavailable, 77 missing privilege, 78 bad configuration.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoPath { missing, .. } | Self::WorkerUser { missing, .. }
                if !missing.is_empty() =>
            {
                77
            }
            Self::File { source, .. }
            | Self::Listen { source, .. }
            | Self::ConfigFile { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                77
            }
            Self::Config(_)
            | Self::ConfigFile { .. }
            | Self::NoConfig { .. }
            | Self::Fleet(_)
            | Self::WorkerUser { .. } => 78,
            _ => 69,
        }
    }
}

/// The remedy for a failed write, as the end of a message.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room there",
        io::ErrorKind::ReadOnlyFilesystem => "; mount it writable",
        io::ErrorKind::NotFound => "; make its directory",
        _ => "",
    }
}

fn hint(missing: &[&str]) -> String {
    if missing.is_empty() {
        return String::new();
    }
    let list = missing.join(", ");
    format!("; this process lacks {list}: run it as root, or give it these capabilities")
}
