//! `mcr bench wire receive`: the verifier, which serves generators until it is interrupted.

use std::net::{SocketAddr, TcpListener};

use rules::endpoint::Endpoint;
use rules::printable::printable;
use traffic::wire::verifier::{Error, Verifier};

use super::LISTEN;
use crate::command::receive::counter;
use crate::command::traffic_run::{listens, refusal, stop_on_signals};
use crate::failure::{Failure, OrFail, Status, usage};

/// Count for a generator what arrives at the endpoints, until interrupted.
///
/// Joins the groups and counts in BPF at ingress; what it counts goes no further. One generator
/// measures at a time. There is no password: whoever reaches the port can have it count at these
/// endpoints and nowhere else, and read this host's name, kernel and the interfaces named here, so
/// let it listen on an address of the network you measure in. Needs root.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mcr bench wire receive 239.10.1.1%eth1:6001 --listen 192.0.2.7:2544
  mcr bench wire receive 239.10.1.0/24%eth1:6001 --listen 192.0.2.7:2544     256 groups
  mcr bench wire receive 239.10.1.1%eth1:6001 239.10.2.1%eth1:6001           two copies of a stream")]
pub(super) struct Args {
    /// GROUP%IFACE:PORT; GROUP and PORT may be ranges. All streams in order, once for each copy that
    /// the relay makes
    #[arg(required = true, value_name = "ENDPOINT", add = crate::completion::endpoint())]
    endpoints: Vec<Endpoint>,
    /// Endpoints from each endpoint on, group and port counting up together as with `mcr send`
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    streams: u32,
    /// Where generators reach it
    #[arg(long, value_name = "ADDR:PORT", default_value = LISTEN)]
    listen: SocketAddr,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let verifier = Verifier::open(&listens(&args.endpoints, args.streams)?).map_err(failure)?;
    let listening = format!("--listen {}", args.listen);
    let listener = TcpListener::bind(args.listen).or_fail(listening, Status::Unavailable)?;
    let stop = stop_on_signals()?;
    let at = listener.local_addr()?;
    if at.ip().is_unspecified() {
        eprintln!(
            "warning: {at} is every address of this host: anybody who reaches it can measure"
        );
    }
    eprintln!("verifier listening on {at}");
    // The text may hold input from a stranger.
    let log = |text: &str| eprintln!("{}", printable(text));
    let served = verifier.serve(&listener, &stop, &log);
    served.or_fail(format_args!("--listen {at}"), Status::Unavailable)
}

/// Why the verifier cannot be opened.
pub(super) fn failure(error: Error) -> Failure {
    match error {
        Error::Watch(error) => counter::refused(error),
        Error::Join(error) => refusal(error),
        Error::Count(error) => counter::failure(error),
        Error::Twice { .. } | Error::TooMany(_) => usage(error),
    }
}
