//! `mcr send`: multicast or unicast test traffic with a known schedule.

use std::io::IsTerminal;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use model::endpoint::Endpoint;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use traffic::capture::Capture;
use traffic::endpoint::{self, Destination};
use traffic::framing::Framing;
use traffic::generator::{self, Control, Error, Faults, Method, Options, Sizes};
use traffic::report::SendReport;

use crate::failure::{Failure, Status};
use crate::render;

/// Send test traffic that `mcr receive` can check.
///
/// Each destination is one stream; --rate, --bitrate, --count and --burst are per stream. Without
/// --count and --duration it sends until interrupted. Packets are paced from their due times: a
/// late one does not delay the next, and shows as latency at the receiver.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// GROUP%IFACE:PORT, or ADDRESS[%IFACE]:PORT for unicast; GROUP and
    /// PORT may be ranges, 239.1.1.0/24%eth0:5001-5010
    #[arg(required = true, value_name = "DESTINATION")]
    destinations: Vec<Endpoint>,
    /// Packets per second of each stream; "max" for as fast as possible
    #[arg(short, long, value_name = "PPS", default_value = "1000", value_parser = rate)]
    rate: Rate,
    /// Bits of UDP payload per second of each stream, such as 20M, in place of a packet rate
    #[arg(short, long, value_name = "BITS", value_parser = number, conflicts_with = "rate")]
    bitrate: Option<f64>,
    /// Packets of each stream; with --replay, rounds through the capture
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Seconds to send
    #[arg(short, long, value_name = "S", value_parser = seconds)]
    duration: Option<Duration>,
    /// Bytes of UDP payload: fixed (1024), a range (64-1400), a mix with weights
    /// (64:7,576:4,1400:1) or imix [default: 1024, or 7 MPEG-TS packets]
    #[arg(short, long, value_name = "BYTES")]
    size: Option<Sizes>,
    /// What stands around the header of the sequence check
    #[arg(short, long, value_enum, default_value_t)]
    framing: FramingArg,
    /// Streams from each destination on, group and port counting up together (239.1.1.1:5001,
    /// 239.1.1.2:5002, …; the last octet runs from 1 to 254)
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    streams: u32,
    /// Packets of a stream that leave together
    #[arg(long, value_name = "N")]
    burst: Option<u64>,
    /// Seconds during which the rate rises from 0
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "0")]
    ramp: Duration,
    /// Percentage of packets to leave out
    #[arg(long, value_name = "%", default_value_t = 0.0)]
    lose: f64,
    /// Percentage of packets to send twice
    #[arg(long, value_name = "%", default_value_t = 0.0)]
    duplicate: f64,
    /// Percentage of packets to send after their successor
    #[arg(long, value_name = "%", default_value_t = 0.0)]
    reorder: f64,
    /// Percentage of packets to send with a changed byte
    #[arg(long, value_name = "%", default_value_t = 0.0)]
    corrupt: f64,
    /// Seed of faults and sizes: the same seed makes the same choices
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Send the UDP datagrams of a pcap or pcapng file with its timing instead of test packets:
    /// the file's first flow to the first destination, and so on
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "bitrate", "size", "framing",
        "streams", "burst", "ramp", "lose", "duplicate", "reorder", "corrupt"])]
    replay: Option<PathBuf>,
    /// With --replay, how many times as fast as it was captured
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "replay")]
    speed: f64,
    /// How packets are handed to the kernel
    #[arg(long, value_enum, default_value_t)]
    method: MethodArg,
    /// TTL or hop limit
    #[arg(long, default_value_t = 16)]
    ttl: u8,
    /// DSCP, 0 to 63
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..64))]
    dscp: u8,
    /// Source address; one that is not this host's takes raw frames
    #[arg(long, value_name = "ADDR")]
    source: Option<IpAddr>,
    /// Source port
    #[arg(long, value_name = "PORT")]
    sport: Option<u16>,
    /// CPU to run on
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum MethodArg {
    /// Raw frames for a foreign source address; else sockets, with segmentation offload for packets
    /// due at once from 100,000 packets per second on
    #[default]
    Auto,
    /// UDP sockets, sendmmsg
    Sockets,
    /// UDP sockets with segmentation offload
    Gso,
    /// Whole Ethernet frames with complete checksums
    Raw,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum FramingArg {
    /// Nothing
    #[default]
    Own,
    /// RTP, payload type 96
    Rtp,
    /// MPEG-TS packets of 188 bytes with continuity counters
    Ts,
    /// MPEG-TS packets in RTP, payload type 33
    RtpTs,
}

#[derive(Clone, Copy, Debug)]
enum Rate {
    Pps(f64),
    Max,
}

/// Runs to the end and prints the account.
pub(crate) fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    let options = options(args)?;
    let control = Control::default();
    stop_on_signals(&control.stop)?;
    let report = std::thread::scope(|scope| {
        let run = scope.spawn(|| generator::run(&options, &control));
        show_progress(&options, &control, || run.is_finished());
        run.join()
    })
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    .map_err(failure)?;
    print(&report, json)?;
    Ok(match report.errors {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(Status::Loss as u8),
    })
}

fn options(args: &Args) -> Result<Options, Failure> {
    let mut destinations = Vec::new();
    for first in &args.destinations {
        for endpoint in endpoint::count_up(first, args.streams).map_err(usage)? {
            destinations.extend(Destination::resolve(&endpoint).map_err(usage)?);
        }
    }
    let framing = match args.framing {
        FramingArg::Own => Framing::Own,
        FramingArg::Rtp => Framing::Rtp,
        FramingArg::Ts => Framing::Ts,
        FramingArg::RtpTs => Framing::RtpTs,
    };
    let usual = Sizes::Fixed(framing.usual_size());
    let sizes = args.size.clone().unwrap_or(usual);
    Ok(Options {
        rate_pps: rate_pps(args, &sizes),
        sizes,
        framing,
        count: args.count,
        duration: args.duration,
        burst: args.burst,
        ramp: args.ramp,
        faults: Faults {
            lose: args.lose,
            duplicate: args.duplicate,
            reorder: args.reorder,
            corrupt: args.corrupt,
        },
        seed: args.seed,
        replay: args.replay.as_deref().map(read_capture).transpose()?,
        speed: args.speed,
        method: match args.method {
            MethodArg::Auto => Method::Auto,
            MethodArg::Sockets => Method::Sockets,
            MethodArg::Gso => Method::Gso,
            MethodArg::Raw => Method::Raw,
        },
        ttl: args.ttl,
        dscp: args.dscp,
        source: args.source,
        source_port: args.sport,
        cpu: args.cpu,
        ..Options::to(destinations)
    })
}

fn rate_pps(args: &Args, sizes: &Sizes) -> Option<f64> {
    match (args.bitrate, args.rate) {
        (Some(bits), _) => Some(bits / 8.0 / sizes.mean()),
        (None, Rate::Pps(rate)) => Some(rate),
        (None, Rate::Max) => None,
    }
}

fn read_capture(path: &Path) -> Result<Capture, Failure> {
    let capture = Capture::open(path).map_err(usage)?;
    eprintln!(
        "{}: {} datagrams in {} flows over {:.3} s, {} other packets left out",
        path.display(),
        capture.datagrams(),
        capture.flows.len(),
        capture.length_ns() as f64 / 1e9,
        capture.skipped
    );
    Ok(capture)
}

fn failure(error: Error) -> Failure {
    let status = match &error {
        Error::NoDestination
        | Error::Rate
        | Error::Percentage
        | Error::Size { .. }
        | Error::Raw { .. } => Status::Usage,
        Error::NoInterface { .. } | Error::Interfaces(_) | Error::Cpu { .. } => Status::Unavailable,
        Error::Socket { source, .. } => status_of(source),
    };
    Failure::new(status, error)
}

fn print(report: &SendReport, json: bool) -> Result<(), Failure> {
    if json {
        return Ok(render::json(report)?);
    }
    let SendReport {
        sent,
        seconds,
        pps,
        errors,
        injected,
    } = report;
    let megabits = if *seconds > 0.0 {
        sent.bytes as f64 * 8e-6 / seconds
    } else {
        0.0
    };
    let mut text = format!(
        "sent {} packets, {} bytes in {seconds:.3} s: {pps:.0} packets/s, {megabits:.3} Mbit/s, {errors} errors\n",
        sent.packets, sent.bytes,
    );
    if let Some(injected) = injected {
        text += &format!(
            "on purpose: {} lost, {} duplicated, {} reordered, {} corrupt\n",
            injected.lost, injected.duplicated, injected.reordered, injected.corrupt
        );
    }
    Ok(render::text(&text)?)
}

/// Draws a bar on a terminal until the run is over.
fn show_progress(options: &Options, control: &Control, is_over: impl Fn() -> bool) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let streams = options.destinations.len() as f64;
    let by_time = options.duration.zip(options.rate_pps);
    let by_time = by_time.map(|(time, rate)| (time.as_secs_f64() * rate * streams) as u64);
    let by_count = options.count.map(|count| count * streams as u64);
    let bar = match by_count.into_iter().chain(by_time).min() {
        Some(total) => ProgressBar::new(total).with_style(
            ProgressStyle::with_template(
                "{wide_bar} {human_pos}/{human_len} packets {per_sec} {eta}",
            )
            .expect("the template is well-formed"),
        ),
        None => ProgressBar::new_spinner().with_style(
            ProgressStyle::with_template("{spinner} {human_pos} packets {per_sec} {elapsed}")
                .expect("the template is well-formed"),
        ),
    };
    while !is_over() {
        bar.set_position(control.sent.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(100));
    }
    bar.finish_and_clear();
}

fn rate(text: &str) -> Result<Rate, String> {
    match text {
        "max" => Ok(Rate::Max),
        _ => number(text).map(Rate::Pps),
    }
}

/// Reads a number above 0 with an optional k, M or G.
fn number(text: &str) -> Result<f64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        Some(b'G') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    match digits.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number * unit),
        Ok(_) => Err("must be above 0".to_owned()),
        Err(_) => Err("not a number such as 1500, 400k or 1M".to_owned()),
    }
}

/// Reads a length of time in seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

pub(super) fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::new(Status::Usage, error)
}

/// Has SIGINT and SIGTERM set `stop`; a second one then ends the process at once.
pub(super) fn stop_on_signals(stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let register = |signal| {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(stop))?;
        flag::register(signal, Arc::clone(stop))
    };
    for signal in [SIGINT, SIGTERM] {
        register(signal).map_err(|error| {
            let message = format!("cannot handle signal {signal}: {error}");
            Failure::new(Status::Unavailable, message)
        })?;
    }
    Ok(())
}

/// The exit status for the kernel's refusal to set up a socket.
pub(super) fn status_of(error: &std::io::Error) -> Status {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => Status::Privilege,
        _ => Status::Unavailable,
    }
}
