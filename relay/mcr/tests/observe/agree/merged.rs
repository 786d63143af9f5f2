//! The same for merged legs: what each of them received, what none did, and what the sender reports of both.

use std::time::Duration;

use api::reply::{InputStats, LineStats, RuleStats, Stats};
use lab::process;
use lab::socket::Sender;
use serde_json::Value;

use super::{PACKETS, Samples, counted_of_packets, grouped, metrics_agree, on_screen};
use crate::bed::{Bed, INPUT, OUTPUT};

const SECOND: &str = "239.1.1.2%veth1:5001";
/// Packets of the second leg that have no number.
const UNNUMBERED: u64 = 3;

#[test]
fn every_number_of_merged_lines_is_the_same_wherever_it_is_shown() {
    for path in ["kernel", "userspace"] {
        let Some(bed) = Bed::with_tools(&["curl", "tmux"], &["--path", path]) else {
            return;
        };
        let rule = ["add", INPUT, OUTPUT, "--name", "cam1", "--input", SECOND];
        let merge = ["--merge", "by=rtp,window=500ms,packets=4096"];
        bed.daemon.mcr(&[&rule[..], &merge].concat()).unwrap();
        let sent = send(&bed);
        let packets = of_legs(&sent, "sent").iter().sum::<u64>() + UNNUMBERED;
        bed.daemon.settled("cam1", packets).unwrap();
        bed.daemon
            .wait_for("cam1", "what the sender says", |rule| {
                is_as_sent(rule, &sent)
            })
            .unwrap();

        let (stats, ..) = metrics_agree(&bed, path, counted);
        let rule = &stats.rules[0];
        let shown = on_screen(&bed, OUTPUT);
        let wide = bed.daemon.mcr(&["stats", "-o", "wide"]).unwrap();
        for part in displayed(rule) {
            for text in [&shown, &wide] {
                assert!(text.contains(&part), "{path}: no {part:?} in\n{text}");
            }
        }
        let report = bed.daemon.mcr(&["show", "cam1"]).unwrap();
        let rows: Vec<Vec<&str>> = report.lines().map(words).collect();
        for input in &rule.inputs {
            let row = row(input);
            let is_shown = rows.iter().any(|words| words.starts_with(&words_of(&row)));
            assert!(is_shown, "{path}: no {row:?} in\n{report}");
        }
    }
}

/// Sends by legs that lose and repeat packets, and some packets that are not RTP.
fn send(bed: &Bed) -> Value {
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args(["send", "--json", "--framing", "rtp", "--size", "200"]);
    command.args(["--rate", "3000", "--count", &PACKETS.to_string()]);
    command.args(["--line", "239.1.1.1%veth0:5001,lose=5%"]);
    let second = "239.1.1.2%veth0:5001,lose=20%,duplicate=2%,delay=10ms";
    command.args(["--line", second]);
    let sent = process::run(command, Duration::from_secs(30)).unwrap();
    let source = "10.0.0.1".parse().unwrap();
    let sender = Sender::open((&bed.chain.sender, "veth0"), source).unwrap();
    for _ in 0..UNNUMBERED {
        let group = "239.1.1.2".parse().unwrap();
        sender.send(group, 5001, b"no RTP").unwrap();
    }
    serde_json::from_str(&sent.success().unwrap()).unwrap()
}

/// What the sender reports of each leg.
fn of_legs(sent: &Value, key: &str) -> Vec<u64> {
    let lines = sent["lines"].as_array().unwrap().iter();
    lines.map(|line| line[key].as_u64().unwrap()).collect()
}

fn is_as_sent(rule: &RuleStats, sent: &Value) -> bool {
    let of_inputs = |value: fn(&LineStats) -> u64| -> Vec<u64> {
        let lines = rule.inputs.iter().filter_map(|input| input.line.as_ref());
        lines.map(value).collect()
    };
    let lost = rule.merge.map(|merge| merge.lost);
    lost == sent["union"]["lost"].as_u64()
        && Some(of_inputs(|line| line.first).iter().sum()) == sent["union"]["on_any"].as_u64()
        && of_inputs(|line| line.missed) == of_legs(sent, "missed")
        && of_inputs(|line| line.repeated) == of_legs(sent, "duplicated")
        && of_inputs(|line| line.stray) == [0, UNNUMBERED]
}

/// The statistics' counters, under their names in the metrics.
fn counted(stats: &Stats) -> Samples {
    let mut samples = counted_of_packets(stats);
    let rule = &stats.rules[0];
    let mut add = |name: &str, labels: &str, value: f64| {
        samples.insert(format!("mcr_merge_{name}{{rule=\"cam1\"{labels}}}"), value);
    };
    let merge = rule.merge.unwrap();
    add("lost_packets_total", "", merge.lost as f64);
    add("streams_total", "", merge.streams as f64);
    add("unsettled_packets_total", "", merge.unsettled as f64);
    for input in &rule.inputs {
        let labels = format!(",input=\"{}\"", input.at);
        let line = input.line.unwrap();
        for (name, count) in [
            ("first", line.first),
            ("duplicate", line.duplicate),
            ("repeated", line.repeated),
            ("late", line.late),
            ("stray", line.stray),
            ("still", line.still),
            ("exceeded", line.exceeded),
            ("differently_cut", line.differently_cut),
            ("missed", line.missed),
        ] {
            add(&format!("{name}_packets_total"), &labels, count as f64);
        }
        add("skew_seconds", &labels, line.skew_seconds.as_f64());
        add("skew_max_seconds", &labels, line.skew_max_seconds.as_f64());
    }
    samples
}

/// The texts about the rule and its legs.
fn displayed(rule: &RuleStats) -> Vec<String> {
    let merge = rule.merge.unwrap();
    assert_eq!(merge.streams, 1, "{rule:?}");
    let mut texts = vec![format!(
        "{} lost on all legs, 1 stream begun",
        grouped(merge.lost)
    )];
    for input in &rule.inputs {
        let [first, duplicate, repeated, late, stray, missed] = counts(input);
        texts.push(format!(
            "{first} first, {duplicate} duplicate, {repeated} repeated, {late} late, {stray} stray, \
             0 under one number, 0 of too many streams, 0 differently cut, {missed} missed"
        ));
    }
    for (reason, count) in &rule.dropped {
        if *count > 0 {
            texts.push(format!("{reason} {}", grouped(*count)));
        }
    }
    texts
}

fn counts(input: &InputStats) -> [String; 6] {
    let line = input.line.unwrap();
    [
        line.first,
        line.duplicate,
        line.repeated,
        line.late,
        line.stray,
        line.missed,
    ]
    .map(grouped)
}

/// A leg's row in the report.
fn row(input: &InputStats) -> Vec<String> {
    [&[input.at.clone()][..], &counts(input)].concat()
}

/// The cells of a row.
fn words(line: &str) -> Vec<&str> {
    let words = line.split("  ").map(str::trim);
    words.filter(|word| !word.is_empty()).collect()
}

fn words_of(row: &[String]) -> Vec<&str> {
    row.iter().map(String::as_str).collect()
}
