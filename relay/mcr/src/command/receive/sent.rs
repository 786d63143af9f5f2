//! `mcr receive --sent FILE`: compares what arrived with the report of `mcr send --line`.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use traffic::report::{Judgement, ReceiveReport, SendReport, UnionReport};

use crate::command::traffic_run::packets;
use crate::failure::{Failure, usage};
use crate::render;

/// How long a sender may take to end after its last packet.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts to read its report.
const TICK: Duration = Duration::from_millis(50);

/// Judges each endpoint, which should have received the whole stream.
pub(super) fn judge(
    report: &mut ReceiveReport,
    file: &Path,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let sent = read(file, stop)?;
    for endpoint in &mut report.endpoints {
        endpoint.judge(&sent);
    }
    Ok(())
}

/// One endpoint's judgement in words.
pub(super) fn text(at: &str, judged: &Judgement) -> String {
    format!(
        "\n{at}: {} of {} that went on some line, {} missing, {} twice, {} out of order beyond them\n",
        render::count(judged.received),
        packets(judged.on_any),
        render::count(judged.missing),
        render::count(judged.twice),
        render::count(judged.reordered),
    )
}

/// Reads the report, and waits for a sender that is about to write it.
fn read(file: &Path, stop: &AtomicBool) -> Result<UnionReport, Failure> {
    let start = Instant::now();
    loop {
        let error = match union(file) {
            Ok(union) => return Ok(union),
            Err(error) => error,
        };
        if start.elapsed() > PATIENCE || stop.load(Ordering::Relaxed) {
            return Err(usage(format!("--sent {}: {error}", file.display())));
        }
        thread::sleep(TICK);
    }
}

fn union(file: &Path) -> Result<UnionReport, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let report: SendReport = serde_json::from_str(&text)
        .map_err(|error| format!("not what mcr send --json prints: {error}"))?;
    let problem = "of no lines; it has to be that of mcr send --line … --json";
    report.union.ok_or_else(|| problem.to_owned())
}
