//! `mcr bench wire send`: the generator, which runs the trials.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rules::endpoint::Endpoint;
use socket2::{Domain, Socket, Type};
use traffic::generator::Options;
use traffic::wire::channel;
use traffic::wire::host::Host;
use traffic::wire::message::TRIAL_SECONDS;
use traffic::wire::remote::{self, Remote};
use traffic::wire::trial::{self, Error, Tester, interfaces};
use traffic::wire::verifier::Verifier;

use super::measure::{Plan, measure};
use super::{ethernet, receive, relay, text};
use crate::command::send;
use crate::command::traffic_run::{destinations, listens, number, stop_on_signals};
use crate::control::Control;
use crate::failure::{Failure, OrFail, Status, unavailable, usage, verdict};
use crate::render;

/// Offer loads, ask the verifier what arrived, and report rates, loss, latency and what limits.
///
/// For each size the highest rate without loss is searched for, then confirmed by a trial of
/// --seconds (RFC 2544, section 26.1; it asks for 60). With several streams it then sends to 1, 2, 4
/// and so on of them at half of that rate (RFC 3918, section 7.1: group capacity). Latency is
/// measured in every trial, from the intended send time to the verifier's ingress.
#[derive(Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  mcr bench wire send 239.1.1.1%eth0:5001 --verifier 192.0.2.7:2544
  mcr bench wire send 239.1.1.0/24%eth0:5001 --verifier 192.0.2.7:2544 --sizes 1316 --seconds 60
  mcr bench wire send 239.1.1.1%eth0:5001 --receive 239.10.1.1%eth1:6001 --json   both on one host"
)]
pub(super) struct Args {
    /// GROUP%IFACE:PORT, one stream each; GROUP and PORT may be ranges
    #[arg(required = true, value_name = "DESTINATION", add = crate::completion::endpoint())]
    destinations: Vec<Endpoint>,
    /// Streams from each destination on, group and port counting up together as with `mcr send`
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    streams: u32,
    /// The verifier: where `mcr bench wire receive` listens
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "receive")]
    verifier: Option<String>,
    /// Count on this host instead, at these endpoints: a bench of one host with two interfaces
    #[arg(long, value_name = "ENDPOINT", num_args = 1.., conflicts_with = "verifier",
        add = crate::completion::endpoint())]
    receive: Vec<Endpoint>,
    /// The highest rate to try, packets per second over all streams
    #[arg(short, long, value_name = "PPS", default_value = "1M", value_parser = number)]
    rate: f64,
    /// Sizes of the UDP payload
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "64,512,1024,1400",
        value_parser = clap::value_parser!(u16).range(32..=65_507))]
    sizes: Vec<u16>,
    /// Length of the trials that confirm a rate
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = length)]
    seconds: f64,
    /// The most groups to forward at once [default: all streams]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    groups: Option<u32>,
    /// The control socket of an MCR between the two, if it runs on this host: its drops are told by
    /// rule and reason
    #[arg(long, value_name = "PATH")]
    relay_socket: Option<PathBuf>,
    /// TTL or hop limit
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..))]
    ttl: u8,
    /// CPU to send from
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

pub(super) fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    let options = options(args)?;
    let own = Host::describe(&interfaces(&options.destinations));
    ethernet::check_sizes(&args.sizes, &options.destinations, &own)?;
    let relay = args.relay_socket.as_deref().map(relay::open).transpose()?;
    let stop = stop_on_signals()?;
    let report = match &args.verifier {
        Some(at) => {
            let remote = Remote::connect(at, &own, Arc::clone(&stop));
            drive(args, options, own, remote, relay, &stop)
        }
        None => run_locally(args, options, own, relay, &stop),
    }?;
    render::reply(json, &report, || text::of(&report))?;
    let mut sizes = report.throughput.iter();
    Ok(verdict(sizes.all(|size| size.zero_loss_pps > 0.0)))
}

/// Runs a verifier of its own in this process, with the same protocol.
fn run_locally(
    args: &Args,
    options: Options,
    own: Host,
    relay: Option<Control>,
    stop: &Arc<AtomicBool>,
) -> Result<super::report::Report, Failure> {
    let listens = listens(&args.receive, args.streams)?;
    let verifier = Verifier::open(&listens).map_err(receive::failure)?;
    let pair = Socket::pair(Domain::UNIX, Type::STREAM, None);
    let (near, far) = pair.or_fail("cannot reach a verifier here", Status::Unavailable)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| verifier.converse(far, &is_over));
        let remote = Remote::open(near, &own, Arc::clone(stop));
        let report = drive(args, options, own, remote, relay, stop);
        is_over.store(true, Ordering::Relaxed);
        report
    })
}

fn drive(
    args: &Args,
    options: Options,
    own: Host,
    remote: Result<Remote, remote::Error>,
    relay: Option<Control>,
    stop: &Arc<AtomicBool>,
) -> Result<super::report::Report, Failure> {
    let remote = remote.map_err(|error| failure(Error::Remote(error)))?;
    let tester = Tester::new(options, remote, own, Arc::clone(stop)).map_err(failure)?;
    let plan = Plan {
        rate_pps: args.rate,
        seconds: args.seconds,
        sizes: args.sizes.iter().copied().map(usize::from).collect(),
        groups: args.groups.map(|groups| groups as usize),
    };
    let outcome = measure(tester, relay, &plan, |step| eprintln!("{step}"));
    outcome.map_err(|error| match error.downcast::<trial::Error>() {
        Ok(error) => failure(error),
        Err(error) => unavailable(error),
    })
}

fn options(args: &Args) -> Result<Options, Failure> {
    let destinations = destinations(&args.destinations, args.streams)?;
    let streams = destinations.len();
    if let Some(groups) = args.groups.filter(|groups| *groups as usize > streams) {
        let message = format!("--groups {groups}: only {streams} streams are named");
        return Err(usage(message));
    }
    Ok(Options {
        ttl: args.ttl,
        cpu: args.cpu,
        segmentation: sys::udp::option::has_segmentation(),
        ..Options::to(destinations)
    })
}

fn failure(error: Error) -> Failure {
    let status = match &error {
        Error::Places { .. } => Status::Usage,
        Error::Silent { .. } => Status::Loss,
        Error::Interrupted | Error::Remote(remote::Error::Channel(channel::Error::Stopped)) => {
            return Failure::with_code(130, "interrupted");
        }
        Error::Remote(_) => Status::Unavailable,
        Error::Generator(error) => send::status(error),
    };
    Failure::new(status, error)
}

/// Reads a length of a trial.
fn length(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok();
    let seconds = parsed.filter(|seconds| (0.1..=TRIAL_SECONDS).contains(seconds));
    seconds.ok_or_else(|| format!("not a number of seconds from 0.1 to {TRIAL_SECONDS}"))
}
