use std::time::Duration;

use lab::process::{self, Process};
use lab::wait;
use serde_json::Value;

use crate::bed::Bed;

#[test]
fn events_are_told_as_they_happen() {
    let Some(bed) = Bed::new(&[], &[]) else {
        return;
    };
    let mut command = bed.chain.relay.command(lab::binary::mcr().unwrap());
    command.arg("--socket").arg(bed.daemon.socket());
    command.args(["events", "--json", "cam1"]);
    let events = Process::start(command).unwrap();
    // The follower may not follow yet: rules come and go until it has seen one.
    wait::until("an event is told", || {
        bed.add();
        bed.daemon.mcr(&["remove", "cam1"]).unwrap();
        events.stdout().contains("rule_removed")
    })
    .unwrap();
    let told = events.stdout();
    for line in told.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["subject"], "cam1", "{line}");
        assert!(event["at_ms"].as_u64().unwrap() > 1_600_000_000_000);
    }
    assert!(told.contains("rule_added"), "{told}");
}

#[test]
fn who_comes_later_is_told_what_happened() {
    let Some(bed) = Bed::new(&["curl"], &[]) else {
        return;
    };
    bed.add();
    bed.daemon.mcr(&["remove", "cam1"]).unwrap();
    let last = ["events", "--json", "--recent", "2", "-n", "2"];
    let told = bed.daemon.mcr(&last).unwrap();
    let last = told.lines().last().unwrap();
    let event: Value = serde_json::from_str(last).unwrap();
    assert_eq!(event["kind"], "rule_removed", "{told}");
    assert_eq!(told.lines().count(), 2, "{told}");

    // As a browser does when its connection broke: the last but one is all that it has seen.
    let ask = |what: &[&str]| {
        let mut command = bed.chain.relay.command("curl");
        command.args(["-sN", "--max-time", "1", "--unix-socket"]);
        command.arg(bed.daemon.socket()).args(what);
        process::run(command, Duration::from_secs(10))
            .unwrap()
            .stdout
    };
    let kept = ask(&["http://mcr/v1/events?recent=2"]);
    let ids: Vec<&str> = kept
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
