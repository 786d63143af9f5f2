//! `mcr stop`: stops the daemon, or ends what an earlier one left behind.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use daemon::Options;
use serde_json::json;
use sys::descriptor::ProcessHandle;

use crate::failure::{Failure, Status, unavailable};
use crate::global::Global;
use crate::render;

/// How long a daemon may take to end: it leaves thousands of groups one by one.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stop the daemon, and wait until it is gone.
///
/// It detaches everything, as on SIGTERM: nothing is relayed, nothing joined any more. With
/// --leftovers it ends instead what a daemon left that was killed, or stopped with
/// --keep-forwarding: programs, keeper, workers, memberships, pins and running rules of the instance,
/// and programs at the interfaces here that no pins hold and no daemon looks after.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr stop
  mcr --instance studio stop
  mcr stop --leftovers                      nothing of an earlier daemon forwards any more")]
pub(crate) struct Args {
    /// End what an earlier daemon left, where none runs
    #[arg(long)]
    leftovers: bool,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    if args.leftovers {
        return end_leftovers(global);
    }
    let socket = global.socket();
    let connected = UnixStream::connect(&socket).map_err(|source| {
        let path = socket.clone();
        Failure::from(api::client::Error::Connect { path, source })
    })?;
    let failure = |error: io::Error| {
        let status = Status::of_system(&error, Status::Unavailable);
        let at = socket.display();
        Failure::new(status, format!("cannot stop the daemon at {at}: {error}"))
    };
    let process = ProcessHandle::behind(&connected).map_err(failure)?;
    drop(connected);
    process.terminate().map_err(failure)?;
    if !sys::wait::readable(process.as_fd(), PATIENCE).map_err(failure)? {
        let patience = PATIENCE.as_secs();
        let message = format!("the daemon still runs {patience} s after SIGTERM; its log says why");
        return Err(unavailable(message));
    }
    render::reply(global.json, &json!({ "stopped": true }), String::new)
}

fn end_leftovers(global: &Global) -> Result<(), Failure> {
    let options = Options {
        instance: global.instance.clone(),
        ..Options::default()
    };
    let ended = daemon::cleanup::end(&options)?;
    let text = || {
        if ended.is_empty() {
            "nothing is left of an earlier daemon".to_owned()
        } else {
            ended.join("\n")
        }
    };
    render::reply(global.json, &json!({ "ended": ended }), text)
}
