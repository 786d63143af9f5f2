//! `mcr receive`: join, receive, check sequences, measure latency.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use traffic::endpoint::{self, Listen};
use traffic::latency::Summary;
use traffic::receiver::{self, Control, Error, Options};
use traffic::report::{ReceiveReport, Tally};

use super::send::{status_of, stop_on_signals};

/// Receive streams and check them: loss, duplicates, order, corruption, latency.
///
/// Ends at --count, --duration or --idle, or when interrupted, and then prints its account. Exits
/// with status 5 when packets were lost or corrupt.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// [SOURCE@]GROUP%IFACE:PORT, or ADDRESS[%IFACE]:PORT for unicast; PORT may be a range
    #[arg(required = true, value_name = "ENDPOINT")]
    endpoints: Vec<String>,
    /// End after this many packets in all
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// End after this many seconds
    #[arg(short, long, value_name = "S", value_parser = super::send::seconds)]
    duration: Option<Duration>,
    /// End when nothing has arrived for this many seconds
    #[arg(long, value_name = "S", value_parser = super::send::seconds)]
    idle: Option<Duration>,
    /// Exit with status 5 unless exactly this many packets arrive in all, each once; ends the run
    /// when they have
    #[arg(short, long, value_name = "N")]
    expect: Option<u64>,
    /// Endpoints from each endpoint on, group and port counting up together as with `mcr send`
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    streams: u32,
    /// CPU to run on
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

/// Runs to the end and prints the account.
pub(crate) fn run(args: &Args, json: bool) -> ExitCode {
    match receive(args) {
        Ok(report) => {
            print(&report, json);
            ExitCode::from(verdict(args, &report))
        }
        Err((error, status)) => {
            eprintln!("mcr receive: {error}");
            ExitCode::from(status)
        }
    }
}

fn receive(args: &Args) -> Result<ReceiveReport, (String, u8)> {
    let options = options(args).map_err(|error| (error.to_string(), 2))?;
    let control = Control::default();
    stop_on_signals(&control.stop).map_err(|error| (error.to_string(), 69))?;
    let result = std::thread::scope(|scope| {
        let run = scope.spawn(|| receiver::run(&options, &control));
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
    let mut endpoints = Vec::new();
    for text in &args.endpoints {
        let parsed = endpoint::parse(text, args.streams)?;
        if args.streams == 1 {
            endpoints.push(parsed);
            continue;
        }
        endpoints.extend(parsed.addresses.iter().map(|&address| Listen {
            at: endpoint::describe(address, parsed.interface.as_deref()),
            addresses: vec![address],
            ..parsed.clone()
        }));
    }
    Ok(Options {
        endpoints,
        count: args.count.or(args.expect),
        duration: args.duration,
        idle: args.idle,
        cpu: args.cpu,
    })
}

/// 5 for loss, corruption, or anything but the packets expected.
fn verdict(args: &Args, report: &ReceiveReport) -> u8 {
    let total = &report.total;
    let expected = args.expect.is_none_or(|expect| {
        total.packets == expect && total.duplicated == 0 && total.corrupt == 0
    });
    if total.has_loss() || !expected { 5 } else { 0 }
}

fn status(error: &Error) -> u8 {
    match error {
        Error::NoEndpoint | Error::InterfaceNeeded { .. } => 2,
        Error::NoInterface { .. } | Error::Wait(_) | Error::Cpu(_) => 69,
        Error::Socket { source, .. } => status_of(source),
    }
}

fn print(report: &ReceiveReport, json: bool) {
    if json {
        println!(
            "{}",
            serde_json::to_string(report).expect("a report is plain data")
        );
        return;
    }
    let width = report
        .endpoints
        .iter()
        .map(|e| e.at.len())
        .max()
        .unwrap_or(0)
        .max(8);
    println!(
        "{:width$} {:>10} {:>12} {:>8} {:>10} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "endpoint",
        "packets",
        "bytes",
        "lost",
        "duplicated",
        "reordered",
        "corrupt",
        "min µs",
        "p50 µs",
        "p99 µs",
        "max µs"
    );
    for endpoint in &report.endpoints {
        print_row(&endpoint.at, width, &endpoint.tally);
    }
    if report.endpoints.len() > 1 {
        print_row("total", width, &report.total);
    }
}

fn print_row(name: &str, width: usize, tally: &Tally) {
    let Summary {
        min, p50, p99, max, ..
    } = tally.latency_us;
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.1}"));
    println!(
        "{name:width$} {:>10} {:>12} {:>8} {:>10} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9}",
        tally.packets,
        tally.bytes,
        tally.lost,
        tally.duplicated,
        tally.reordered,
        tally.corrupt,
        figure(min),
        figure(p50),
        figure(p99),
        figure(max)
    );
}

/// Says when everything is joined, and draws a counter on a terminal until the run is over.
fn show_progress(options: &Options, control: &Control, is_over: impl Fn() -> bool) {
    while !control.ready.load(Ordering::Acquire) {
        if is_over() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let endpoints = options.endpoints.len();
    eprintln!(
        "receiving on {endpoints} endpoint{}",
        if endpoints == 1 { "" } else { "s" }
    );
    if !std::io::stderr().is_terminal() {
        return;
    }
    let bar = ProgressBar::new(options.count.unwrap_or(0)).with_style(
        ProgressStyle::with_template(match options.count {
            Some(_) => "{wide_bar} {human_pos}/{human_len} packets {per_sec}",
            None => "{spinner} {human_pos} packets {per_sec} {elapsed}",
        })
        .expect("the template is well-formed"),
    );
    while !is_over() {
        bar.set_position(control.received.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(100));
    }
    bar.finish_and_clear();
}
