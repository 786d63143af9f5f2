//! Why a subcommand failed, and the exit status that reports it to scripts.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use rules::printable::printable;

/// Exit statuses; scripts rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The daemon refused the request.
    Refused = 1,
    /// The command line is wrong.
    Usage = 2,
    /// There is no such rule, or there is one already.
    Rule = 3,
    /// No daemon answers.
    Unreachable = 4,
    /// Packets were lost, or a check found an error.
    Loss = 5,
    /// An interface or a service is not available.
    Unavailable = 69,
    /// A privilege is missing.
    Privilege = 77,
    /// The configuration is wrong.
    Configuration = 78,
}

impl Status {
    /// For what the system refuses: a missing privilege, or `otherwise`.
    pub(crate) fn of_system(error: &io::Error, otherwise: Self) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Privilege,
            _ => otherwise,
        }
    }
}

/// A failed subcommand: its exit status, and the message for the user.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl fmt::Display) -> Self {
        Self::with_code(status as u8, message)
    }

    /// For errors that bring their own exit status.
    pub(crate) fn with_code(status: u8, message: impl fmt::Display) -> Self {
        Self {
            status,
            message: message.to_string(),
        }
    }

    /// For files that cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Self {
        let status = Status::of_system(error, Status::Configuration);
        Self::new(status, config::unreadable(path, error))
    }

    /// The same for comparisons, where the status for a refusal means that something differs.
    pub(crate) fn of_comparison(self) -> Self {
        if self.is(Status::Refused) {
            Self::new(Status::Configuration, self)
        } else {
            self
        }
    }

    /// Whether it has that exit status.
    pub(crate) const fn is(&self, status: Status) -> bool {
        self.status == status as u8
    }

    /// Writes the message to standard error, every line under the name of the subcommand, and
    /// returns the exit status.
    pub(crate) fn report(&self, command: &str) -> ExitCode {
        for line in self.message.lines() {
            eprintln!("mcr {command}: {}", printable(line));
        }
        ExitCode::from(self.status)
    }
}

/// For command lines that are wrong.
pub(crate) fn usage(message: impl fmt::Display) -> Failure {
    Failure::new(Status::Usage, message)
}

/// An interface or a service is unavailable; of an error with causes, all are told.
pub(crate) fn unavailable(message: impl fmt::Display) -> Failure {
    Failure::new(Status::Unavailable, format_args!("{message:#}"))
}

/// The context of failures to install signal handlers.
pub(crate) const SIGNALS: &str = "cannot handle signals";

/// Turns an error into a failure with its context.
pub(crate) trait OrFail<T> {
    /// Maps an error to a failure with that status, whose message is `what` followed by the error.
    fn or_fail(self, what: impl fmt::Display, status: Status) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, what: impl fmt::Display, status: Status) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(status, format_args!("{what}: {error:#}")))
    }
}

/// The exit status of a check: whether all is well, or something is lost or wrong.
pub(crate) fn verdict(is_well: bool) -> ExitCode {
    if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(Status::Loss as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<io::Error> for Failure {
    /// Only writing to standard output fails without a message of its own.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            // Nobody reads any more (`mcr list | head`): no message, and not an error.
            return Self::with_code(0, "");
        }
        let message = format!("cannot write to standard output: {error}");
        Self::new(Status::Unavailable, message)
    }
}
