//! Healthy rules of every kind: their own metrics, extrapolated to a day by promtool's clock, fire no
//! alert.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lab::process::{self, Process};
use lab::wait;

use super::metrics::dist;
use crate::bed::Bed;

/// Long enough that counters that grow batch by batch show their rate.
const BETWEEN: Duration = Duration::from_secs(4);
const DAY_MINUTES: u32 = 24 * 60;

const RULES: &str = r#"
version = 1
[[rule]]
name = "plain"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001", "10.0.1.2:7000"]
[[rule]]
name = "watched"
input = "239.1.1.2%veth1:5001"
outputs = ["239.10.1.2%veth2:6001,limit=100kpps"]
health = { content = "rtp", silence = "20s", rate_min = "1kbit" }
[[rule]]
name = "failover"
inputs = ["239.1.1.3%veth1:5001", "239.1.1.4%veth1:5001"]
outputs = ["239.10.1.3%veth2:6001"]
failover = { silence = "20s" }
[[rule]]
name = "merged"
inputs = ["239.1.1.5%veth1:5001", "239.1.1.6%veth1:5001"]
outputs = ["239.10.1.5%veth2:6001"]
merge = "rtp"
[[rule]]
name = "range"
input = "239.2.1.0/28%veth1:5001-5002"
outputs = ["239.10.2.0/28%veth2:6001"]
limit = "100kpps"
[[rule]]
name = "seldom"
input = "239.1.1.7%veth1:5001"
outputs = ["239.10.1.7%veth2:6001"]
health = { silence = "off" }
[[rule]]
name = "tv"
input = "239.3.1.0/24%veth1:5000"
outputs = [{ to = "239.10.3.0/24%veth2:5000", demand = "igmp" }]
[[rule]]
name = "mdns"
mode = "reflect"
interfaces = ["veth1", "veth2"]
group = "224.0.0.251:5353"
[[rule]]
name = "off"
enabled = false
input = "239.1.1.8%veth1:5001"
outputs = ["239.10.1.8%veth9:6001"]
"#;

lab::on_both_paths!(a_day_of_healthy_rules_of_every_kind_rings_nothing);

fn a_day_of_healthy_rules_of_every_kind_rings_nothing(path: &str) {
    for tool in ["promtool", "curl"] {
        if let Err(reason) = crate::bed::can_run(tool) {
            eprintln!("skipped: {reason}");
            return;
        }
    }
    let listen = [
        "--path",
        path,
        "--listen",
        "127.0.0.1:9190",
        "--silence",
        "20s",
    ];
    let Some(bed) = Bed::new(Some(RULES), &listen) else {
        return;
    };
    let send = |arguments: &[&str]| {
        let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
        command.args(["send", "--framing", "rtp", "--rate", "200"]);
        Process::start({
            command.args(["--duration", "10m"]).args(arguments);
            command
        })
        .unwrap()
    };
    let destinations = [1, 2, 3, 4].map(|n| format!("239.1.1.{n}%veth0:5001"));
    let single: Vec<&str> = destinations.iter().map(String::as_str).collect();
    let legs = [
        "--line",
        "239.1.1.5%veth0:5001",
        "--line",
        "239.1.1.6%veth0:5001",
    ];
    let _streams = [&single[..], &legs, &["239.2.1.3%veth0:5002"]].map(send);
    for rule in ["plain", "watched", "failover", "merged", "range"] {
        let flows = |rule: &api::reply::RuleStats| rule.received.packets > 100;
        bed.daemon.wait_for(rule, "it comes", flows).unwrap();
    }
    let mut report = String::new();
    let is_quiet = || {
        report = a_day_of(&bed);
        report.is_empty()
    };
    // A machine that is busy with other things may lose a packet, or hold up a leg.
    let waited = wait::until_within(Duration::from_secs(90), "a healthy day is quiet", is_quiet);
    waited.unwrap_or_else(|error| panic!("{error}: {report}"));
}

/// What promtool reports for a day that goes on as the next seconds do; empty if no alert fires.
fn a_day_of(bed: &Bed) -> String {
    let (before, began) = (samples(bed), Instant::now());
    thread::sleep(BETWEEN);
    let (now, took) = (samples(bed), began.elapsed().as_secs_f64());
    let epoch = sys::clock::realtime_ms() as f64 / 1e3;
    let mut text = format!(
        "rule_files: [{}]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n      \
         - series: 'up{{instance=\"r\",job=\"mcr\"}}'\n        values: '1x{DAY_MINUTES}'\n",
        dist().join("prometheus/mcr.rules.yml").display()
    );
    for (series, value) in &now {
        let name = series.split('{').next().unwrap_or_default();
        let grown = before.get(series).map_or(0.0, |before| value - before);
        let (first, step) = match name {
            // Prometheus' clock begins at 0 there.
            _ if name.contains("timestamp") || name.contains("start_time") => {
                (value - epoch, grown / took * 60.0)
            }
            _ if name.ends_with("_total") => (*value, grown / took * 60.0),
            _ => (*value, 0.0),
        };
        let _ = write!(text, "      - series: '{series}'\n        values: '");
        let _ = writeln!(text, "{first:.3}{step:+.3}x{DAY_MINUTES}'");
    }
    let _ = writeln!(
        text,
        "    promql_expr_test:\n      - expr: 'count(count_over_time(ALERTS[1d]))'\n        eval_time: \
         {DAY_MINUTES}m\n        exp_samples: []\n      - expr: 'count by (alertname, rule) \
         (ALERTS{{alertstate=\"firing\"}})'\n        eval_time: 12h\n        exp_samples: []"
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("day.yml");
    fs::write(&file, text).unwrap();
    let mut command = Command::new("promtool");
    command.args(["test", "rules"]).arg(&file);
    let tested = process::run(command, Duration::from_secs(120)).unwrap();
    if tested.status.success() {
        String::new()
    } else {
        tested.stdout + &tested.stderr
    }
}

/// The daemon's metrics, by series.
fn samples(bed: &Bed) -> BTreeMap<String, f64> {
    let mut command = bed.chain.relay.command("curl");
    command.args(["-sf", "http://127.0.0.1:9190/metrics"]);
    let finished = process::run(command, Duration::from_secs(20)).unwrap();
    let text = finished.success().unwrap();
    let lines = text.lines().filter(|line| line.starts_with("mcr_"));
    let pairs = lines.filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let all = format!("{name}{{instance=\"r\",job=\"mcr\",{labels}");
        Some((all, value.parse().ok()?))
    });
    pairs
        .filter(|(series, _)| !series.contains("_bucket"))
        .collect()
}
