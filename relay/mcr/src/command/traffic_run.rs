//! What `mcr send` and `mcr receive` share: times, exit statuses, signals, progress.

use std::collections::VecDeque;
use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use rules::endpoint::Endpoint;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use traffic::endpoint::{self, Destination, Listen};
use traffic::receiver::Error;

use crate::failure::{Failure, OrFail, SIGNALS, Status, usage};
use crate::render;

/// A rate, with a decimal below 100: 0.5 packets a second is a rate, too.
pub(super) fn rate_text(pps: f64) -> String {
    if pps < 100.0 {
        format!("{pps:.1}")
    } else {
        render::count(pps.round() as u64)
    }
}

/// A count of packets in words.
pub(super) fn packets(count: u64) -> String {
    render::number::things(count, "packet")
}

/// Runs `work` while `show` shows its progress, with a function that returns whether it is over.
pub(super) fn watched<T: Send>(
    work: impl FnOnce() -> T + Send,
    show: impl FnOnce(&dyn Fn() -> bool),
) -> T {
    let outcome = thread::scope(|scope| {
        let run = scope.spawn(work);
        show(&|| run.is_finished());
        run.join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Draws a bar on a terminal until the run is over, or a counter without a total.
pub(super) fn watch_packets(total: Option<u64>, done: &AtomicU64, is_over: &dyn Fn() -> bool) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let template = match total {
        Some(_) => "{wide_bar} {done}/{all} packets {msg} {elapsed}",
        None => "{spinner} {done} packets {msg} {elapsed}",
    };
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    // Digits grouped as in all tables, not with commas.
    let counted = |state: &ProgressState, text: &mut dyn Write| grouped(state.pos(), text);
    let all = |state: &ProgressState, text: &mut dyn Write| {
        grouped(state.len().unwrap_or_default(), text);
    };
    let keyed_style = style.with_key("done", counted).with_key("all", all);
    let bar = ProgressBar::new(total.unwrap_or(0)).with_style(keyed_style);
    // The rate of the last second: an average would include the time before the first packet.
    let mut last_second = VecDeque::new();
    while !is_over() {
        let now = done.load(Ordering::Relaxed);
        last_second.push_back((Instant::now(), now));
        if last_second.len() > 11 {
            last_second.pop_front();
        }
        if let Some(&(then, before)) = last_second.front() {
            let seconds = then.elapsed().as_secs_f64().max(0.1);
            bar.set_message(format!("{}/s", rate_text((now - before) as f64 / seconds)));
        }
        bar.set_position(now);
        thread::sleep(Duration::from_millis(100));
    }
    bar.finish_and_clear();
}

/// Writes a count; writing the text of a bar cannot fail.
fn grouped(n: u64, text: &mut dyn Write) {
    text.write_str(&render::count(n)).unwrap_or_default();
}

/// Reads a time as `5`, which are seconds, `5s`, `500ms`, `10m` or `1h`.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let with_unit = |(unit, scale)| Some((text.strip_suffix(unit)?, scale));
    let (number, scale) = units.into_iter().find_map(with_unit).unwrap_or((text, 1.0));
    let seconds = number.parse::<f64>().map(|number| number * scale);
    let time = seconds
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "a time such as 5s, 500ms or 10m".to_owned())
}

/// Reads a number above 0 with an optional k, M or G.
pub(super) fn number(text: &str) -> Result<f64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        Some(b'G') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    match digits.parse::<f64>().map(|number| number * unit) {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        Ok(number) if number > 0.0 => Err("too large".to_owned()),
        Ok(_) => Err("must be above 0".to_owned()),
        Err(_) => Err("not a number such as 1500, 400k or 1M".to_owned()),
    }
}

/// The endpoints to receive on: `streams` of them, counted up from each of `first`.
pub(super) fn listens(first: &[Endpoint], streams: u32) -> Result<Vec<Listen>, Failure> {
    let all = counted_up(first, streams)?.into_iter();
    all.map(|at| Listen::resolve(&at).map_err(usage)).collect()
}

/// The destinations to send to, likewise.
pub(super) fn destinations(first: &[Endpoint], streams: u32) -> Result<Vec<Destination>, Failure> {
    let mut all = Vec::new();
    for endpoint in counted_up(first, streams)? {
        all.extend(Destination::resolve(&endpoint).map_err(usage)?);
    }
    Ok(all)
}

fn counted_up(first: &[Endpoint], streams: u32) -> Result<Vec<Endpoint>, Failure> {
    let all = first.iter().map(|first| endpoint::count_up(first, streams));
    Ok(all.collect::<Result<Vec<_>, _>>().map_err(usage)?.concat())
}

/// What SIGINT and SIGTERM set; a second one then ends the process at once.
pub(super) fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::default();
    let register = |signal| {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))
    };
    for signal in [SIGINT, SIGTERM] {
        register(signal).or_fail(SIGNALS, Status::Unavailable)?;
    }
    Ok(stop)
}

/// Why `mcr receive` cannot receive.
pub(super) fn refusal(error: Error) -> Failure {
    let status = match &error {
        Error::NoEndpoint | Error::InterfaceNeeded { .. } => Status::Usage,
        Error::NoInterface { .. } | Error::Wait(_) | Error::Cpu(_) => Status::Unavailable,
        Error::Socket { source, .. } => Status::of_system(source, Status::Unavailable),
    };
    Failure::new(status, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_may_have_their_unit() {
        assert_eq!(seconds("5"), Ok(Duration::from_secs(5)));
        assert_eq!(seconds("2.5s"), Ok(Duration::from_millis(2500)));
        assert_eq!(seconds("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(seconds("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(seconds("1h"), Ok(Duration::from_secs(3600)));
        assert!(seconds("5 minutes").is_err() && seconds("-1s").is_err());
    }
}
