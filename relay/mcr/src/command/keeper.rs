//! `mcr keeper`: holds membership sockets and keeps workers running while no daemon runs; only the
//! daemon starts it.

use std::path::PathBuf;
use std::time::Duration;

use crate::failure::{Failure, OrFail, Status};

/// How long a daemon that died may take to come back before its memberships and workers end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hold memberships and workers while the daemon restarts; mcr run starts it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Socket to be asked on
    socket: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    daemon::unblock_signals();
    let served = sys::capability::renounce_all()
        .and_then(|()| daemon::fd_holder::listen(&args.socket))
        .and_then(|listener| {
            let max_descriptors = daemon::fd_holder::room();
            // A kernel without the means is no reason to let memberships end.
            let _ = sys::sandbox::close(true);
            daemon::fd_holder::serve(&listener, PATIENCE, max_descriptors)
        });
    served.or_fail(args.socket.display(), Status::Unavailable)
}
