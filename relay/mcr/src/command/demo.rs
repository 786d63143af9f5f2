//! `mcr demo`: relays real multicast in namespaces of its own and shows what happens.

mod fleet;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::reply::Stats;
use comfy_table::{Cell, ColumnConstraint};
use compile::placement::PathChoice;
use lab::demo::{Delivery, Event, Options, Report};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Failure, OrFail, SIGNALS, Status, unavailable, verdict};
use crate::render::{self, Column, count};
use crate::rows;

/// See it work: relay multicast between namespaces made for it.
///
/// Makes a sender, a snooping switch, a relay and a receiver in network namespaces of their own,
/// starts the daemon with four rules, sends, receives with mcr and with socat, and checks that
/// every packet arrived and every counter adds up. Takes everything away again. Needs root.
/// Exits with status 5 when a packet is missing.
///
/// With --fleet: three members of etcd and two relays of a fleet; the host of the one that forwards
/// dies, and the other takes over. Status 5 then means that a packet came twice.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mcr demo
  mcr demo --path userspace --rate 10000 --duration 10
  mcr demo --fleet")]
pub(crate) struct Args {
    /// Packets per second of each stream
    #[arg(long, value_name = "PPS", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Seconds to send
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    duration: u32,
    /// Bytes of UDP payload
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=1472))]
    size: u32,
    /// Path to relay on
    #[arg(long, value_name = "PATH", default_value = "auto", value_parser = rows::word::<PathChoice>())]
    path: PathChoice,
    /// Show a fleet instead: a relay dies, another takes over (needs etcd)
    #[arg(long)]
    fleet: bool,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    super::require_root("demo")?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let caught = signal_hook::flag::register(signal, Arc::clone(&stop));
        caught.or_fail(SIGNALS, Status::Unavailable)?;
    }
    if args.fleet {
        return fleet::run(args, json, &stop);
    }
    let options = Options {
        rate_pps: args.rate,
        duration_s: args.duration,
        size: args.size,
        path: args.path.to_string(),
    };
    let mut progress = Progress::new(json);
    let outcome = lab::demo::run(&options, &stop, |event| Ok(progress.show(&event)?));
    let report = outcome.map_err(|error| failure(&error, &stop))?;
    if json {
        render::json(&report)?;
    } else {
        progress.clear_table()?;
        render::text(&summary(&report))?;
    }
    Ok(verdict(report.is_success()))
}

fn failure(error: &anyhow::Error, stop: &AtomicBool) -> Failure {
    if stop.load(Ordering::Relaxed) {
        let message = "interrupted; everything it made is gone";
        return Failure::new(Status::Refused, message);
    }
    match error.downcast_ref::<io::Error>() {
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            Failure::from(io::Error::from(io::ErrorKind::BrokenPipe))
        }
        _ => unavailable(error),
    }
}

/// Output while the demo runs: steps, and on a terminal a table redrawn in place.
struct Progress {
    is_quiet: bool,
    can_redraw: bool,
    drawn_lines: usize,
    earlier: Option<Stats>,
}

impl Progress {
    fn new(is_quiet: bool) -> Self {
        Self {
            is_quiet,
            can_redraw: io::stdout().is_terminal(),
            drawn_lines: 0,
            earlier: None,
        }
    }

    fn show(&mut self, event: &Event) -> io::Result<()> {
        if self.is_quiet {
            return Ok(());
        }
        match event {
            Event::Step(text) => render::text(text),
            Event::Running(stats) if self.can_redraw => self.draw(stats),
            Event::Running(stats) => self.print_line(stats),
        }
    }

    fn draw(&mut self, stats: &Stats) -> io::Result<()> {
        let table = render::stats::table(stats, self.earlier.as_ref().or(Some(stats)), false);
        self.clear_table()?;
        self.drawn_lines = table.lines().count() + 1;
        self.earlier = Some(stats.clone());
        render::text(&format!("\n{table}"))
    }

    /// Without a terminal: a line about once a second.
    fn print_line(&mut self, stats: &Stats) -> io::Result<()> {
        let earlier = self.earlier.as_ref().map(|stats| stats.uptime_seconds);
        if earlier.is_some_and(|earlier| stats.uptime_seconds < earlier + 1.0) {
            return Ok(());
        }
        self.earlier = Some(stats.clone());
        let received: u64 = stats.rules.iter().map(|rule| rule.received.packets).sum();
        let outputs = || stats.rules.iter().flat_map(|rule| &rule.outputs);
        let sent: u64 = outputs().map(|output| output.sent.packets).sum();
        let dropped: u64 = outputs().flat_map(|output| output.dropped.values()).sum();
        render::text(&format!(
            "relay: {} received, {} sent, {} dropped",
            render::count(received),
            render::count(sent),
            render::count(dropped)
        ))
    }

    /// Erases the table drawn last.
    fn clear_table(&mut self) -> io::Result<()> {
        if self.drawn_lines == 0 {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        write!(out, "\x1b[{}A\x1b[J", self.drawn_lines)?;
        self.drawn_lines = 0;
        out.flush()
    }
}

const DELIVERIES: &[Column<Delivery>] = &[
    ("RULE", |delivery| Cell::new(&delivery.rule)),
    ("SHOWS", |delivery| Cell::new(delivery.shows)),
    ("PATH", |delivery| Cell::new(&delivery.path)),
    ("OUTPUT", |delivery| Cell::new(&delivery.output)),
    ("RECEIVER", |delivery| Cell::new(delivery.receiver)),
    ("SENT", |delivery| Cell::new(count(delivery.sent))),
    ("RELAYED", |delivery| Cell::new(count(delivery.relayed))),
    ("RECEIVED", |delivery| Cell::new(count(delivery.delivered))),
    ("LOST", |delivery| Cell::new(count(delivery.lost))),
    ("P50 µs", |delivery| latency(delivery, 0)),
    ("P99 µs", |delivery| latency(delivery, 1)),
    ("MAX µs", |delivery| latency(delivery, 2)),
];

fn latency(delivery: &Delivery, index: usize) -> Cell {
    let text = |figures: [f64; 3]| format!("{:.0}", figures[index]);
    Cell::new(delivery.latency_us.map_or_else(|| "-".to_owned(), text))
}

fn summary(report: &Report) -> String {
    let mut table = render::table(DELIVERIES, &report.deliveries);
    if let Some(outputs) = table.column_mut(3) {
        outputs.set_constraint(ColumnConstraint::ContentWidth);
    }
    render::align_right(&mut table, 5..DELIVERIES.len());
    let law = match &report.broken_law {
        None => "accounting: received = dropped + sent for every output".to_owned(),
        Some(broken) => broken.clone(),
    };
    let lost: u64 = report.deliveries.iter().map(|delivery| delivery.lost).sum();
    let verdict = if report.is_success() {
        "delivered: every packet of every output, once and unharmed".to_owned()
    } else {
        format!(
            "FAILED: {} lost, {} not sent",
            render::number::things(lost, "packet"),
            render::count(report.send_errors)
        )
    };
    format!("\n{}\n\n{law}\n{verdict}\n", render::table_text(&table))
}
