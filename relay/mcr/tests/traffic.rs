//! `mcr send` and `mcr receive` as scripts use them: JSON, exit status, signals, stock tools.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::process::Command;
use std::time::Duration;

use lab::link;
use lab::namespace::Namespace;
use lab::process::{Finished, Process};
use lab::wait;
use nix::sys::signal::Signal;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(20);

/// A sender and a receiver, veth0 - veth1.
struct Pair {
    sender: Namespace,
    receiver: Namespace,
}

impl Pair {
    /// `None` where the test may not make namespaces.
    fn new() -> Option<Self> {
        if !lab::demo::may_run() {
            eprintln!("skipped: needs root");
            return None;
        }
        let sender = Namespace::new("sender").unwrap();
        let receiver = Namespace::new("receiver").unwrap();
        link::veth((&sender, "veth0"), (&receiver, "veth1")).unwrap();
        link::address((&sender, "veth0"), "10.0.0.1/24").unwrap();
        link::address((&receiver, "veth1"), "10.0.0.2/24").unwrap();
        Some(Self { sender, receiver })
    }

    fn send(&self, arguments: &str) -> Finished {
        let command = mcr(&self.sender, "send", arguments);
        Process::start(command).unwrap().wait(PATIENCE).unwrap()
    }

    /// Starts a receiver and waits until it has joined.
    fn receive(&self, arguments: &str) -> Process {
        let process = Process::start(mcr(&self.receiver, "receive", arguments)).unwrap();
        let joined = || process.stderr().contains("receiving on");
        wait::until("mcr receive has joined", joined).unwrap();
        process
    }
}

fn mcr(namespace: &Namespace, subcommand: &str, arguments: &str) -> Command {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_mcr"));
    command.arg(subcommand).args(arguments.split_whitespace());
    command
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

fn keys(object: &Value) -> Vec<&str> {
    object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

/// Packets as the interface counts them: a super-packet is one.
fn received(pair: &Pair) -> u64 {
    let shown = pair.receiver.ip("-s -j link show veth1").unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    shown[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

#[test]
fn without_segmentation_packets_are_handed_over_one_by_one() {
    let Some(pair) = Pair::new() else { return };
    let mut counts = Vec::new();
    for without in ["", "--without udp_segment"] {
        let before = received(&pair);
        let sent = pair.send(&format!(
            "239.1.1.1%veth0:5001 --count 2000 --rate max --json {without}"
        ));
        assert_eq!(json(&sent)["sent"]["packets"], 2000, "{sent:?}");
        assert_eq!(json(&sent)["errors"], 0, "{sent:?}");
        counts.push(received(&pair) - before);
    }
    assert!(counts[0] < 1000, "{counts:?}");
    assert!(counts[1] >= 2000, "{counts:?}");
}

#[test]
fn the_json_has_the_documented_shape() {
    let Some(pair) = Pair::new() else { return };
    for method in ["sockets", "bpf"] {
        let receiver = pair.receive(&format!(
            "239.1.1.1%veth1:5001 --method {method} --expect 300 --duration 10 --json"
        ));
        let sent = pair.send("239.1.1.1%veth0:5001 --count 300 --rate 3000 --json");
        let received = receiver.wait(PATIENCE).unwrap();
        assert!(
            sent.status.success() && received.status.success(),
            "{sent:?} {received:?}"
        );
        let (sent, received) = (json(&sent), json(&received));
        assert_eq!(keys(&sent), ["errors", "pps", "seconds", "sent"]);
        assert_eq!(
            sent["sent"],
            serde_json::json!({"packets": 300, "bytes": 307_200})
        );
        assert_eq!(sent["errors"], 0);
        assert_eq!(keys(&received), ["endpoints", "total"]);
        let endpoint = &received["endpoints"][0];
        assert_eq!(endpoint["at"], "239.1.1.1%veth1:5001");
        for account in [endpoint, &received["total"]] {
            assert_eq!(account["packets"], 300, "{method}");
            assert_eq!(account["bytes"], 307_200);
            for fault in ["lost", "duplicated", "reordered", "corrupt"] {
                assert_eq!(account[fault], 0, "{method} {fault}");
            }
            assert_eq!(
                keys(&account["latency_us"]),
                ["max", "min", "p50", "p99", "p99_9"]
            );
            assert!(account["latency_us"]["p50"].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn what_went_on_any_line_is_asked_of_the_receiver() {
    let Some(pair) = Pair::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sent.json");
    let line = "239.1.1.1%veth0:5001,lose=30%,burst=4";
    for (framing, method, lines, status) in [
        ("rtp", "sockets", format!("--line {line}"), 0),
        ("moldudp64", "bpf", format!("--line {line}"), 0),
        ("mdp3", "bpf", format!("--line {line}"), 0),
        // Another line that nobody listens on.
        (
            "rtp",
            "sockets",
            format!("--line {line} --line 239.2.1.1%veth0:5001,delay=2ms"),
            5,
        ),
        // Two lines to one destination: all of it twice.
        (
            "own",
            "sockets",
            "--line 239.1.1.1%veth0:5001 --line 239.1.1.1%veth0:5001".to_owned(),
            5,
        ),
    ] {
        let receiver = pair.receive(&format!(
            "239.1.1.1%veth1:5001 --method {method} --sent {} --idle 1 --json",
            file.display()
        ));
        let sent = pair.send(&format!(
            "{lines} --framing {framing} -c 1000 -r 10000 --json"
        ));
        std::fs::write(&file, &sent.stdout).unwrap();
        let received = receiver.wait(PATIENCE).unwrap();
        std::fs::remove_file(&file).unwrap();
        let context = format!("{lines}: {sent:?} {received:?}");
        assert_eq!(received.status.code(), Some(status), "{context}");
        let (sent, received) = (json(&sent), json(&received));
        let line = &sent["lines"][0];
        assert_eq!(
            keys(line),
            [
                "cut",
                "duplicated",
                "first",
                "lost",
                "missed",
                "reordered",
                "sent",
                "to"
            ]
        );
        assert_eq!(
            keys(&sent["union"]),
            ["lost", "numbers", "on_any", "reordered"]
        );
        let judged = &received["endpoints"][0]["union"];
        assert_eq!(
            keys(judged),
            ["missing", "on_any", "received", "reordered", "twice"],
            "{context}"
        );
        assert_eq!(judged["on_any"], sent["union"]["on_any"], "{context}");
        assert_eq!(judged["missing"], line["missed"], "{context}");
        assert_eq!(judged["reordered"], 0, "{context}");
    }
}

#[test]
fn a_report_that_is_not_one_of_lines_is_refused() {
    let Some(pair) = Pair::new() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let sent = pair.send("239.1.1.1%veth0:5001 -c 1 --json");
    std::fs::write(file.path(), &sent.stdout).unwrap();
    let receiver = pair.receive(&format!(
        "239.1.1.1%veth1:5001 --sent {}",
        file.path().display()
    ));
    let refused = receiver.stop(Signal::SIGINT).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(refused.stderr.contains("mcr send --line"), "{refused:?}");
    // The report is printed nevertheless.
    assert!(
        refused.stdout.contains("239.1.1.1%veth1:5001"),
        "{refused:?}"
    );
}

#[test]
fn loss_ends_with_status_5() {
    let Some(pair) = Pair::new() else { return };
    let framings = ["own", "rtp-ts", "rtp", "ts"];
    for (method, framings) in [("sockets", &framings[..2]), ("bpf", &framings)] {
        for framing in framings {
            let receiver = pair.receive(&format!(
                "239.1.1.1%veth1:5001 --method {method} --idle 2 --json"
            ));
            let sent = json(&pair.send(&format!(
                "239.1.1.1%veth0:5001 --framing {framing} -c 2000 -r 20000 --lose 2 --duplicate 1 \
                 --reorder 1 --json"
            )));
            let received = receiver.wait(PATIENCE).unwrap();
            assert_eq!(received.status.code(), Some(5), "{received:?}");
            let total = &json(&received)["total"];
            for fault in ["lost", "duplicated", "reordered"] {
                let injected = &sent["injected"][fault];
                assert_eq!(&total[fault], injected, "{method} {framing} {fault}");
            }
            assert!(total.get("unchecked").is_none(), "{method} {framing}");
        }
        let receiver = pair.receive(&format!(
            "239.1.1.1%veth1:5001 --method {method} --expect 500 --idle 2"
        ));
        pair.send("239.1.1.1%veth0:5001 -c 499 -r 10000");
        let fewer = receiver.wait(PATIENCE).unwrap();
        assert_eq!(fewer.status.code(), Some(5), "{method}");
        assert!(fewer.stderr.contains("expected 500"), "{fewer:?}");
    }
}

#[test]
fn what_the_kernel_refuses_is_reported_and_not_counted_as_sent() {
    let Some(pair) = Pair::new() else { return };
    let sent = pair.send("239.1.1.1%veth0:5001 --method raw -s 9000 -c 3 --json");
    assert_eq!(sent.status.code(), Some(5), "{sent:?}");
    assert!(sent.stderr.contains("fragmented"), "{sent:?}");
    let sent = json(&sent);
    assert_eq!(sent["sent"], serde_json::json!({"packets": 0, "bytes": 0}));
    assert_eq!(sent["errors"], 3);
    let first_error = sent["first_error"].as_str().unwrap();
    assert!(first_error.contains("239.1.1.1:5001"), "{first_error}");
}

#[test]
fn a_signal_ends_both_with_their_account() {
    let Some(pair) = Pair::new() else { return };
    for (method, signal) in [("sockets", Signal::SIGINT), ("bpf", Signal::SIGTERM)] {
        let receiver = pair.receive(&format!("239.1.1.1%veth1:5001 --method {method} --json"));
        let sending = Process::start(mcr(&pair.sender, "send", "239.1.1.1%veth0:5001 --json"));
        let mut sending = sending.unwrap();
        let statistics = || {
            link::statistics((&pair.receiver, "veth1"))
                .unwrap()
                .received
        };
        let before = statistics();
        wait::until("packets arrive", || statistics() > before + 50).unwrap();
        assert!(sending.is_running());
        let sent = json(&sending.stop(signal).unwrap());
        let received = receiver.stop(signal).unwrap();
        assert!(received.status.success(), "{received:?}");
        assert_eq!(json(&received)["total"]["packets"], sent["sent"]["packets"]);
    }
}

#[test]
fn socat_receives_what_is_sent() {
    let Some(pair) = Pair::new() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut socat = pair.receiver.command("socat");
    socat.args([
        "-u",
        "UDP4-RECV:5001,ip-add-membership=239.1.1.1:veth1",
        &format!("OPEN:{}", file.path().display()),
    ]);
    let Ok(socat) = Process::start(socat) else {
        eprintln!("skipped: socat is not installed");
        return;
    };
    let joined = || {
        pair.receiver
            .read_proc_net("igmp")
            .unwrap()
            .contains("010101EF")
    };
    wait::until("socat has joined", joined).unwrap();
    pair.send("239.1.1.1%veth0:5001 -c 200 -r 1000 -s 100");
    let written = || file.as_file().metadata().unwrap().len();
    wait::until("socat wrote 200 payloads", || written() >= 20_000).unwrap();
    socat.stop(Signal::SIGTERM).unwrap();
    assert_eq!(written(), 20_000);
}

#[test]
fn what_is_wrong_with_the_line_is_named() {
    let Some(pair) = Pair::new() else { return };
    for (arguments, status, word) in [
        ("239.1.1.1%veth9:5001", 69, "veth0"),
        ("239.1.1.1%veth0", 2, "port"),
        ("239.1.1.1%veth0:5001 --size 8", 2, "32"),
        ("239.1.1.1%veth0:5001 --rate none", 2, "none"),
        ("239.1.1.1%veth0:5001 --lose 101", 2, "100"),
        ("239.1.1.1%veth0:5001 --rate -5", 2, "above 0"),
        ("239.1.1.1%veth0:5001 --rate 1e308G", 2, "too large"),
        ("239.1.1.1%veth0:5001 --ttl 0", 2, "--ttl"),
        ("239.1.1.1%veth0:5001 --burst 0", 2, "--burst"),
        ("239.1.1.1%veth0:5001 --streams 0", 2, "--streams"),
        ("239.1.1.1%veth0:5001 --source fd00::1", 2, "family"),
        ("239.1.1.1%veth0:5001 --source 127.0.0.1", 69, "none but lo"),
        ("239.1.1.1%veth0:5001 --cpu 9999", 69, "usable"),
        ("239.1.1.1:5001", 69, "interface"),
        ("239.1.1.1%veth0:65535 --streams 2", 2, "65535"),
        ("10.0.0.2:5001 --method raw", 2, "group"),
        ("239.1.1.1%veth0:5001 --replay /dev/null", 2, "/dev/null"),
        ("10.99.0.1:5001", 69, "10.99.0.1"),
        ("", 2, "DESTINATION"),
        ("--line 239.1.1.1%veth0:5001,loss=5%", 2, "lose"),
        ("--line 239.1.1.1%veth9:5001", 69, "veth0"),
        (
            "--line 239.1.1.1%veth0:5001 239.1.1.1%veth0:5001",
            2,
            "--line",
        ),
        ("--line 239.1.1.1%veth0:5001 --lose 5", 2, "--lose"),
        ("239.1.1.1%veth0:5001 --senders 2", 2, "--senders"),
        ("239.1.1.1%veth0:5001 --start 9", 2, "--framing rtp"),
        ("239.1.1.1%veth0:5001 --restart 1.5", 2, "1500ms"),
        (
            "239.1.1.1%veth0:5001 --framing rtp --rate max --restart 1s",
            2,
            "--rate",
        ),
    ] {
        let finished = pair.send(arguments);
        assert_eq!(
            finished.status.code(),
            Some(status),
            "{arguments}: {finished:?}"
        );
        assert!(finished.stderr.contains(word), "{arguments}: {finished:?}");
    }
    for (arguments, status, word) in [
        ("239.1.1.1:5001", 2, "interface"),
        ("239.1.1.1%veth9:5001", 69, "veth1"),
        ("10.0.0.77:5001", 69, "10.0.0.77"),
        ("10.0.0.1@232.1.1.1%veth1:5001 --method bpf", 2, "sources"),
    ] {
        let process = Process::start(mcr(&pair.receiver, "receive", arguments)).unwrap();
        let finished = process.wait(PATIENCE).unwrap();
        assert_eq!(
            finished.status.code(),
            Some(status),
            "{arguments}: {finished:?}"
        );
        assert!(finished.stderr.contains(word), "{arguments}: {finished:?}");
    }
}
