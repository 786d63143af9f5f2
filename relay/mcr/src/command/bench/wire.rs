//! `mcr bench wire`: measures what stands between a generator and a verifier over real interfaces.

mod ethernet;
mod measure;
mod receive;
mod relay;
mod report;
mod send;
mod text;

use std::process::ExitCode;

use crate::failure::Failure;

/// Where a verifier listens by default.
const LISTEN: &str = "127.0.0.1:2544";

/// Measure a relay, or whatever forwards multicast, over real interfaces.
///
/// A verifier counts what comes out of the network under test, on another host or at another
/// interface of this one. A generator sends into it, asks the verifier what arrived, and searches for
/// the highest rate without loss (RFC 2544) and the number of groups forwarded at once (RFC 3918).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mcr bench wire receive 239.10.1.1%eth1:6001 --listen 192.0.2.7:2544     on the verifier
  mcr bench wire send 239.1.1.1%eth0:5001 --verifier 192.0.2.7:2544       on the generator
  mcr bench wire send 239.1.1.1%eth0:5001 --receive 239.10.1.1%eth1:6001  both on one host")]
pub(super) struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, clap::Subcommand)]
enum Role {
    Receive(receive::Args),
    Send(send::Args),
}

pub(super) fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    match &args.role {
        Role::Receive(args) => receive::run(args).map(|()| ExitCode::SUCCESS),
        Role::Send(args) => send::run(args, json),
    }
}
