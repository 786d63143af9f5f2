//! `mcr demo`: delivers everything and leaves nothing behind, however it ends.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use lab::wait;
use serde_json::Value;

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

/// Everything that bears the demo's process id: namespaces, pins, sockets' directories, children.
fn left_behind(pid: u32) -> Vec<String> {
    let mut found = Vec::new();
    let names = |directory: &str| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path().display().to_string())
            .collect::<Vec<_>>()
    };
    for directory in ["/run/netns", "/sys/fs/bpf/mcr", "/run/mcr"] {
        let own = format!("{directory}/mcrlab-{pid}-");
        let instance = format!("{directory}/lab{pid}-");
        let all = names(directory).into_iter();
        found.extend(all.filter(|name| name.starts_with(&own) || name.starts_with(&instance)));
    }
    for process in names("/proc") {
        let command = fs::read_to_string(format!("{process}/cmdline")).unwrap_or_default();
        if command.contains(&format!("lab{pid}-")) {
            found.push(format!("{process}: {command}"));
        }
    }
    found
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
    assert_eq!(left_behind(pid), [""; 0]);
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let Some(mut demo) = start(&["--duration", "600"]) else {
        return;
    };
    let pid = demo.id();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let running = lines.any(|line| line.unwrap().contains("received"));
    assert!(running);
    assert!(!left_behind(pid).is_empty());
    let kill = Command::new("kill")
        .args(["-INT", &pid.to_string()])
        .status();
    assert!(kill.unwrap().success());
    let drained = std::thread::spawn(move || lines.count());
    wait::until("the demo ends", || demo.try_wait().unwrap().is_some()).unwrap();
    drained.join().unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(1));
    assert_eq!(left_behind(pid), [""; 0]);
}

#[test]
fn a_reader_that_goes_away_leaves_nothing_behind() {
    let Some(mut demo) = start(&[]) else { return };
    let pid = demo.id();
    drop(demo.stdout.take());
    wait::until("the demo ends", || demo.try_wait().unwrap().is_some()).unwrap();
    assert_eq!(left_behind(pid), [""; 0]);
}
