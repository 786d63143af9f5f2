use lab::link;
use lab::wait;

use crate::bed::Bed;

#[test]
fn a_flapping_link_does_not_flood_the_log() {
    let Some(bed) = Bed::with_tools(&[], &["--log", "text"]) else {
        return;
    };
    bed.add();
    let state = |word: &'static str| {
        move |rule: &api::reply::RuleStats| {
            serde_json::to_value(rule.outputs[0].state).unwrap() == word
        }
    };
    for _ in 0..30 {
        link::down((&bed.chain.relay, "veth2")).unwrap();
        bed.daemon
            .wait_for("cam1", "it is down", state("down"))
            .unwrap();
        link::up((&bed.chain.relay, "veth2")).unwrap();
        bed.daemon
            .wait_for("cam1", "it is up", state("up"))
            .unwrap();
    }
    let log = bed.daemon.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("rule \"cam1\""))
        .count();
    assert!((4..=10).contains(&lines), "{lines}: {log}");
}

#[test]
fn the_level_changes_while_the_daemon_runs() {
    let Some(bed) = Bed::with_tools(&[], &["--log", "json"]) else {
        return;
    };
    assert_eq!(bed.daemon.mcr(&["log"]).unwrap(), "info\n");
    bed.add();
    assert!(!bed.daemon.log().contains("\"output_up\""));
    assert_eq!(bed.daemon.mcr(&["log", "debug"]).unwrap(), "debug\n");
    bed.daemon.mcr(&["remove", "cam1"]).unwrap();
    bed.add();
    wait::until("the detail is in the log", || {
        bed.daemon.log().contains("\"event\":\"output_up\"")
    })
    .unwrap();
    // Lines that the level suppresses do not count towards the ten per minute of a subject.
    bed.daemon.mcr(&["log", "error"]).unwrap();
    for _ in 0..6 {
        bed.daemon.mcr(&["remove", "cam1"]).unwrap();
        bed.add();
    }
    bed.daemon.mcr(&["log", "info"]).unwrap();
    bed.daemon.mcr(&["remove", "cam1"]).unwrap();
    wait::until("what happens at last is in the log", || {
        let log = bed.daemon.log();
        log.lines()
            .last()
            .is_some_and(|line| line.contains("rule_removed"))
    })
    .unwrap();
    let log = bed.daemon.log();
    for line in log.lines() {
        assert_eq!(line.matches("\"level\":").count(), 1, "{line}");
        assert!(
            serde_json::from_str::<serde_json::Value>(line).is_ok(),
            "{line}"
        );
    }
}
