//! `mcr receive`: join, receive, check sequences, measure latency.

pub(super) mod counter;
mod sent;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::ValueEnum;
use comfy_table::Cell;
use rules::endpoint::Endpoint;
use traffic::latency::Summary;
use traffic::receiver::{self, Control, Options};
use traffic::report::{EndpointReport, ReceiveReport, Tally};

use super::traffic_run::{listens, packets, refusal, stop_on_signals, watch_packets, watched};
use crate::failure::{Failure, verdict};
use crate::render::{self, Column, count, number};

/// Receive streams and check them: loss, duplicates, order, corruption, latency.
///
/// Streams of mcr send are checked by its own numbers, others by those of RTP or the continuity
/// counters of MPEG-TS. Ends at --count, --duration or --idle, or when interrupted, and then prints
/// its account. Exits with status 5 when packets were lost or corrupt. With --sent it knows what the
/// sender left out, and asks for the rest, each once.
#[derive(Clone, Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  mcr receive 239.10.1.1%eth1:6001 --count 1000
  mcr receive 10.0.0.5@232.1.1.1%eth1:5001 --duration 10s --json           (S,G)"
)]
pub(crate) struct Args {
    /// [SOURCE@]GROUP%IFACE:PORT, or ADDRESS[%IFACE]:PORT for unicast; GROUP and
    /// PORT may be ranges
    #[arg(required = true, value_name = "ENDPOINT", add = crate::completion::endpoint())]
    endpoints: Vec<Endpoint>,
    /// End after this many packets in all
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// End after this time, such as 10s or 5m
    #[arg(short, long, value_name = "TIME", value_parser = super::traffic_run::seconds)]
    duration: Option<Duration>,
    /// End when nothing has arrived for this time [default: 10s with --expect or --sent alone]
    #[arg(long, value_name = "TIME", value_parser = super::traffic_run::seconds)]
    idle: Option<Duration>,
    /// Exit with status 5 unless exactly this many packets arrive in all, each once; ends the run
    /// when they have
    #[arg(short, long, value_name = "N")]
    expect: Option<u64>,
    /// The JSON of `mcr send --line`, looked for at the end: exit with status 5 unless everything
    /// that went on any line arrived at each endpoint, once
    #[arg(long, value_name = "FILE", conflicts_with = "expect")]
    sent: Option<PathBuf>,
    /// Endpoints from each endpoint on, group and port counting up together as with `mcr send`
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    streams: u32,
    /// Where packets are counted
    #[arg(long, value_enum, default_value_t)]
    method: Method,
    /// CPU to run on
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Method {
    /// In sockets: everything is checked, payload checksums and streams of other tools too
    #[default]
    Sockets,
    /// In BPF at ingress, millions a second: sequence and latency of mcr's streams, whatever their
    /// framing; what it counts goes no further
    Bpf,
}

/// Receives to the end and prints the report.
pub(crate) fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    let options = options(args)?;
    let control = Control {
        stop: stop_on_signals()?,
        ..Control::default()
    };
    let receive = || match args.method {
        Method::Sockets => receiver::run(&options, &control).map_err(refusal),
        Method::Bpf => counter::run(&options, &control),
    };
    let mut report = watched(receive, |is_over| {
        show_progress(&options, &control, is_over)
    })?;
    let sent_report = args.sent.as_deref();
    let judged = sent_report.map_or(Ok(()), |file| sent::judge(&mut report, file, &control.stop));
    remark(args, &report.total);
    render::reply(json, &report, || text(&report))?;
    judged?;
    Ok(verdict(is_complete(args, &report)))
}

/// Prints to standard error what the table has no column for.
fn remark(args: &Args, total: &Tally) {
    let note = |count, what| {
        if count > 0 {
            eprintln!("mcr receive: {} {what}", packets(count));
        }
    };
    note(
        total.receiver_dropped,
        "reached this host but found the receiver's buffers full; --method bpf counts without \
         buffers",
    );
    note(
        total.continuity_errors,
        "behind a gap in MPEG-TS that RTP's numbers do not show: lost before it came into RTP",
    );
    if total.restarts > 0 {
        let restarts = render::number::things(total.restarts, "RTP restart");
        eprintln!("mcr receive: {restarts}: what is missing there is not known");
    }
    let unchecked = match args.method {
        Method::Sockets => {
            "without a number of mcr's, RTP's or MPEG-TS's: loss cannot be seen there"
        }
        Method::Bpf => {
            "not of mcr send: loss cannot be seen there; --method sockets checks RTP and \
             MPEG-TS"
        }
    };
    note(total.unchecked, unchecked);
    let short = args.count.filter(|&count| total.packets < count);
    if let Some(expect) = args
        .expect
        .filter(|&expect| expect != total.packets)
        .or(short)
    {
        eprintln!(
            "mcr receive: expected {}, received {}",
            packets(expect),
            render::count(total.packets)
        );
    }
}

fn options(args: &Args) -> Result<Options, Failure> {
    Ok(Options {
        endpoints: listens(&args.endpoints, args.streams)?,
        count: args.count.or(args.expect),
        duration: args.duration,
        idle: args.idle.or_else(|| default_idle(args)),
        cpu: args.cpu,
    })
}

/// A script that expects packets must not wait for ever for a lost one.
fn default_idle(args: &Args) -> Option<Duration> {
    let is_waiting = args.expect.is_some() || args.sent.is_some() && args.count.is_none();
    (is_waiting && args.duration.is_none()).then_some(Duration::from_secs(10))
}

/// Whether nothing was lost or changed, and exactly the expected packets arrived.
fn is_complete(args: &Args, report: &ReceiveReport) -> bool {
    let total = &report.total;
    let is_expected = |expect| total.packets == expect && total.duplicated == 0;
    // --duration or --idle may end the run before that.
    let has_count = args.count.is_none_or(|count| total.packets >= count);
    let mut judged = report
        .endpoints
        .iter()
        .filter_map(|one| one.union)
        .peekable();
    let is_whole = match judged.peek() {
        // Gaps in the numbers are the sender's own.
        Some(_) => total.corrupt == 0 && judged.all(|one| one.is_exact()),
        None => !total.has_loss(),
    };
    has_count && is_whole && args.expect.is_none_or(is_expected)
}

fn text(report: &ReceiveReport) -> String {
    let total = EndpointReport {
        at: "total".to_owned(),
        tally: report.total,
        union: None,
    };
    let total_row = Some(&total).filter(|_| report.endpoints.len() > 1);
    let table = render::table(COLUMNS, report.endpoints.iter().chain(total_row));
    let mut text = render::table_text(&table);
    if let Some(skew) = report.total.skew_us {
        let Summary { p50, p99, max, .. } = skew;
        let [p50, p99, max] = [p50, p99, max].map(number::tenths);
        text += &format!("\nskew between copies: P50 {p50} µs, P99 {p99} µs, max {max} µs\n");
    }
    for endpoint in &report.endpoints {
        let judged = endpoint.union.map(|union| sent::text(&endpoint.at, &union));
        text += &judged.unwrap_or_default();
    }
    text
}

const COLUMNS: &[Column<EndpointReport>] = &[
    ("ENDPOINT", |one| Cell::new(&one.at)),
    ("PACKETS", |one| Cell::new(count(one.tally.packets))),
    ("BYTES", |one| Cell::new(count(one.tally.bytes))),
    ("LOST", |one| Cell::new(count(one.tally.lost))),
    ("DUPLICATED", |one| Cell::new(count(one.tally.duplicated))),
    ("REORDERED", |one| Cell::new(count(one.tally.reordered))),
    ("CORRUPT", |one| Cell::new(count(one.tally.corrupt))),
    ("MIN µs", |one| latency(one.tally.latency_us.min)),
    ("P50 µs", |one| latency(one.tally.latency_us.p50)),
    ("P99 µs", |one| latency(one.tally.latency_us.p99)),
    ("MAX µs", |one| latency(one.tally.latency_us.max)),
];

fn latency(us: Option<f64>) -> Cell {
    Cell::new(number::tenths(us))
}

/// Prints when everything is joined, then draws a counter on a terminal until the run is over.
fn show_progress(options: &Options, control: &Control, is_over: &dyn Fn() -> bool) {
    while !control.ready.load(Ordering::Acquire) {
        if is_over() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let endpoints = options.endpoints.len() as u64;
    eprintln!(
        "receiving on {}",
        render::number::things(endpoints, "endpoint")
    );
    watch_packets(options.count, &control.received, is_over);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_groups_of_digits() {
        let tally = Tally {
            packets: 12_000,
            bytes: 12_288_000,
            ..Tally::default()
        };
        let all = EndpointReport {
            at: "all".to_owned(),
            tally,
            union: None,
        };
        let contents = COLUMNS.iter().map(|(_, cell)| cell(&all).content());
        let row: Vec<String> = contents.collect();
        assert_eq!(row[..4], ["all", "12 000", "12 288 000", "0"]);
    }
}
