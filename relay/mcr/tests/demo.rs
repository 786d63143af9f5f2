//! `mcr demo`: delivers everything and leaves nothing behind, however it ends.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use lab::wait;
use serde_json::Value;

use crate::leftovers;

fn start(arguments: &[&str]) -> Option<Child> {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return None;
    }
    let child = Command::new(env!("CARGO_BIN_EXE_mcr"))
        .args(["demo", "--rate", "500"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Some(child.unwrap())
}

#[test]
fn everything_is_delivered_and_nothing_is_left() {
    let Some(demo) = start(&["--duration", "2", "--json"]) else {
        return;
    };
    let pid = demo.id();
    let output = demo.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let deliveries = report["deliveries"].as_array().unwrap();
    assert_eq!(deliveries.len(), 6);
    for delivery in deliveries {
        assert_eq!(delivery["sent"], 1000, "{delivery}");
        assert_eq!(delivery["delivered"], 1000, "{delivery}");
        assert_eq!(delivery["relayed"], 1000, "{delivery}");
    }
    assert_eq!(leftovers::of(pid), [""; 0]);
}

#[test]
fn another_relay_takes_over_and_nothing_is_left() {
    if let Some(missing) = lab::fleet::etcd::missing() {
        eprintln!("skipped: {missing}");
        return;
    }
    let Some(demo) = start(&["--fleet", "--duration", "2", "--json"]) else {
        return;
    };
    let pid = demo.id();
    let output = demo.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(leftovers::of(pid), [""; 0], "{error}");
    let report = serde_json::from_slice(&output.stdout);
    let report: Value = report.unwrap_or_else(|_| panic!("{}: {error}", output.status));
    // Beside other tests a relay may miss beats, so that others take over more than once.
    assert_eq!(report["twice"], 0, "{report}");
    assert_ne!(report["died"], report["successor"], "{report}");
    assert!(report["received"].as_u64() > Some(0), "{report}");
}

/// Starts a demo of ten minutes and waits until it has received something. Returns its further
/// lines, too.
fn start_long() -> Option<(
    Child,
    impl Iterator<Item = io::Result<String>> + Send + 'static,
)> {
    let mut demo = start(&["--duration", "600"])?;
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("received")));
    assert!(!leftovers::of(demo.id()).is_empty());
    Some((demo, lines))
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let Some((mut demo, lines)) = start_long() else {
        return;
    };
    let pid = demo.id();
    let kill = Command::new("kill")
        .args(["-INT", &pid.to_string()])
        .status();
    assert!(kill.unwrap().success());
    let drained = std::thread::spawn(move || lines.count());
    wait::until("the demo ends", || demo.try_wait().unwrap().is_some()).unwrap();
    drained.join().unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(1));
    assert_eq!(leftovers::of(pid), [""; 0]);
}

#[test]
fn a_kill_leaves_nothing_behind() {
    let Some((mut demo, _lines)) = start_long() else {
        return;
    };
    let processes = leftovers::processes(demo.id());
    for program in ["run", "send", "receive", "socat", "guard"] {
        let is_there = processes.iter().any(|process| process.has(program));
        assert!(is_there, "{program}: {processes:?}");
    }
    demo.kill().unwrap();
    demo.wait().unwrap();
    leftovers::wait_until_gone(demo.id(), &processes);
}

#[test]
fn a_reader_that_goes_away_leaves_nothing_behind() {
    let Some(mut demo) = start(&[]) else { return };
    let pid = demo.id();
    drop(demo.stdout.take());
    wait::until("the demo ends", || demo.try_wait().unwrap().is_some()).unwrap();
    assert_eq!(leftovers::of(pid), [""; 0]);
}
