//! `mcr worker`: a process of the userspace path, started by the supervisor and by nobody else.

use std::process::ExitCode;

/// Run as a worker of the userspace path; mcr run starts it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> ExitCode {
    daemon::unblock_signals();
    dataplane::userspace::worker::main()
}
