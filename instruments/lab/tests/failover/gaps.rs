//! How long nothing is relayed when the active input falls silent: measured at the sink, cut by cut.

use std::fmt::Write;
use std::time::Duration;

use lab::capture::Capture;
use lab::daemon::{Daemon, Options};
use lab::process;
use lab::topology::Chain;

use super::{A, B, GROUPS, rule};

/// Cuts of the active line, in turns.
const CUTS: u32 = 20;
/// Packets a second of each line.
const RATE: &str = "20000";
/// The first cut, and from one cut to the next.
const STEP: Duration = Duration::from_millis(1200);
/// How long a line is cut.
const CUT: Duration = Duration::from_millis(600);

#[test]
#[ignore = "long: make gaps"]
fn table() {
    println!(
        "| path | silence, ms | cuts | gap, ms: least | median | most | beyond silence, most |"
    );
    println!("|---|---|---|---|---|---|---|");
    for path in ["kernel", "userspace"] {
        for silence_ms in [200, 20, 5, 1] {
            let mut gaps = measure(path, silence_ms);
            gaps.sort_by(f64::total_cmp);
            let (least, median) = (gaps[0], gaps[gaps.len() / 2]);
            let most = gaps[gaps.len() - 1];
            println!(
                "| {path} | {silence_ms} | {} | {least:.2} | {median:.2} | {most:.2} | {:.2} |",
                gaps.len(),
                most - f64::from(silence_ms)
            );
        }
    }
}

/// The gap at each cut, in milliseconds.
fn measure(path: &str, silence_ms: u32) -> Vec<f64> {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .apply(&rule(&[A, B], &format!("\"{silence_ms}ms\"")))
        .unwrap();
    let capture = Capture::start_beside_load((&chain.sink, "veth3"), "udp dst port 6001").unwrap();
    let mut lines = [String::new(), String::new()];
    for cut in 0..CUTS {
        let start = STEP * (cut + 1);
        let line = &mut lines[cut as usize % 2];
        let (from, to) = (start.as_millis(), (start + CUT).as_millis());
        write!(line, ",cut={from}ms-{to}ms").unwrap();
    }
    let length = STEP * (CUTS + 2);
    let mut send = chain.sender.command(lab::binary::mcr().unwrap());
    send.args(["send", "--json", "--rate", RATE, "--size", "100"]);
    send.args(["--duration", &length.as_secs_f64().to_string()]);
    for (group, faults) in GROUPS.iter().zip(&lines) {
        send.arg("--line")
            .arg(format!("{group}%veth0:5001{faults}"));
    }
    process::run(send, length + super::PATIENCE)
        .unwrap()
        .success()
        .unwrap();
    let captured = capture.finish().unwrap();
    let rows = captured.fields("udp", &["frame.time_relative"]).unwrap();
    let times: Vec<f64> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    let gaps = (0..CUTS).map(|cut| {
        // The first packet arrived when the sender's clock was at 0.
        let start = (STEP * (cut + 1)).as_secs_f64();
        let span = start - 0.1..start + CUT.as_secs_f64() - 0.1;
        let near: Vec<f64> = times
            .iter()
            .copied()
            .filter(|time| span.contains(time))
            .collect();
        assert!(near.len() > 1000, "{} packets around cut {cut}", near.len());
        let gaps = near.windows(2).map(|pair| (pair[1] - pair[0]) * 1000.0);
        gaps.fold(0.0, f64::max)
    });
    gaps.collect()
}
