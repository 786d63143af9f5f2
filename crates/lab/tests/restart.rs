//! The kernel path goes on forwarding and counting while no process of MCR runs. What a load sees
//! of it: `hitless`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use lab::bed::{Bed, RULE};
use lab::wait;

#[test]
fn kernel_path_forwards_and_counts_while_the_daemon_is_dead() {
    let mut bed = Bed::new("kernel").unwrap();
    bed.relay(50, 100).unwrap();
    bed.daemon.kill().unwrap();
    bed.relay(50, 100).unwrap();
    bed.daemon.start_again().unwrap();
    bed.relay(50, 100).unwrap();
    let rule = bed.daemon.settled(RULE, 150).unwrap();
    assert_eq!(rule.outputs[0].sent.packets, 150);
    assert_eq!(bed.daemon.taken_over("found").unwrap(), 1);
}

#[test]
fn workers_forward_and_count_while_the_supervisor_is_dead() {
    let mut bed = Bed::new("userspace").unwrap();
    bed.relay(50, 100).unwrap();
    for round in 1..4 {
        bed.daemon.kill().unwrap();
        bed.relay(50, 100).unwrap();
        bed.daemon.start_again().unwrap();
        bed.relay(50, 100).unwrap();
        let rule = bed.daemon.settled(RULE, 50 + round * 100).unwrap();
        assert_eq!(rule.outputs[0].sent.packets, 50 + round * 100);
    }
}

#[test]
fn counters_of_a_rule_that_was_removed_do_not_come_back() {
    let mut bed = Bed::new("userspace").unwrap();
    bed.relay(50, 100).unwrap();
    bed.daemon.mcr(&["remove", RULE]).unwrap();
    bed.daemon.kill().unwrap();
    bed.daemon.start_again().unwrap();
    bed.daemon
        .add(RULE, lab::bed::INPUT, &[lab::bed::OUTPUT])
        .unwrap();
    bed.relay(50, 100).unwrap();
    bed.daemon.settled(RULE, 50).unwrap();
}

#[test]
fn restarts_of_workers_are_told_once() {
    let mut bed = Bed::new("userspace").unwrap();
    bed.daemon.kill_worker(0).unwrap();
    logged(&bed, "1 times so far");
    bed.daemon.kill().unwrap();
    bed.daemon.start_again().unwrap();
    bed.daemon.kill_worker(0).unwrap();
    let log = logged(&bed, "2 times so far");
    assert_eq!(log.matches("worker_restarted").count(), 2, "{log}");
}

/// Waits until the daemon's log has these words and hands it back.
fn logged(bed: &Bed, words: &str) -> String {
    wait::until(words, || bed.daemon.log().contains(words)).unwrap();
    bed.daemon.log()
}
