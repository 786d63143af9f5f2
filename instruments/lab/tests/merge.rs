//! Lines with the same packets, merged into one stream: what any of them delivered leaves once, and
//! every line's account equals the sender's.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod decoder;
mod runs;
mod table;

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::socket::{Datagram, Receiver, Sender, payload};
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::Signal;

use runs::{Bed, GROUPS, line, rule};

lab::on_both_paths!(
    what_goes_on_any_line_leaves_once,
    other_numberings_are_merged_alike,
    a_sender_that_begins_anew_is_followed,
    a_line_comes_back_after_more_than_is_remembered,
    a_stream_goes_on_after_more_than_is_remembered,
    each_of_fifty_outputs_gets_each_number_once,
    segments_of_super_packets_are_judged_one_by_one,
    fragments_follow_their_first,
    a_killed_daemon_makes_no_copy_pass_twice,
    lines_and_outputs_come_and_go_in_a_running_merge,
    memory_and_path_change_in_a_running_merge,
    a_line_that_falls_silent_is_told,
    lines_of_different_senders_are_told,
    a_merge_that_cannot_be_is_refused_by_name,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

// Where the window does not matter it is the longest: on a busy machine lines diverge by more than the
// test sets.

fn what_goes_on_any_line_leaves_once(path: &str) {
    // Remembers the whole run: on a busy machine either line may be late.
    let merge = r#"{ by = "rtp", window = "500ms", packets = 8192 }"#;
    let bed = Bed::new(path, &rule(2, merge));
    let run = bed.run(
        "rtp",
        2000,
        "2",
        &["lose=10%,burst=4", "lose=10%,delay=40ms"],
        &[],
    );
    run.assert_once();
    run.assert_account();
}

fn other_numberings_are_merged_alike(path: &str) {
    let little =
        r#"{ by = "sequence", offset = 0, bytes = 4, order = "little", window = "500ms" }"#;
    for (framing, merge) in [
        ("moldudp64", r#"{ by = "moldudp64", window = "500ms" }"#),
        ("mdp3", r#"{ by = "mdp3", window = "500ms" }"#),
        ("mdp3", little),
        ("own", r#"{ by = "payload", window = "500ms" }"#),
    ] {
        let bed = Bed::new(path, &rule(2, merge));
        let faults = ["lose=5%", "lose=5%,delay=5ms"];
        let run = bed.run(framing, 1000, "1", &faults, &[]);
        if framing == "own" {
            run.assert_once_within(Duration::from_millis(500));
        } else {
            run.assert_once();
            run.assert_account();
        }
    }
}

fn a_sender_that_begins_anew_is_followed(path: &str) {
    let bed = Bed::new(path, &rule(2, r#"{ by = "rtp", window = "200ms" }"#));
    let faults = ["lose=0.5%", "lose=0.5%,delay=20ms"];
    let more = ["--restart", "600ms", "--start", "65000"];
    let run = bed.run("rtp", 2000, "2", &faults, &more);
    run.assert_once();
    assert_eq!(run.rule()["merge"]["streams"], 2, "{:?}", run.rule());
}

/// One line is away for 3,000 numbers, of which 2,048 are remembered: the other delivers them, once.
fn a_line_comes_back_after_more_than_is_remembered(path: &str) {
    let bed = Bed::new(path, &rule(2, r#"{ by = "rtp", window = "200ms" }"#));
    let faults = ["cut=300ms-1800ms", "lose=1%,delay=20ms"];
    let run = bed.run("rtp", 2000, "3", &faults, &[]);
    run.assert_once();
    run.assert_account();
    assert_eq!(run.rule()["merge"]["streams"], 1, "{:?}", run.rule());
}

/// All lines are away: what follows passes, once, as a new stream. How many numbers lie between two
/// streams is unknown, so they do not count as lost.
fn a_stream_goes_on_after_more_than_is_remembered(path: &str) {
    let bed = Bed::new(path, &rule(2, r#"{ by = "rtp", window = "200ms" }"#));
    let faults = ["cut=300ms-1800ms", "cut=300ms-1800ms,delay=20ms"];
    let run = bed.run("rtp", 2000, "3", &faults, &[]);
    run.assert_once();
    assert!(run.sent["union"]["lost"].as_u64() > Some(2048), "{run:?}");
    let rule = run.rule();
    assert_eq!(rule["merge"]["lost"], 0, "{rule:?}");
    assert_eq!(rule["merge"]["streams"], 2, "{rule:?}");
    for input in rule["inputs"].as_array().unwrap() {
        assert_eq!((&input["late"], &input["stray"]), (&0.into(), &0.into()));
    }
    let log = bed.daemon.log();
    assert!(log.contains("event=\"stream_restarted\""), "{log}");
}

fn each_of_fifty_outputs_gets_each_number_once(path: &str) {
    let bed = Bed::fan_out(
        path,
        50,
        r#"{ by = "rtp", window = "500ms", packets = 8192 }"#,
    );
    let run = bed.run(
        "rtp",
        300,
        "2",
        &["lose=10%,burst=4", "lose=10%,delay=40ms"],
        &[],
    );
    assert_eq!(run.unions("received").len(), 50, "{run:?}");
    run.assert_once();
    run.assert_account();
}

fn segments_of_super_packets_are_judged_one_by_one(path: &str) {
    let bed = Bed::new(
        path,
        &rule(2, r#"{ by = "rtp", window = "500ms", packets = 8192 }"#),
    );
    let faults = ["lose=5%", "lose=5%,delay=5ms"];
    let more = ["--burst", "8", "--method", "gso"];
    let run = bed.run("rtp", 2000, "2", &faults, &more);
    run.assert_once();
    run.assert_account();
}

/// By sockets that fragment, beyond the MTU.
fn fragments_follow_their_first(path: &str) {
    let merge = r#"{ by = "rtp", window = "500ms", packets = 8192 }"#;
    let bed = Bed::new(path, &rule(2, merge));
    let faults = ["lose=5%", "lose=5%,delay=5ms"];
    let more = ["--size", "4000", "--method", "sockets"];
    let run = bed.run("rtp", 250, "2", &faults, &more);
    run.assert_once();
}

fn a_killed_daemon_makes_no_copy_pass_twice(path: &str) {
    let mut bed = Bed::new(path, &rule(2, r#"{ by = "rtp", window = "400ms" }"#));
    let running = bed.begin("rtp", 1000, "4", &["lose=2%", "delay=40ms"], &[]);
    thread::sleep(Duration::from_secs(1));
    bed.daemon.kill().unwrap();
    bed.daemon.start_again().unwrap();
    let run = bed.end(running);
    assert_eq!(run.union("twice"), 0, "{run:?}");
    if path == "kernel" {
        assert_eq!(run.union("missing"), 0, "{run:?}");
    }
    bed.daemon.stop(Signal::SIGTERM).unwrap();
}

fn lines_and_outputs_come_and_go_in_a_running_merge(path: &str) {
    let merge = r#"{ by = "rtp", window = "200ms" }"#;
    let bed = Bed::new(path, &rule(2, merge));
    let faults = ["lose=2%", "", "lose=2%,delay=5ms"];
    let running = bed.begin("rtp", 1000, "4", &faults, &[]);
    let step = || thread::sleep(Duration::from_millis(500));
    // The third is added, the first removed and added again; the second covers for it.
    for lines in [&[0, 1, 2][..], &[1, 2], &[0, 1, 2], &[0, 1]] {
        step();
        let names: Vec<String> = lines.iter().copied().map(line).collect();
        let inputs: Vec<&str> = names.iter().map(String::as_str).collect();
        bed.daemon.apply(&runs::rule_of(&inputs, merge)).unwrap();
    }
    step();
    bed.daemon
        .mcr(&["change", "cam", "--add-output", "239.10.1.2%veth2:6001"])
        .unwrap();
    let run = bed.end(running);
    run.assert_once();
}

/// Twenty packets are in flight: they leave twice at each change, and no line has missed them.
fn memory_and_path_change_in_a_running_merge(path: &str) {
    for by in ["rtp", "payload"] {
        let merge = format!(r#"{{ by = "{by}", window = "100ms" }}"#);
        let bed = Bed::new(path, &rule(2, &merge));
        let running = bed.begin("rtp", 1000, "4", &["", "delay=20ms"], &[]);
        let other = if path == "kernel" {
            "userspace"
        } else {
            "kernel"
        };
        for change in ["merge.packets=4096", &format!("path={other}")] {
            thread::sleep(Duration::from_secs(1));
            bed.daemon.mcr(&["change", "cam", "--set", change]).unwrap();
        }
        let run = bed.end(running);
        run.assert_seam(
            Duration::from_millis(100),
            if other == "kernel" { 0 } else { 250 },
        );
    }
}

fn a_line_that_falls_silent_is_told(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let merge = r#"{ by = "rtp", window = "500ms" }"#;
    daemon.apply(&rule(2, merge)).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let send = |number: u16, lines: usize| {
        for group in &GROUPS[..lines] {
            sender.send(ip(group), 5001, &rtp(number, 7)).unwrap();
        }
        thread::sleep(Duration::from_millis(2));
    };
    let mut number = 0;
    wait::until_within(
        Duration::from_secs(20),
        "both lines bring something",
        || {
            for _ in 0..100 {
                send(number, 2);
                number += 1;
            }
            let rule = daemon.rule("cam").unwrap();
            let arrived = |input: &api::reply::InputStats| input.received.packets > 0;
            rule.state == api::reply::State::Up && rule.inputs.iter().all(arrived)
        },
    )
    .unwrap();
    wait::until_within(Duration::from_secs(20), "the line is told", || {
        for _ in 0..100 {
            send(number, 1);
            number += 1;
        }
        daemon.log().contains("event=\"line_down\"")
    })
    .unwrap();
    let rule = daemon.rule("cam").unwrap();
    assert_eq!(rule.state, api::reply::State::Degraded, "{rule:?}");
    let reason = rule.state_reason.unwrap();
    assert!(reason.contains(GROUPS[1]), "{reason}");
    wait::until_within(Duration::from_secs(20), "the line is told again", || {
        for _ in 0..100 {
            send(number, 2);
            number += 1;
        }
        daemon.log().contains("event=\"line_up\"")
    })
    .unwrap();
}

fn lines_of_different_senders_are_told(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .apply(&rule(
            2,
            r#"{ by = "rtp", window = "500ms", packets = 8192 }"#,
        ))
        .unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let send = |line: usize, number| {
        let packet = rtp(number, 7 + line as u8);
        sender.send(ip(GROUPS[line]), 5001, &packet).unwrap();
    };
    // Longer than from one reading to the next: what the first one finds is not news.
    for number in 0..200 {
        send(0, number);
        send(1, number);
        thread::sleep(Duration::from_millis(10));
    }
    let received = sink.collect(200, Duration::from_secs(20)).unwrap();
    let first = &received[0].payload;
    // Either sender's may be first: two workers may take the lines.
    let of_first = |datagram: &Datagram| datagram.payload[11] == first[11];
    assert!(received.iter().all(of_first), "one sender's only");
    sink.expect_nothing(Duration::from_millis(300)).unwrap();
    wait::until("it is told", || {
        daemon.log().contains("event=\"lines_differ\"")
    })
    .unwrap();
    let rule = daemon.settled("cam", 400).unwrap();
    assert_eq!(rule.dropped.get("stray"), Some(&200), "{rule:?}");
}

fn a_merge_that_cannot_be_is_refused_by_name(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let refused = |arguments: &[&str]| {
        let mut all = vec!["add", "239.1.1.1%veth1:5001", "239.10.1.1%veth2:6001"];
        all.extend(arguments);
        let refused = daemon.client(&all).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        refused.stderr
    };
    let second = ["--input", "239.1.1.2%veth1:5001"];
    assert!(refused(&["--merge", "rtp"]).contains("one input"));
    let both = [&second[..], &["--merge", "rtp", "--failover", "1s"]].concat();
    assert!(refused(&both).contains("failover"));
    let unknown = [&second[..], &["--merge", "rtcp"]].concat();
    assert!(refused(&unknown).contains("rtcp"));
    let valid = [
        &["add", "239.1.1.1%veth1:5001", "239.10.1.1%veth2:6001"],
        &second[..],
        &["--merge", "by=rtp,window=100ms"],
    ]
    .concat();
    daemon.mcr(&valid).unwrap();
    let exported = daemon.mcr(&["export"]).unwrap();
    assert!(exported.contains("window = \"100ms\""), "{exported}");
}

/// An RTP packet.
fn rtp(number: u16, ssrc: u8) -> Vec<u8> {
    let mut packet = vec![0x80, 96];
    packet.extend(number.to_be_bytes());
    packet.extend([0, 0, 0, 0, 0, 0, 0, ssrc]);
    packet.extend(payload(number.into(), 100));
    packet
}
