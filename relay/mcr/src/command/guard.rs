//! `mcr guard`: removes what a bench or a demo created if it is killed; only these start it.

use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Failure, OrFail, SIGNALS, Status};

/// Take away what a bench or a demo leaves when it is killed; mcr bench and mcr demo start it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The process to guard, which has the other end of standard input
    process: u32,
    /// Make the queue between the cores long meanwhile
    #[arg(long)]
    backlog: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // A signal that ends the run must not end the guard before its work is done.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let caught = signal_hook::flag::register(signal, Arc::default());
        caught.or_fail(SIGNALS, Status::Unavailable)?;
    }
    lab::guard::stand(args.process, args.backlog).or_fail(
        format_args!("process {}", args.process),
        Status::Unavailable,
    )
}
