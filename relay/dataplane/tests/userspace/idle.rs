//! Workers without packets.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::socket::Sender;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bed::Bed;

/// Longer than a worker may leave packets waiting.
const LONG: Duration = Duration::from_millis(1500);

/// Times that a process has gone to sleep.
fn sleeps(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mut lines = status.lines();
    let switches = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(switches.context("no such line")?.trim().parse()?)
}

/// The process of the only worker, after the supervisor has ticked for a time.
fn watch(bed: &mut Bed, time: Duration) -> Result<u32> {
    let start = Instant::now();
    bed.wait_for("the time is over", |_| start.elapsed() >= time)?;
    Ok(bed.counters()?.workers[0].pid)
}

#[test]
fn a_worker_without_packets_sleeps_and_one_that_hangs_is_found_once_they_wait() -> Result<()> {
    let mut bed = Bed::new(1)?;
    let outputs = vec![bed.output(0, "239.10.1.1", 6001)];
    let rule = bed.rule("cam1", "239.1.1.1", 5001, outputs);
    bed.apply([rule])?;
    let sender = Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    let group = bed.address("239.1.1.1");
    sender.send_numbered(group, 5001, 10, 100)?;
    bed.settled("cam1", 10)?;
    let worker = watch(&mut bed, Duration::ZERO)?;
    anyhow::ensure!(worker > 0, "the worker has died before");
    assert_eq!(bed.pause()?, Duration::from_secs(1), "after a quiet tick");

    let before = sleeps(worker)?;
    assert_eq!(watch(&mut bed, LONG / 3)?, worker);
    assert_eq!(sleeps(worker)?, before, "it woke up for nothing");

    // A supervisor that was busy, and checks just when a packet has arrived.
    std::thread::sleep(LONG);
    sender.send_numbered(group, 5001, 1, 100)?;
    bed.settled("cam1", 11)?;
    assert_eq!(watch(&mut bed, LONG)?, worker);

    kill(Pid::from_raw(worker as i32), Signal::SIGSTOP)?;
    assert_eq!(watch(&mut bed, LONG)?, worker, "nothing waited for it");
    sender.send_numbered(group, 5001, 1, 100)?;
    bed.wait_for("it is replaced", |counters| {
        let now = &counters.workers[0];
        now.pid != 0 && now.pid != worker
    })?;
    let lost = bed.counters()?.workers[0].buffer_exhausted;
    assert_eq!(lost, 1, "what waited for it is counted");
    bed.wait_for("its successor takes packets", |counters| {
        let sent = sender.send_numbered(group, 5001, 1, 100);
        sent.is_ok() && counters.rules["cam1"].received.packets > 11
    })
}
