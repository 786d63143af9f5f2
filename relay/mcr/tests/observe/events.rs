use std::fmt::Write;
use std::time::Duration;

use lab::process::{self, Process};
use lab::wait;
use serde_json::Value;

use crate::bed::Bed;

#[test]
fn events_are_printed_as_they_happen() {
    let Some(bed) = Bed::with_tools(&[], &[]) else {
        return;
    };
    let mut command = bed.chain.relay.command(lab::binary::mcr().unwrap());
    command.arg("--socket").arg(bed.daemon.socket());
    command.args(["events", "--json", "cam1"]);
    let events = Process::start(command).unwrap();
    // The follower may not be ready yet: a rule is added and removed until it has seen one.
    wait::until("an event is told", || {
        bed.add();
        bed.daemon.mcr(&["remove", "cam1"]).unwrap();
        events.stdout().contains("rule_removed")
    })
    .unwrap();
    let stdout = events.stdout();
    for line in stdout.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["subject"], "cam1", "{line}");
        assert!(event["at_ms"].as_u64().unwrap() > 1_600_000_000_000);
    }
    let first = |kind| stdout.find(kind).unwrap_or(usize::MAX);
    assert!(first("rule_added") < first("rule_up"), "{stdout}");
}

#[test]
fn a_later_client_gets_earlier_events() {
    let Some(bed) = Bed::with_tools(&["curl"], &[]) else {
        return;
    };
    bed.add();
    bed.daemon.mcr(&["remove", "cam1"]).unwrap();
    let recent = ["events", "--json", "--recent", "2", "-n", "2"];
    let stdout = bed.daemon.mcr(&recent).unwrap();
    let last = stdout.lines().last().unwrap();
    let event: Value = serde_json::from_str(last).unwrap();
    assert_eq!(event["kind"], "rule_removed", "{stdout}");
    assert_eq!(stdout.lines().count(), 2, "{stdout}");

    // As a browser does after its connection broke, having seen the last event but one.
    let ask = |what: &[&str]| {
        let mut command = bed.chain.relay.command("curl");
        command.args(["-sN", "--max-time", "1", "--unix-socket"]);
        command.arg(bed.daemon.socket()).args(what);
        process::run(command, Duration::from_secs(10))
            .unwrap()
            .stdout
    };
    let recent = ask(&["http://mcr/v1/events?recent=2"]);
    let ids: Vec<&str> = recent
        .lines()
        .filter_map(|line| line.strip_prefix("id: "))
        .collect();
    let header = format!("Last-Event-ID: {}", ids[0]);
    let again = ask(&["-H", &header, "http://mcr/v1/events?recent=100"]);
    assert_eq!(again.matches("event: ").count(), 1, "{again}");
    assert!(again.contains("event: rule_removed"), "{again}");
    let refused = ask(&["http://mcr/v1/events?recent=201"]);
    assert!(refused.contains("at most 200"), "{refused}");
}

#[test]
fn a_thousand_rules_are_printed_in_full_and_stored_in_few() {
    let Some(bed) = Bed::with_tools(&["curl"], &["--log", "json"]) else {
        return;
    };
    let follow = |arguments: &[&str]| {
        let mut command = bed.chain.relay.command(lab::binary::mcr().unwrap());
        command.arg("--socket").arg(bed.daemon.socket());
        Process::start({
            command.args(arguments);
            command
        })
        .unwrap()
    };
    let all = follow(&["events", "--json"]);
    let few = follow(&["events", "--json", "--brief"]);
    wait::until("both follow", || {
        bed.daemon
            .add("probe", "239.9.9.9%veth1:1", &["239.9.9.9%veth2:2"])
            .unwrap();
        bed.daemon.mcr(&["remove", "probe"]).unwrap();
        [&all, &few]
            .iter()
            .all(|follower| follower.stdout().contains("rule_removed"))
    })
    .unwrap();
    let mut config = "version = 1\n".to_owned();
    for n in 0..1000 {
        let (high, low) = (n / 250, n % 250 + 1);
        // One of them sends by an interface that does not exist.
        let output = if n == 500 { "veth9" } else { "veth2" };
        write!(
            config,
            "[[rule]]\nname = \"r{n:04}\"\ninput = \"239.1.{high}.{low}%veth1:5001\"\n\
             outputs = [\"239.10.{high}.{low}%{output}:6001\"]\n"
        )
        .unwrap();
    }
    bed.daemon.apply(&config).unwrap();
    let count = |text: &str, kind: &str| {
        let kind = format!("\"kind\":\"{kind}\",\"subject\":\"r");
        text.matches(&kind).count()
    };
    wait::until("every rule is told of", || {
        let stdout = all.stdout();
        count(&stdout, "rule_added") == 1000 && count(&stdout, "rule_up") == 999
    })
    .unwrap();
    assert_eq!(all.stderr(), "", "nothing is missed");

    let mut command = bed.chain.relay.command("curl");
    command.args(["-sN", "--max-time", "1", "--unix-socket"]);
    command.arg(bed.daemon.socket());
    command.arg("http://mcr/v1/events?recent=200");
    let recent = process::run(command, Duration::from_secs(10))
        .unwrap()
        .stdout;
    let combined = [
        "first of 999 events: rule \\\"r0000\\\" is up",
        "first of 1 000 events: rule \\\"r0000\\\" added",
    ];
    let alone = "rule \\\"r0500\\\" is down: output 239.10.2.1%veth9:6001: no interface veth9";
    for text in [recent.as_str(), &few.stdout()] {
        for part in combined.iter().chain([&alone]) {
            assert!(text.contains(part), "no {part} in {text}");
        }
        assert!(!text.contains("rule \\\"r0001\\\""), "{text}");
    }
    let log = bed.daemon.log();
    for part in [
        "\"event\":\"rule_down\",\"subject\":\"r0500\"",
        "\"count\":1000",
    ] {
        assert!(log.contains(part), "no {part} in {log}");
    }
    assert!(log.lines().count() < 100, "{log}");
}
