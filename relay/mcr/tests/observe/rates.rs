use std::time::{Duration, Instant};

use api::reply::{RuleStats, State};
use lab::process;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::bed::Bed;

const PROMISED: Duration = Duration::from_secs(2);
/// On a busy machine a sample may be late; it is enough if one of this many streams ends in time.
const STREAMS: usize = 5;

/// Tested in `mcr stats --json`, as a script sees it: every other view shows the same rates, and Prometheus
/// computes its own from counters, which no longer change.
#[test]
fn rates_are_zero_two_seconds_after_a_stream_ends() {
    for path in ["kernel", "userspace"] {
        let listen = ["--path", path, "--listen", "127.0.0.1:9191"];
        let Some(bed) = Bed::with_tools(&["curl"], &listen) else {
            return;
        };
        bed.add_watched("silence=1s");
        let mut took = Vec::new();
        for _ in 0..STREAMS {
            took.push(end_of_a_stream(&bed));
            if took.last().is_some_and(|took| *took <= PROMISED) {
                break;
            }
        }
        let least = took.iter().min().unwrap();
        assert!(*least <= PROMISED, "{path}: {took:?}");
    }
}

/// How long after its last packet a stream's rates are zero.
fn end_of_a_stream(bed: &Bed) -> Duration {
    let stream = bed.stream(1000);
    let flows = |rule: &RuleStats| rule.rates.packets_1s > 500.0 && rule.rates.bits_1s > 0.0;
    bed.daemon.wait_for("cam1", "it flows", flows).unwrap();
    let ended = Instant::now();
    stream.stop(Signal::SIGINT).unwrap();
    let counted = counters(bed);
    let zero = |rule: &RuleStats| (rule.rates.packets_1s, rule.rates.bits_1s) == (0.0, 0.0);
    bed.daemon.wait_for("cam1", "rates are zero", zero).unwrap();
    let took = ended.elapsed();

    let stats: Value = bed.json(&["stats", "--json"]);
    let rates = &stats["rules"][0]["rates"];
    assert_eq!(
        (&rates["packets_1s"], &rates["bits_1s"]),
        (&0.0.into(), &0.0.into())
    );
    assert_eq!(counters(bed), counted);
    let silent = |rule: &RuleStats| {
        let health = rule.health.as_ref();
        health.is_some_and(|health| health.state == State::Down)
    };
    bed.daemon.wait_for("cam1", "it is silent", silent).unwrap();
    took
}

/// The rule's counters of packets and bytes in the metrics.
fn counters(bed: &Bed) -> Vec<String> {
    let mut command = bed.chain.relay.command("curl");
    command.args(["-sf", "http://127.0.0.1:9191/metrics"]);
    let finished = process::run(command, Duration::from_secs(20)).unwrap();
    let text = finished.success().unwrap();
    let of_rule = text.lines().filter(|line| line.contains("rule=\"cam1\""));
    let lines: Vec<String> = of_rule
        .filter(|line| line.contains("_packets_total{") || line.contains("_bytes_total{"))
        .map(str::to_owned)
        .collect();
    assert!(lines.len() >= 4, "{text}");
    lines
}
