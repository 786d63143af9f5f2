//! Events while a change waits to be confirmed: a link is removed, and somebody else changes rules.

use std::fs;
use std::time::Duration;

use lab::process::{Finished, Process};
use lab::wait;

use super::CHANGED;
use crate::bed::Bed;
use crate::changes::bed;

/// Operators that change rules at once.
const OPERATORS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_link_that_goes_meanwhile_takes_down_what_needs_it_and_nothing_else() {
    let Some(bed) = bed() else { return };
    let relay = &bed.chain.relay;
    let add_link = || {
        relay.ip("link add old0 type veth peer name old1").unwrap();
        for end in ["old0", "old1"] {
            relay.ip(&format!("link set {end} up")).unwrap();
        }
    };
    add_link();
    bed.daemon
        .add("old", "239.1.1.3%veth1:5003", &["239.10.1.3%old0:6003"])
        .unwrap();
    let stream = bed.stream(500);
    bed.daemon
        .wait_for("cam1", "packets", |rule| rule.received.packets > 100)
        .unwrap();
    bed.try_out(CHANGED, "2s");
    assert_eq!(bed.listed(), "cam1\ncam3\n");
    relay.ip("link del old0").unwrap();
    bed.wait_for_list("cam1\nold\n");
    assert!(bed.status()["pending"].is_null());
    let reason = || bed.daemon.rule("old").unwrap().outputs[0].reason.clone();
    assert!(reason().is_some_and(|why| why.contains("old0")));
    add_link();
    wait::until("the link is back", || reason().is_none()).unwrap();
    drop(stream);
    let rule = bed.daemon.rule("cam1").unwrap();
    assert_eq!(
        rule.received.packets, rule.outputs[0].sent.packets,
        "0 lost"
    );
}

/// Makes operators apply files of their own at once, with these further arguments; returns each outcome.
fn at_once(bed: &Bed, words: &[&str]) -> Vec<Finished> {
    let operator = |number: usize| {
        let config = bed.daemon.config_file();
        let file = config.with_file_name(format!("{number}.toml"));
        let own = CHANGED.replace("cam3", &format!("own{number}"));
        fs::write(&file, own).unwrap();
        let mut command = bed.chain.relay.command(lab::binary::mcr().unwrap());
        command.arg("--socket").arg(bed.daemon.socket());
        command.arg("apply").arg(file).args(words);
        Process::start(command).unwrap()
    };
    let operators: Vec<Process> = (0..OPERATORS).map(operator).collect();
    let done = operators
        .into_iter()
        .map(|operator| operator.wait(PATIENCE).unwrap());
    done.collect()
}

/// Expects that one succeeds, and that the others report who was faster and change nothing.
fn one_wins(bed: &Bed, done: &[Finished], words: &[&str]) {
    let succeeded = |finished: &&Finished| finished.status.success();
    assert_eq!(done.iter().filter(succeeded).count(), 1, "{done:?}");
    let winner = done.iter().position(|one| one.status.success()).unwrap();
    for loser in done.iter().filter(|finished| !finished.status.success()) {
        assert_eq!(loser.status.code(), Some(1), "{loser:?}");
        for word in words {
            assert!(loser.stderr.contains(word), "{loser:?}");
        }
    }
    assert_eq!(bed.listed(), format!("cam1\nown{winner}\n"));
}

#[test]
fn of_operators_at_once_one_tries_out_and_the_others_are_refused() {
    let Some(bed) = bed() else { return };
    let done = at_once(&bed, &["--confirm", "60s"]);
    one_wins(
        &bed,
        &done,
        &["a change by root (uid 0, mcr, pid", "to be confirmed"],
    );
    bed.daemon.mcr(&["rollback", "--last", "--yes"]).unwrap();
    assert_eq!(bed.listed(), "cam1\n");
}

#[test]
fn of_operators_who_read_the_same_one_writes() {
    let Some(bed) = bed() else { return };
    let before = bed.changes().len();
    let generation = bed.status()["generation"].to_string();
    let done = at_once(&bed, &["--generation", &generation]);
    one_wins(&bed, &done, &["root (uid 0, mcr, pid ", "read them again"]);
    assert_eq!(bed.changes().len(), before + 1);
}
