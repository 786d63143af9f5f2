//! `mcr send`: multicast or unicast test traffic with a known schedule.

mod options;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use traffic::generator::{self, Control, Error, Options};
use traffic::report::SendReport;

pub(crate) use self::options::Args;
use crate::failure::{Failure, Status};
use crate::render;

/// Runs to the end and prints the account.
pub(crate) fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    let options = options::options(args)?;
    let control = Control::default();
    stop_on_signals(&control.stop)?;
    let report = std::thread::scope(|scope| {
        let run = scope.spawn(|| generator::run(&options, &control));
        show_progress(&options, &control, || run.is_finished());
        run.join()
    })
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    .map_err(failure)?;
    if let Some(error) = &report.first_error {
        eprintln!(
            "mcr send: the kernel refused {}; the first: {error}",
            packets(report.errors)
        );
    }
    print(&report, json)?;
    Ok(match report.errors {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(Status::Loss as u8),
    })
}

fn failure(error: Error) -> Failure {
    let status = match &error {
        Error::NoDestination
        | Error::Rate
        | Error::Percentage
        | Error::Size { .. }
        | Error::Family { .. }
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
        ..
    } = report;
    let megabits = if *seconds > 0.0 {
        sent.bytes as f64 * 8e-6 / seconds
    } else {
        0.0
    };
    let mut text = format!(
        "sent {}, {} bytes in {seconds:.3} s: {} packets/s, {megabits:.3} Mbit/s, {errors} errors\n",
        packets(sent.packets),
        sent.bytes,
        figure(*pps),
    );
    if let Some(injected) = injected {
        text += &format!(
            "on purpose: {} lost, {} duplicated, {} reordered, {} corrupt\n",
            injected.lost, injected.duplicated, injected.reordered, injected.corrupt
        );
    }
    Ok(render::text(&text)?)
}

/// Whole from 100 on, with a decimal below: 0.5 packets a second is a rate, too.
fn figure(pps: f64) -> String {
    let decimals = if pps < 100.0 { 1 } else { 0 };
    format!("{pps:.decimals$}")
}

/// A count of packets in words.
pub(super) fn packets(count: u64) -> String {
    format!("{count} packet{}", if count == 1 { "" } else { "s" })
}

fn show_progress(options: &Options, control: &Control, is_over: impl Fn() -> bool) {
    let total = generator::planned_packets(options);
    watch_packets(total, &control.sent, is_over);
}

/// Draws a bar on a terminal until the run is over, a counter where no total is known.
pub(super) fn watch_packets(total: Option<u64>, done: &AtomicU64, is_over: impl Fn() -> bool) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let template = match total {
        Some(_) => "{wide_bar} {human_pos}/{human_len} packets {msg} {elapsed}",
        None => "{spinner} {human_pos} packets {msg} {elapsed}",
    };
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    let bar = ProgressBar::new(total.unwrap_or(0)).with_style(style);
    // Of the last second: an average would take in the time before the first packet.
    let mut second = VecDeque::new();
    while !is_over() {
        let now = done.load(Ordering::Relaxed);
        second.push_back((Instant::now(), now));
        if second.len() > 11 {
            second.pop_front();
        }
        if let Some(&(then, before)) = second.front() {
            let seconds = then.elapsed().as_secs_f64().max(0.1);
            bar.set_message(format!("{}/s", figure((now - before) as f64 / seconds)));
        }
        bar.set_position(now);
        std::thread::sleep(Duration::from_millis(100));
    }
    bar.finish_and_clear();
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
        register(signal).map_err(Failure::of_signals)?;
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
