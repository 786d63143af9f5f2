use std::collections::BTreeMap;

use api::reply::{
    AddressStats, FleetShare, FleetShareState, FleetStatus, Reload, Seconds, Stats, Status, Traffic,
};
use dataplane::counters::DropReason;

use super::*;
use crate::compressed_body::Piece;
use crate::stats::{PossibleDrops, Reasons};

/// The inputs of the metrics; no drop reasons are possible besides those that occurred.
struct All {
    scrape: Scrape,
    possible: Vec<PossibleDrops>,
}

fn page(format: Format, all: &All) -> String {
    let rules = all.scrape.stats.rules.iter().cloned();
    let with_drops = rules.zip(all.possible.iter().cloned());
    written(text(format, &all.scrape, with_drops, &Process::default()))
}

fn written(chunks: CompressedBody) -> String {
    let text = chunks.finish().iter().flat_map(Piece::text).collect();
    String::from_utf8(text).unwrap()
}

fn status() -> Status {
    let text = r#"{"instance":"default","version":"1.2.3","pid":7,"uptime_seconds":12.5,
        "generation":4,"rules":1,"kernel":{"available":true},
        "userspace":{"available":false,"reason":"no"}}"#;
    let mut status: Status = serde_json::from_str(text).unwrap();
    status.last_reload = Some(Reload {
        at_ms: 1_500,
        succeeded: false,
    });
    status
}

fn stats() -> Stats {
    let text = r#"{"instance":"default","version":"1.2.3","uptime_seconds":12.5,
        "rules":[{"name":"cam1","labels":{"customer":"x","site":"y"},"state":"degraded","path":"kernel","path_reason":"",
          "inputs":[{"at":"239.1.1.1%eth0:5001","joined":true,
              "received":{"packets":600,"bytes":614400}},
            {"at":"239.1.1.2%eth0:5001","joined":false,"received":{"packets":400,"bytes":409600}}],
          "received":{"packets":1000,"bytes":1024000},"dropped":{"malformed":7},
          "outputs":[{"to":"239.10.1.1%eth1:6001","state":"down",
            "sent":{"packets":990,"bytes":1013760},"dropped":{"too_big":3}}],
          "health":{"state":"degraded","reason":"x","silent_seconds":0.25,"gap_seconds_1s":0.5,
            "gap_seconds_10s":0.75,"unrecognised":1,
            "rtp":{"packets":900,"lost":2,"reordered":3,"duplicated":4,"restarts":5,
              "ssrc_changes":6,"jitter_seconds":0.001,"ssrc":7,"payload_type":33},
            "ts":{"packets":6300,"continuity_errors":8,"transport_errors":9,"sync_errors":10,
              "pids":11}},
          "residence":[{"path":"kernel","samples":6,"stamped":2,"sum_seconds":1.25,
            "p50_seconds":0.000002048,"p99_seconds":0.000002048,
            "buckets":[{"below_seconds":0.000001024,"packets":1},
              {"below_seconds":0.000002048,"packets":3},{"packets":2}]}]}],
        "workers":[{"id":0,"cpu":1,"pid":9,"state":"running","restarts":2,"received":5,"matched":4,
          "not_matched":1,"forwarded":4,"buffer_exhausted":6,"receive_errors":8,
          "transmit_errors":9}]}"#;
    serde_json::from_str(text).unwrap()
}

fn all(stats: Stats) -> All {
    let none = |rule: &RuleStats| PossibleDrops {
        rule: Reasons::default(),
        outputs: vec![Reasons::default(); rule.outputs.len()],
    };
    All {
        possible: stats.rules.iter().map(none).collect(),
        scrape: Scrape {
            status: status(),
            is_saved: true,
            stats,
            lost_lines: 0,
            webhook: Arc::default(),
            fleet: None,
        },
    }
}

#[test]
fn every_number_of_the_statistics_is_a_sample() {
    let page = page(Format::Prometheus, &all(stats()));
    let output = r#"rule="cam1",output="239.10.1.1%eth1:6001""#;
    for line in [
        r#"mcr_build_info{version="1.2.3",name="default"} 1"#,
        "mcr_uptime_seconds 12.5",
        "mcr_config_generation 4",
        "mcr_config_last_reload_successful 0",
        "mcr_config_last_reload_timestamp_seconds 1.5",
        r#"mcr_path_available{path="userspace"} 0"#,
        r#"mcr_rule_up{rule="cam1",path="kernel"} 0"#,
        r#"mcr_rule_info{rule="cam1",label_customer="x",label_site="y"} 1"#,
        r#"mcr_rule_state{rule="cam1",state="degraded"} 1"#,
        r#"mcr_rule_state{rule="cam1",state="up"} 0"#,
        r#"mcr_input_joined{rule="cam1",input="239.1.1.1%eth0:5001"} 1"#,
        r#"mcr_input_joined{rule="cam1",input="239.1.1.2%eth0:5001"} 0"#,
        r#"mcr_input_received_packets_total{rule="cam1",input="239.1.1.1%eth0:5001"} 600"#,
        r#"mcr_input_received_bytes_total{rule="cam1",input="239.1.1.2%eth0:5001"} 409600"#,
        r#"mcr_rule_received_packets_total{rule="cam1"} 1000"#,
        r#"mcr_rule_received_bytes_total{rule="cam1"} 1024000"#,
        r#"mcr_rule_dropped_packets_total{rule="cam1",reason="malformed"} 7"#,
        &format!("mcr_output_up{{{output}}} 0"),
        &format!("mcr_output_sent_packets_total{{{output}}} 990"),
        &format!("mcr_output_sent_bytes_total{{{output}}} 1013760"),
        &format!(r#"mcr_output_dropped_packets_total{{{output},reason="too_big"}} 3"#),
        r#"mcr_stream_state{rule="cam1",state="degraded"} 1"#,
        r#"mcr_stream_silence_seconds{rule="cam1"} 0.25"#,
        r#"mcr_stream_gap_seconds{rule="cam1"} 0.75"#,
        r#"mcr_rtp_lost_packets_total{rule="cam1"} 2"#,
        r#"mcr_rtp_ssrc_changes_total{rule="cam1"} 6"#,
        r#"mcr_rtp_jitter_seconds{rule="cam1"} 0.001"#,
        r#"mcr_ts_continuity_errors_total{rule="cam1"} 8"#,
        r#"mcr_ts_pids{rule="cam1"} 11"#,
        r#"mcr_residence_seconds_bucket{rule="cam1",path="kernel",le="0.000001024"} 1"#,
        r#"mcr_residence_seconds_bucket{rule="cam1",path="kernel",le="0.000004096"} 4"#,
        r#"mcr_residence_seconds_bucket{rule="cam1",path="kernel",le="1.073741824"} 4"#,
        r#"mcr_residence_seconds_bucket{rule="cam1",path="kernel",le="+Inf"} 6"#,
        r#"mcr_residence_seconds_sum{rule="cam1",path="kernel"} 1.25"#,
        r#"mcr_residence_seconds_count{rule="cam1",path="kernel"} 6"#,
        r#"mcr_worker_up{worker="0"} 1"#,
        r#"mcr_worker_restarts_total{worker="0"} 2"#,
        r#"mcr_worker_buffer_exhausted_packets_total{worker="0"} 6"#,
        r#"mcr_worker_transmit_errors_total{worker="0"} 9"#,
    ] {
        assert!(page.lines().any(|have| have == line), "no {line} in {page}");
    }
}

#[test]
fn possible_drops_are_a_series_before_they_occur() {
    let mut all = all(stats());
    all.possible[0].rule = Reasons::of(&[DropReason::Malformed, DropReason::OwnSource]);
    all.possible[0].outputs[0] = Reasons::of(&[DropReason::EgressFull]);
    let page = page(Format::Prometheus, &all);
    let dropped: Vec<&str> = page
        .lines()
        .filter(|line| line.contains("dropped_packets_total{"))
        .collect();
    let output = r#"mcr_output_dropped_packets_total{rule="cam1",output="239.10.1.1%eth1:6001""#;
    assert_eq!(
        dropped,
        [
            r#"mcr_rule_dropped_packets_total{rule="cam1",reason="malformed"} 7"#,
            r#"mcr_rule_dropped_packets_total{rule="cam1",reason="own_source"} 0"#,
            &format!(r#"{output},reason="egress_full"}} 0"#),
            &format!(r#"{output},reason="too_big"}} 3"#),
        ]
    );
}

#[test]
fn outputs_to_one_destination_are_series_of_their_own() {
    let mut stats = stats();
    let outputs = &mut stats.rules[0].outputs;
    outputs.extend([outputs[0].clone(), outputs[0].clone()]);
    let page = page(Format::Prometheus, &all(stats));
    for output in ["6001", "6001 #2", "6001 #3"] {
        let labels = format!(r#"rule="cam1",output="239.10.1.1%eth1:{output}""#);
        let sample = format!("mcr_output_sent_packets_total{{{labels}}} 990");
        assert!(page.contains(&sample), "no {sample} in {page}");
    }
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<&str> = samples
        .map(|line| line.rsplit_once(' ').unwrap().0)
        .collect();
    let once: BTreeSet<&&str> = series.iter().collect();
    assert_eq!(once.len(), series.len(), "{page}");
}

#[test]
fn openmetrics_names_families_without_total_and_ends() {
    let page = page(Format::OpenMetrics, &all(stats()));
    assert!(page.contains("# TYPE mcr_rule_received_packets counter\n"));
    assert!(page.contains("\nmcr_rule_received_packets_total{rule=\"cam1\"} 1000\n"));
    assert!(page.ends_with("# EOF\n"));
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    assert_eq!(Format::accepted(accept), Format::OpenMetrics);
    assert_eq!(Format::accepted("*/*"), Format::Prometheus);
}

#[test]
fn label_values_cannot_break_out() {
    let mut stats = stats();
    stats.rules[0].name = "a\"b\\c\nd".to_owned();
    let page = page(Format::Prometheus, &all(stats));
    let line = r#"mcr_rule_received_packets_total{rule="a\"b\\c\nd"} 1000"#;
    assert!(page.lines().any(|have| have == line), "{page}");
}

#[test]
fn merged_inputs_have_samples_and_others_no_families() {
    let mut stats = stats();
    assert!(!page(Format::Prometheus, &all(stats.clone())).contains("mcr_merge_"));
    let rule = &mut stats.rules[0];
    rule.merge = Some(api::reply::MergeStats {
        lost: 3,
        streams: 2,
        unsettled: 1,
    });
    for (input, first) in rule.inputs.iter_mut().zip([900, 60]) {
        input.line = Some(api::reply::LineStats {
            first,
            duplicate: 5,
            repeated: 6,
            late: 7,
            stray: 8,
            still: 4,
            exceeded: 2,
            differently_cut: 1,
            missed: 9,
            skew_seconds: Seconds::from_ns(12_500_000),
            skew_max_seconds: Seconds::from_ns(40_000_000),
        });
    }
    let page = page(Format::Prometheus, &all(stats));
    let (a, b) = ("239.1.1.1%eth0:5001", "239.1.1.2%eth0:5001");
    let line = |metric: &str, input: &str, value: &str| {
        format!("mcr_merge_{metric}{{rule=\"cam1\",input=\"{input}\"}} {value}")
    };
    for line in [
        "mcr_merge_lost_packets_total{rule=\"cam1\"} 3".to_owned(),
        "mcr_merge_streams_total{rule=\"cam1\"} 2".to_owned(),
        "mcr_merge_unsettled_packets_total{rule=\"cam1\"} 1".to_owned(),
        line("first_packets_total", a, "900"),
        line("first_packets_total", b, "60"),
        line("duplicate_packets_total", a, "5"),
        line("repeated_packets_total", a, "6"),
        line("late_packets_total", b, "7"),
        line("stray_packets_total", b, "8"),
        line("still_packets_total", a, "4"),
        line("missed_packets_total", a, "9"),
        line("skew_seconds", a, "0.0125"),
        line("skew_max_seconds", b, "0.04"),
        "# TYPE mcr_merge_first_packets_total counter".to_owned(),
        "# TYPE mcr_merge_skew_seconds gauge".to_owned(),
    ] {
        assert!(page.lines().any(|have| have == line), "{line}: {page}");
    }
}

#[test]
fn a_relay_of_a_fleet_exposes_what_it_forwards() {
    let share = |name: &str, state| FleetShare {
        name: name.to_owned(),
        state,
        ..FleetShare::default()
    };
    let fleet = FleetStatus {
        remaining_ms: Some(1080),
        takeovers: 3,
        shares: vec![
            share("cam", FleetShareState::Open),
            share("news", FleetShareState::Elsewhere),
        ],
        ..FleetStatus::default()
    };
    let mut all = all(stats());
    all.scrape.fleet = Some(fleet);
    let page = page(Format::Prometheus, &all);
    for expected in [
        "mcr_fleet_share_open{share=\"cam\"} 1\n",
        "mcr_fleet_share_open{share=\"news\"} 0\n",
        "mcr_fleet_gate_remaining_seconds 1.08\n",
        "mcr_fleet_takeovers_total 3\n",
        "mcr_fleet_etcd_reachable 0\n",
    ] {
        assert!(page.contains(expected), "{page}");
    }
}

#[test]
fn addresses_of_names_have_a_thousand_series_in_all_rules_together() {
    let mut stats = stats();
    let rule = stats.rules.pop().unwrap();
    let address = |number: u16| AddressStats {
        address: format!("10.1.{}.{}", number >> 8, number & 255),
        state: State::Up,
        reason: None,
        sent: Traffic::default(),
        dropped: BTreeMap::new(),
    };
    for (number, count) in [(1, 600), (2, 0), (3, 600)] {
        let mut rule = rule.clone();
        rule.name = format!("cam{number}");
        rule.outputs[0].addresses = Some((0..count).map(address).collect());
        stats.rules.push(rule);
    }
    let text = page(Format::Prometheus, &all(stats));
    let series = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(series("mcr_output_address_sent_packets_total{"), 1_000);
    // A name without addresses has zero of them.
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("mcr_output_addresses{"))
        .collect();
    assert!(lines.len() == 3 && lines[1].ends_with(" 0"), "{lines:?}");
}
