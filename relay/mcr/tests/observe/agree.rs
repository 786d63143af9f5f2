//! The same numbers everywhere: each counter of `mcr stats --json` for a stream that has stopped is also in
//! the metrics, in the table and on the screen of `mcr top`.

mod merged;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use api::reply::{RuleStats, Stats};
use lab::process;

use super::top::Screen;
use crate::bed::{Bed, INPUT, OUTPUT};

const PACKETS: u64 = 3000;

/// The samples of the metrics, by name and labels.
type Samples = BTreeMap<String, f64>;

#[test]
fn every_number_is_the_same_wherever_it_is_shown() {
    for path in ["kernel", "userspace"] {
        let Some(bed) = Bed::with_tools(&["curl", "tmux"], &["--path", path]) else {
            return;
        };
        let outputs = [
            OUTPUT,
            "239.10.1.2%veth2:6002,ttl=dec",
            "239.10.1.3%veth2:6003,limit=100pps",
            "239.10.1.4%veth9:6004",
        ];
        let options = ["--name", "cam1", "--health", "content=rtp"];
        let rule = [
            &["add", INPUT][..],
            &outputs,
            &options,
            &["--limit", "2000pps"],
        ]
        .concat();
        bed.daemon.mcr(&rule).unwrap();
        send(&bed);
        bed.daemon.settled("cam1", PACKETS).unwrap();

        let (after, samples, moment) = metrics_agree(&bed, path, counted);
        let rule = &after.rules[0];
        let shown = on_screen(&bed, "veth9:6004");
        let table = bed.daemon.mcr(&["stats"]).unwrap();
        for (text, is_in_table) in displayed(rule) {
            assert!(shown.contains(&text), "{path}: no {text:?} in\n{shown}");
            let is_shown = !is_in_table || table.contains(&text);
            assert!(is_shown, "{path}: no {text:?} in\n{table}");
        }
        let seen = last_packets(rule, &samples, moment);
        // One of the outputs is down, and one may not pass a packet.
        assert_eq!(seen, 3, "{path}: {rule:?}");
        let report = bed.daemon.mcr(&["show", "cam1"]).unwrap();
        let wide = bed.daemon.mcr(&["stats", "-o", "wide"]).unwrap();
        for text in [shown, report, wide] {
            let count = text.matches("last packet ").count();
            assert_eq!(count, seen, "{path}:\n{text}");
        }
    }
}

/// Expects that the metrics have what is `counted`, and no other drops. Returns the statistics, the metrics
/// and when both were read.
fn metrics_agree(bed: &Bed, path: &str, counted: fn(&Stats) -> Samples) -> (Stats, Samples, f64) {
    let before = stats(bed);
    let samples = metrics(bed);
    let after = stats(bed);
    let moment = since_the_epoch();
    assert_eq!(counted(&before), counted(&after), "it has stopped");
    let expected = counted(&after);
    assert!(expected.len() > 20, "{expected:?}");
    for (series, value) in &expected {
        assert_eq!(samples.get(series), Some(value), "{path}: {series}");
    }
    for (series, value) in &samples {
        if series.contains("_dropped_packets_total") {
            let counted = expected.get(series).unwrap_or(&0.0);
            assert_eq!(value, counted, "{path}: {series}");
        }
    }
    (after, samples, moment)
}

#[test]
fn the_last_packet_is_remembered_over_a_killed_daemon() {
    for path in ["kernel", "userspace"] {
        let Some(mut bed) = Bed::with_tools(&["curl"], &["--path", path]) else {
            return;
        };
        let second = ["--input", "239.1.1.2%veth1:5001"];
        let rule = ["add", INPUT, OUTPUT, "--name", "cam1"];
        bed.daemon.mcr(&[&rule[..], &second].concat()).unwrap();
        assert_eq!(ago(&bed), (None, None), "{path}: nothing has come");
        let report = bed.daemon.mcr(&["show", "cam1"]).unwrap();
        assert!(!report.contains("last packet"), "{report}");

        send(&bed);
        bed.daemon.settled("cam1", PACKETS).unwrap();
        let sent = Instant::now();
        let (input, output) = seconds(&bed);
        assert!(input < 30.0 && output < 30.0, "{path}: {input} {output}");
        bed.daemon.kill().unwrap();
        thread::sleep(Duration::from_secs(3));
        bed.daemon.start_again().unwrap();
        let silent = sent.elapsed().as_secs_f64();
        let (input, output) = seconds(&bed);
        assert!(
            input >= silent && output >= silent,
            "{path}: {input} {output} of {silent}"
        );
        let samples = metrics(&bed);
        last_packets(&stats(&bed).rules[0], &samples, since_the_epoch());

        send(&bed);
        bed.daemon.settled("cam1", 2 * PACKETS).unwrap();
        let (input, output) = seconds(&bed);
        let since = sent.elapsed().as_secs_f64();
        assert!(
            input < since && output < since,
            "{path}: {input} {output} of {since}"
        );
    }
}

fn send(bed: &Bed) {
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args([
        "send",
        "239.1.1.1%veth0:5001",
        "--rate",
        "3000",
        "--ttl",
        "1",
    ]);
    command.args(["--count", &PACKETS.to_string(), "--size", "1000"]);
    command.args(["--framing", "rtp"]);
    let sent = process::run(command, Duration::from_secs(30)).unwrap();
    assert!(sent.status.success(), "{}", sent.stderr);
}

fn stats(bed: &Bed) -> Stats {
    serde_json::from_str(&bed.daemon.mcr(&["stats", "--json"]).unwrap()).unwrap()
}

fn metrics(bed: &Bed) -> Samples {
    let mut command = bed.chain.relay.command("curl");
    command
        .args(["-sf", "--unix-socket"])
        .arg(bed.daemon.socket());
    command.arg("http://mcr/metrics");
    let finished = process::run(command, Duration::from_secs(20)).unwrap();
    let text = finished.success().unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    });
    samples.collect()
}

/// How long ago the rule's first input received its last packet, and its output sent it. The second input
/// received none.
fn ago(bed: &Bed) -> (Option<f64>, Option<f64>) {
    let rule = bed.daemon.rule("cam1").unwrap();
    assert_eq!(rule.inputs[1].last_packet_seconds, None);
    let (input, output) = (&rule.inputs[0], &rule.outputs[0]);
    (input.last_packet_seconds, output.last_packet_seconds)
}

fn seconds(bed: &Bed) -> (f64, f64) {
    let (input, output) = ago(bed);
    (input.unwrap(), output.unwrap())
}

fn since_the_epoch() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs_f64()
}

/// Compares the times of last packets in the metrics with statistics of `moment`. Returns how many inputs and
/// outputs have any.
fn last_packets(rule: &RuleStats, samples: &Samples, moment: f64) -> usize {
    let (inputs, outputs) = (rule.inputs.iter(), rule.outputs.iter());
    let of_inputs = inputs.map(|input| ("input", &input.at, input.last_packet_seconds));
    let of_outputs = outputs.map(|output| ("output", &output.to, output.last_packet_seconds));
    let mut seen = 0;
    for (end, at, ago) in of_inputs.chain(of_outputs) {
        let name = format!("mcr_{end}_last_packet_timestamp_seconds");
        let sample = samples.get(&format!("{name}{{rule=\"cam1\",{end}=\"{at}\"}}"));
        let expected = ago.map(|ago| moment - ago);
        assert_eq!(sample.is_some(), expected.is_some(), "{end} {at}");
        if let (Some(sample), Some(expected)) = (sample, expected) {
            assert!((sample - expected).abs() < 2.0, "{sample} {expected}");
            seen += 1;
        }
    }
    seen
}

/// The statistics' counters of a stream, under their names in the metrics.
fn counted(stats: &Stats) -> Samples {
    let mut samples = counted_of_packets(stats);
    let mut add = |name: &str, value: f64| {
        samples.insert(format!("{name}{{rule=\"cam1\"}}"), value);
    };
    let health = stats.rules[0].health.as_ref();
    let rtp = health.and_then(|health| health.rtp).unwrap();
    add("mcr_rtp_packets_total", rtp.packets as f64);
    add("mcr_rtp_lost_packets_total", rtp.lost as f64);
    add("mcr_rtp_reordered_packets_total", rtp.reordered as f64);
    add("mcr_rtp_duplicated_packets_total", rtp.duplicated as f64);
    add("mcr_rtp_restarts_total", rtp.restarts as f64);
    add("mcr_rtp_ssrc_changes_total", rtp.ssrc_changes as f64);
    add("mcr_rtp_jitter_seconds", rtp.jitter_seconds);
    samples
}

/// Their counters of any rule.
fn counted_of_packets(stats: &Stats) -> Samples {
    let mut samples = Samples::new();
    let mut add = |name: &str, labels: &str, value: f64| {
        samples.insert(format!("{name}{{rule=\"cam1\"{labels}}}"), value);
    };
    let rule = &stats.rules[0];
    let mut received = |end: &str, labels: &str, volume: api::reply::Traffic| {
        let name = format!("mcr_{end}_received");
        add(
            &format!("{name}_packets_total"),
            labels,
            volume.packets as f64,
        );
        add(&format!("{name}_bytes_total"), labels, volume.bytes as f64);
    };
    received("rule", "", rule.received);
    for input in &rule.inputs {
        received("input", &format!(",input=\"{}\"", input.at), input.received);
    }
    for (reason, count) in &rule.dropped {
        let labels = format!(",reason=\"{reason}\"");
        add("mcr_rule_dropped_packets_total", &labels, *count as f64);
    }
    for output in &rule.outputs {
        let labels = format!(",output=\"{}\"", output.to);
        add(
            "mcr_output_sent_packets_total",
            &labels,
            output.sent.packets as f64,
        );
        add(
            "mcr_output_sent_bytes_total",
            &labels,
            output.sent.bytes as f64,
        );
        for (reason, count) in &output.dropped {
            let labels = format!("{labels},reason=\"{reason}\"");
            add("mcr_output_dropped_packets_total", &labels, *count as f64);
        }
    }
    for residence in &rule.residence {
        let labels = format!(",path=\"{}\"", residence.path);
        add("mcr_residence_seconds_sum", &labels, residence.sum_seconds);
        add(
            "mcr_residence_seconds_count",
            &labels,
            residence.samples as f64,
        );
    }
    samples
}

/// The rule's detail in `mcr top`, on a terminal that is large enough for all of it.
fn on_screen(bed: &Bed, last: &str) -> String {
    let mcr = lab::binary::mcr().unwrap().display().to_string();
    let socket = bed.daemon.socket().display().to_string();
    let screen = Screen::start(&[mcr, "--socket".to_owned(), socket, "top".to_owned()]);
    screen.tmux(&["resize-window", "-x", "200", "-y", "60"]);
    screen.until("the rule is there", |text| text.contains("cam1 "));
    screen.press(&["Enter"]);
    screen.until("all outputs are shown", |text| {
        text.contains("q back") && text.contains(last)
    })
}

/// The texts about the rule, and whether the table has them too.
fn displayed(rule: &RuleStats) -> Vec<(String, bool)> {
    let mut texts = vec![
        (
            format!("received  {} packets, ", grouped(rule.received.packets)),
            false,
        ),
        (grouped(rule.received.packets), true),
    ];
    let drops = rule.outputs.iter().map(|output| &output.dropped);
    for (reason, count) in drops.chain([&rule.dropped]).flatten() {
        if *count > 0 {
            texts.push((format!("{reason} {}", grouped(*count)), true));
        }
    }
    for output in &rule.outputs {
        texts.push((
            format!("  sent    {} packets, ", grouped(output.sent.packets)),
            false,
        ));
        texts.push((grouped(output.sent.packets), true));
    }
    let rtp = rule.health.as_ref().and_then(|health| health.rtp).unwrap();
    texts.push((
        format!("{} lost, {} reordered", rtp.lost, rtp.reordered),
        false,
    ));
    let samples = rule.residence.iter().map(|residence| residence.samples);
    texts.extend(samples.map(|samples| (format!("(of {} looked at)", grouped(samples)), false)));
    texts
}

/// A number with its digits in groups of three.
fn grouped(number: u64) -> String {
    let digits: Vec<char> = number.to_string().chars().rev().collect();
    let groups = digits.chunks(3).map(|group| group.iter().collect());
    let reversed = groups.collect::<Vec<String>>().join(" ");
    reversed.chars().rev().collect()
}
