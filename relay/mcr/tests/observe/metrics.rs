use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use lab::process;

use crate::bed::{Bed, INPUT, OUTPUT};

pub(super) fn dist() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../dist")
}

#[test]
fn promtool_accepts_the_metrics_of_a_live_daemon() {
    let Some(bed) = Bed::with_tools(&["promtool", "curl"], &["--listen", "127.0.0.1:9190"]) else {
        return;
    };
    let second = ["--input", "239.1.1.2%veth1:5001"];
    let rule = ["add", INPUT, OUTPUT, "--name", "cam1"];
    bed.daemon
        .mcr(&[rule.as_slice(), &second].concat())
        .unwrap();
    let _stream = bed.stream(1000);
    bed.daemon
        .wait_for("cam1", "packets are relayed", |rule| {
            rule.received.packets > 0
        })
        .unwrap();
    let script =
        "curl -sf http://127.0.0.1:9190/metrics | tee /dev/stderr | promtool check metrics";
    let mut command = bed.chain.relay.command("sh");
    command.args(["-c", script]);
    let checked = process::run(command, Duration::from_secs(20)).unwrap();
    assert!(
        checked.status.success(),
        "{}{}",
        checked.stdout,
        checked.stderr
    );
    // promtool writes complaints about what it accepts nevertheless to standard output.
    assert_eq!(checked.stdout, "", "{}", checked.stderr);
    for part in [
        "mcr_rule_received_packets_total{rule=\"cam1\"}",
        "mcr_input_received_packets_total{rule=\"cam1\",input=\"239.1.1.2%veth1:5001\"} 0",
        "mcr_residence_seconds_bucket{rule=\"cam1\",path=\"kernel\",le=\"+Inf\"}",
        "mcr_rule_dropped_packets_total{rule=\"cam1\",reason=\"malformed\"} 0",
        "output=\"239.10.1.1%veth2:6001\",reason=\"egress_full\"} 0",
        "process_open_fds ",
    ] {
        assert!(
            checked.stderr.contains(part),
            "no {part} in {}",
            checked.stderr
        );
    }
    // Counters at 0 are in the metrics but not in the JSON, except for one reason that always is.
    let stats = bed.json(&["stats", "--json"]);
    let rule = &stats["rules"][0];
    assert_eq!(rule["dropped"], serde_json::json!({}));
    assert_eq!(
        rule["outputs"][0]["dropped"],
        serde_json::json!({"too_big": 0})
    );
    let mut command = bed.chain.relay.command("curl");
    command.args(["-sfi", "-H", "Accept: application/openmetrics-text"]);
    command.arg("http://127.0.0.1:9190/metrics");
    let finished = process::run(command, Duration::from_secs(20)).unwrap();
    let open = finished.success().unwrap();
    assert!(
        open.contains("application/openmetrics-text; version=1.0.0"),
        "{open}"
    );
    assert!(open.ends_with("# EOF\n"), "{open}");
}

#[test]
fn a_reload_that_fails_shows_until_one_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("mcr.toml");
    std::fs::write(&config, "version = 1\n").unwrap();
    let arguments = ["--config", config.to_str().unwrap()];
    let Some(bed) = Bed::with_tools(&["curl"], &arguments) else {
        return;
    };
    let ask = |arguments: &[&str]| {
        let mut command = bed.chain.relay.command("curl");
        command.args(["-s", "--unix-socket"]);
        command.arg(bed.daemon.socket()).args(arguments);
        process::run(command, Duration::from_secs(20))
            .unwrap()
            .stdout
    };
    let reload = ["-X", "POST", "http://mcr/v1/reload"];
    let successful = || {
        let metrics = ask(&["http://mcr/metrics"]);
        let name = "mcr_config_last_reload_successful ";
        let sample = metrics.lines().find_map(|line| line.strip_prefix(name));
        sample.map(str::to_owned)
    };
    assert_eq!(successful().as_deref(), Some("1"));
    std::fs::write(&config, "version = 9\n").unwrap();
    ask(&reload);
    assert_eq!(successful().as_deref(), Some("0"));
    std::fs::write(&config, "version = 1\n").unwrap();
    ask(&reload);
    assert_eq!(successful().as_deref(), Some("1"));
}

#[test]
fn promtool_accepts_the_alert_rules() {
    if Command::new("promtool").arg("--version").output().is_err() {
        eprintln!("skipped: promtool is not installed (dist/bootstrap test installs it)");
        return;
    }
    let mut command = Command::new("promtool");
    command
        .args(["check", "rules"])
        .arg(dist().join("prometheus/mcr.rules.yml"));
    let checked = process::run(command, Duration::from_secs(20)).unwrap();
    let stdout = checked.success().unwrap();
    assert!(stdout.contains("SUCCESS"), "{stdout}");
}

#[test]
fn the_dashboard_asks_only_for_metrics_that_there_are() {
    let text = std::fs::read_to_string(dist().join("grafana/mcr.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let source = [
        include_str!("../../../observe/src/stats/metrics.rs"),
        include_str!("../../../observe/src/stats/process.rs"),
        include_str!("../../../observe/src/stats/metrics/drops.rs"),
        include_str!("../../../observe/src/stats/metrics/streams.rs"),
        include_str!("../../../observe/src/stats/metrics/latency.rs"),
        include_str!("../../../observe/src/stats/metrics/fleet.rs"),
        include_str!("../../../observe/src/stats/metrics/remote.rs"),
        include_str!("../../../api/src/reply/egress.rs"),
        include_str!("../../../api/src/reply/fleet.rs"),
        include_str!("../../../api/src/reply/rule.rs"),
        include_str!("../../../api/src/reply/health.rs"),
        include_str!("../../../counters/src/merge.rs"),
        include_str!("../../../counters/src/worker.rs"),
    ]
    .concat();
    let mut checked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            for word in expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                let word = word.strip_suffix("_bucket").unwrap_or(word);
                if word.starts_with("mcr_") || word.starts_with("process_") {
                    assert!(
                        source.contains(&format!("\"{word}\"")),
                        "{word} in {expression}"
                    );
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 5, "{checked}");
}
