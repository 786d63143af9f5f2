//! A real Prometheus, with the alert rules of dist/, beside a daemon that listens.

use std::time::Duration;

use lab::process::{self, Process};
use lab::wait;
use serde_json::Value;

use crate::bed::Bed;

const TOOLS: [&str; 2] = ["prometheus", "curl"];
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:9190"];
/// Prometheus reads its own storage first, and the alert waits for 5 s.
const PATIENCE: Duration = Duration::from_secs(30);
const ADDRESS: &str = "127.0.0.1:9191";

#[test]
fn prometheus_fires_the_alert_for_a_stream_that_was_killed() {
    let Some(bed) = Bed::with_tools(&TOOLS, &LISTEN) else {
        return;
    };
    bed.add_watched("silence=1s");
    let stream = bed.stream(500);
    let directory = tempfile::tempdir().unwrap();
    let _prometheus = start(&bed, directory.path());
    wait::until_within(PATIENCE, "the stream is up in Prometheus", || {
        query(&bed, "mcr_stream_state{rule=\"cam1\",state=\"up\"} == 1").is_some()
            && query(&bed, "mcr_rule_received_packets_total > 0").is_some()
    })
    .unwrap();
    assert!(firing(&bed, "McrStreamDown").is_none());
    drop(stream);
    wait::until("the alert fires", || {
        firing(&bed, "McrStreamDown").is_some()
    })
    .unwrap();
    let alert = firing(&bed, "McrStreamDown").unwrap();
    assert_eq!(alert["labels"]["rule"], "cam1", "{alert}");
    assert_eq!(alert["labels"]["severity"], "critical", "{alert}");
    for (path, expected) in [("healthz", "ok\n"), ("readyz", "ready\n")] {
        assert_eq!(
            curl(&bed, &format!("http://127.0.0.1:9190/{path}")),
            expected
        );
    }
}

fn start(bed: &Bed, directory: &std::path::Path) -> Process {
    let rules = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../dist/prometheus/mcr.rules.yml"
    );
    let config = format!(
        "global: {{ scrape_interval: 500ms, evaluation_interval: 500ms }}\n\
         rule_files: [\"{rules}\"]\n\
         scrape_configs:\n  - job_name: mcr\n    static_configs: [{{ targets: [\"127.0.0.1:9190\"] }}]\n"
    );
    let file = directory.join("prometheus.yml");
    std::fs::write(&file, config).unwrap();
    let mut command = bed.chain.relay.command("prometheus");
    command
        .arg(format!("--config.file={}", file.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            directory.join("data").display()
        ))
        .arg(format!("--web.listen-address={ADDRESS}"));
    Process::start(command).unwrap()
}

/// The first sample that the expression selects.
fn query(bed: &Bed, expression: &str) -> Option<Value> {
    let mut command = bed.chain.relay.command("curl");
    command.args(["-sG", "--data-urlencode", &format!("query={expression}")]);
    command.arg(format!("http://{ADDRESS}/api/v1/query"));
    let finished = process::run(command, Duration::from_secs(10)).ok()?;
    let answer: Value = serde_json::from_str(&finished.stdout).ok()?;
    answer["data"]["result"].as_array()?.first().cloned()
}

/// The alert of that name, if it fires.
fn firing(bed: &Bed, name: &str) -> Option<Value> {
    let text = curl(bed, &format!("http://{ADDRESS}/api/v1/alerts"));
    let answer: Value = serde_json::from_str(&text).ok()?;
    let alerts = answer["data"]["alerts"].as_array()?;
    let is_it = |alert: &&Value| alert["labels"]["alertname"] == name && alert["state"] == "firing";
    alerts.iter().find(is_it).cloned()
}

fn curl(bed: &Bed, address: &str) -> String {
    let mut command = bed.chain.relay.command("curl");
    command.args(["-s", address]);
    process::run(command, Duration::from_secs(10)).map_or_else(|_| String::new(), |out| out.stdout)
}
