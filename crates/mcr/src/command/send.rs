//! `mcr send`: multicast or unicast test traffic with a known schedule.

use std::io::IsTerminal;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use traffic::endpoint::{self, Destination};
use traffic::generator::{self, Control, Error, Method, Options, Sizes};
use traffic::report::SendReport;

/// Send test traffic that `mcr receive` can check.
///
/// Each destination is one stream; --rate, --count and --burst are per stream. Without --count and
/// --duration it sends until interrupted.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// GROUP%IFACE:PORT, or ADDRESS[%IFACE]:PORT for unicast; PORT may be a range
    #[arg(required = true, value_name = "DESTINATION")]
    destinations: Vec<String>,
    /// Packets per second of each stream; "max" for as fast as possible
    #[arg(short, long, value_name = "PPS", default_value = "1000", value_parser = rate)]
    rate: Rate,
    /// Packets of each stream
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Seconds to send
    #[arg(short, long, value_name = "S", value_parser = seconds)]
    duration: Option<Duration>,
    /// Bytes of UDP payload
    #[arg(short, long, value_name = "BYTES", default_value_t = 1024)]
    size: usize,
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
    /// How packets are handed to the kernel
    #[arg(long, value_enum, default_value_t)]
    method: MethodArg,
    /// TTL or hop limit
    #[arg(long, default_value_t = 16)]
    ttl: u8,
    /// DSCP, 0 to 63
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..64))]
    dscp: u8,
    /// Source address, one of this host's
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
    /// Segmentation offload above 550,000 packets per second, sockets below
    #[default]
    Auto,
    /// UDP sockets, sendmmsg
    Sockets,
    /// UDP sockets with segmentation offload
    Gso,
}

#[derive(Clone, Copy, Debug)]
enum Rate {
    Pps(f64),
    Max,
}

/// Runs to the end and prints the account.
pub(crate) fn run(args: &Args, json: bool) -> ExitCode {
    match send(args) {
        Ok(report) => {
            print(&report, json);
            ExitCode::from(if report.errors > 0 { 5 } else { 0 })
        }
        Err((error, status)) => {
            eprintln!("mcr send: {error}");
            ExitCode::from(status)
        }
    }
}

fn send(args: &Args) -> Result<SendReport, (String, u8)> {
    let options = options(args).map_err(|error| (error.to_string(), 2))?;
    let control = Control::default();
    stop_on_signals(&control.stop).map_err(|error| (error.to_string(), 69))?;
    let result = std::thread::scope(|scope| {
        let run = scope.spawn(|| generator::run(&options, &control));
        show_progress(&options, &control, || run.is_finished());
        run.join()
    });
    match result {
        Ok(result) => result.map_err(|error| {
            let status = status(&error);
            (error.to_string(), status)
        }),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn options(args: &Args) -> Result<Options, endpoint::ParseError> {
    let mut destinations = Vec::new();
    for text in &args.destinations {
        let parsed = endpoint::parse(text, args.streams)?;
        destinations.extend(parsed.addresses.iter().map(|&address| Destination {
            address,
            interface: parsed.interface.clone(),
        }));
    }
    Ok(Options {
        rate_pps: match args.rate {
            Rate::Pps(rate) => Some(rate),
            Rate::Max => None,
        },
        count: args.count,
        duration: args.duration,
        sizes: Sizes::Fixed(args.size),
        burst: args.burst,
        ramp: args.ramp,
        method: match args.method {
            MethodArg::Auto => Method::Auto,
            MethodArg::Sockets => Method::Sockets,
            MethodArg::Gso => Method::Gso,
        },
        ttl: args.ttl,
        dscp: args.dscp,
        source: args.source,
        source_port: args.sport,
        cpu: args.cpu,
        ..Options::to(destinations)
    })
}

fn status(error: &Error) -> u8 {
    match error {
        Error::NoDestination | Error::Rate | Error::Size { .. } => 2,
        Error::NoInterface(_) | Error::Cpu { .. } => 69,
        Error::Socket { source, .. } => status_of(source),
    }
}

fn print(report: &SendReport, json: bool) {
    if json {
        println!(
            "{}",
            serde_json::to_string(report).expect("a report is plain data")
        );
        return;
    }
    let SendReport {
        sent,
        seconds,
        pps,
        errors,
        ..
    } = report;
    println!(
        "sent {} packets, {} bytes in {seconds:.3} s: {pps:.0} packets/s, {:.3} Mbit/s, {errors} errors",
        sent.packets,
        sent.bytes,
        if *seconds > 0.0 {
            sent.bytes as f64 * 8e-6 / seconds
        } else {
            0.0
        },
    );
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
    if text == "max" {
        return Ok(Rate::Max);
    }
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let rate: f64 = digits
        .parse()
        .map_err(|_| "not a number, 400k, 1M or max".to_owned())?;
    if rate.is_finite() && rate > 0.0 {
        Ok(Rate::Pps(rate * unit))
    } else {
        Err("must be above 0; use max for as fast as possible".to_owned())
    }
}

/// Reads a length of time in seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Has SIGINT and SIGTERM set `stop`; a second one then ends the process at once.
pub(super) fn stop_on_signals(stop: &Arc<AtomicBool>) -> std::io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(stop))?;
        flag::register(signal, Arc::clone(stop))?;
    }
    Ok(())
}

/// The exit status for the kernel's refusal to set up a socket.
pub(super) fn status_of(error: &std::io::Error) -> u8 {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => 77,
        _ => 69,
    }
}
