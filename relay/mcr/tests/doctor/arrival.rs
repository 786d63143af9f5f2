//! Rules that receive nothing: the doctor reports what arrives instead.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::frame::FrameSender;
use lab::link;
use lab::process::Process;
use lab::socket::Sender;
use lab::topology::Chain;
use lab::wait;
use packet::craft::Craft;

use super::bed::{Diagnosis, diagnose};

const OUTPUT: &str = "239.10.1.1%veth2:6001";
const OUTPUT_6: &str = "[ff0e::9%veth2]:6001";

/// Diagnoses a relay with rules while streams are sent to the destinations `sending`, from the sender or,
/// for veth3, from the sink.
fn diagnosis(path: &str, rules: &[(&str, &str)], sending: &[&str]) -> Option<Diagnosis> {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return None;
    }
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    for (name, input) in rules {
        let output = if input.contains('[') {
            OUTPUT_6
        } else {
            OUTPUT
        };
        daemon.add(name, input, &[output]).unwrap();
    }
    let received = |interface| {
        link::statistics((&chain.relay, interface))
            .unwrap()
            .received
    };
    let streams: Vec<Process> = sending
        .iter()
        .map(|destination| {
            let host = if destination.contains("veth3") {
                &chain.sink
            } else {
                &chain.sender
            };
            let mut command = host.command(env!("CARGO_BIN_EXE_mcr"));
            command.args(["send", "--rate", "100", "--duration", "60", destination]);
            Process::start(command).unwrap()
        })
        .collect();
    let before = received("veth1") + received("veth2");
    wait::until("the streams flow", || {
        streams.is_empty() || received("veth1") + received("veth2") > before + 50
    })
    .unwrap();
    Some(diagnose(&daemon))
}

lab::on_both_paths!(
    tells_the_port_at_which_the_group_arrives,
    tells_from_whom_the_group_arrives,
    tells_on_which_interface_the_group_arrives,
    tells_that_nothing_arrives_and_what_does,
    names_pgm_for_what_it_is,
    ignores_rules_that_receive,
    ignores_rules_that_may_be_silent,
    tells_of_a_sender_on_the_relay_itself,
    reports_what_to_join_where_a_range_is_too_large,
);

fn tells_of_a_sender_on_the_relay_itself(path: &str) {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return;
    }
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let group = "239.1.1.1%veth1:5001";
    daemon.add("cam1", group, &[OUTPUT]).unwrap();
    // The lab's sender does not loop its packets back to its own host.
    let sender = Sender::open((&chain.relay, "veth1"), "10.0.0.2".parse().unwrap()).unwrap();
    let stream = Repeated::start(move || {
        sender
            .send("239.1.1.1".parse().unwrap(), 5001, &[7; 100])
            .unwrap();
    });
    let words = [
        "a program of this host sends 239.1.1.1 at port 5001 by veth1",
        "IP_MULTICAST_LOOP",
        "write the input as 239.1.1.1%lo:5001",
        "ip route add 239.1.1.1 dev lo",
    ];
    diagnose(&daemon).has("arrival", "stops", &words);
    let socket = daemon.socket().display().to_string();
    let mut discover = chain.relay.command(env!("CARGO_BIN_EXE_mcr"));
    discover.args(["discover", "--duration", "1s", "--socket", &socket]);
    let listed = String::from_utf8(discover.output().unwrap().stdout).unwrap();
    for word in [
        "veth1 (sent)",
        "mcr add 239.1.1.1%lo:5001 OUTPUT  # sent here: if cam1 gets nothing of it",
    ] {
        assert!(listed.contains(word), "no {word} in {listed}");
    }
    // After that change the rule receives, and its own copies do not count as a stream.
    daemon.client(&["remove", "cam1"]).unwrap();
    drop(stream);
    let outputs = [group, OUTPUT];
    daemon.add("cam1", "239.1.1.1%lo:5001", &outputs).unwrap();
    chain.relay.ip("route add 239.1.1.1 dev lo").unwrap();
    let mut command = chain.relay.command(env!("CARGO_BIN_EXE_mcr"));
    command.args([
        "send",
        "--rate",
        "100",
        "--duration",
        "60",
        "239.1.1.1%lo:5001",
    ]);
    let _stream = Process::start(command).unwrap();
    daemon
        .wait_for("cam1", "both outputs send", |rule| {
            rule.outputs.iter().all(|output| output.sent.packets > 0)
        })
        .unwrap();
    diagnose(&daemon).has_no("arrival");
    let mut discover = chain.relay.command(env!("CARGO_BIN_EXE_mcr"));
    discover.args(["discover", "--duration", "1s", "--socket", &socket]);
    let listed = String::from_utf8(discover.output().unwrap().stdout).unwrap();
    assert!(!listed.contains("(sent)"), "{listed}");
}

fn reports_what_to_join_where_a_range_is_too_large(path: &str) {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return;
    }
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let output = "239.12.0.0/16%veth2:6001";
    daemon
        .add("all", "239.2.0.0/16%veth1:5001", &[output])
        .unwrap();
    let source = "10.0.0.2".parse().unwrap();
    let sender = Sender::with_loopback((&chain.relay, "veth1"), source).unwrap();
    let _stream = Repeated::start(move || {
        sender
            .send("239.2.9.9".parse().unwrap(), 5001, &[7; 100])
            .unwrap();
    });
    diagnose(&daemon).has("arrival", "stops", &["mcr join 239.2.9.9%veth1"]);
    daemon.client(&["join", "239.2.9.9%veth1"]).unwrap();
    daemon
        .wait_for("all", "it comes in", |rule| rule.received.packets > 5)
        .unwrap();
}

fn tells_the_port_at_which_the_group_arrives(path: &str) {
    let rules = [("cam1", "239.1.1.1%veth1:5001")];
    let Some(diagnosis) = diagnosis(path, &rules, &["239.1.1.1%veth0:5002"]) else {
        return;
    };
    let words = [
        "239.1.1.1 arrives on veth1 at port 5002, not 5001",
        "239.1.1.1%veth1:5002",
    ];
    diagnosis.has("arrival", "stops", &words);
    assert_eq!(diagnosis.status, 5);
}

fn tells_from_whom_the_group_arrives(path: &str) {
    let rules = [("cam1", "10.0.0.77@232.1.1.1%veth1:5001")];
    let Some(diagnosis) = diagnosis(path, &rules, &["232.1.1.1%veth0:5001"]) else {
        return;
    };
    let words = ["232.1.1.1 arrives on veth1 from 10.0.0.1, not 10.0.0.77"];
    diagnosis.has("arrival", "stops", &words);
}

fn tells_on_which_interface_the_group_arrives(path: &str) {
    let rules = [("cam1", "[ff0e::1%veth1]:5001")];
    let Some(diagnosis) = diagnosis(path, &rules, &["[ff0e::1%veth3]:5002"]) else {
        return;
    };
    let words = ["ff0e::1 arrives on veth2, not veth1 and at port 5002, not 5001"];
    diagnosis.has("arrival", "stops", &words);
}

fn tells_that_nothing_arrives_and_what_does(path: &str) {
    let rules = [("cam1", "239.1.1.1%veth1:5001")];
    let Some(diagnosis) = diagnosis(path, &rules, &["239.1.1.9%veth0:5001"]) else {
        return;
    };
    let words = [
        "nothing for 239.1.1.1 arrives on any interface",
        "239.1.1.9 at port 5001 from 10.0.0.1",
    ];
    diagnosis.has("arrival", "harms", &words);
    assert_eq!(
        diagnosis.status, 0,
        "a sender that is off is no fault of this host"
    );
}

fn ignores_rules_that_receive(path: &str) {
    let rules = [("cam1", "239.1.1.1%veth1:5001")];
    let Some(diagnosis) = diagnosis(path, &rules, &["239.1.1.1%veth0:5001"]) else {
        return;
    };
    diagnosis.has_no("arrival");
}

/// A reflecting rule waits for questions, and `silence=off` allows silence.
fn ignores_rules_that_may_be_silent(path: &str) {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return;
    }
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let reflect = ["add", "239.1.1.3:5001", "--reflect", "veth1,veth2"];
    daemon.mcr(&reflect).unwrap();
    let input = "239.1.1.1%veth1:5001";
    let quiet = ["add", input, OUTPUT, "--health", "silence=off"];
    daemon.mcr(&quiet).unwrap();
    diagnose(&daemon).has_no("arrival");
}

fn names_pgm_for_what_it_is(path: &str) {
    let rules = [
        ("cam1", "239.1.1.1%veth1:5001", "239.1.1.1:5001"),
        ("cam6", "[ff0e::1%veth1]:5001", "[ff0e::1]:5001"),
    ];
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return;
    }
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.add(rules[0].0, rules[0].1, &[OUTPUT]).unwrap();
    daemon.add(rules[1].0, rules[1].1, &[OUTPUT_6]).unwrap();
    let socket = FrameSender::open((&chain.sender, "veth0")).unwrap();
    let stream = Repeated::start(move || {
        for (_, _, destination) in rules {
            socket.send(&pgm(destination)).unwrap();
        }
    });
    let diagnosis = diagnose(&daemon);
    drop(stream);
    for (name, _, destination) in rules {
        let group = destination.parse::<SocketAddr>().unwrap().ip();
        let words = [
            name,
            &format!("{group} on veth1 is PGM (IP protocol 113"),
            "UDP",
        ];
        diagnosis.has("arrival", "stops", &words);
    }
}

/// A thread that acts fifty times a second.
struct Repeated(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Repeated {
    fn start(act: impl Fn() + Send + 'static) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let is_ended = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            while !is_ended.load(Ordering::Relaxed) {
                act();
                thread::sleep(Duration::from_millis(20));
            }
        });
        Self(ended, Some(thread))
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.take().map(JoinHandle::join);
    }
}

/// A UDP frame with PGM as the protocol in its IP header.
fn pgm(destination: &str) -> Vec<u8> {
    let destination: SocketAddr = destination.parse().unwrap();
    let (source, protocol) = if destination.is_ipv4() {
        ("10.0.0.1:4000", 14 + 9)
    } else {
        ("[fd00::1]:4000", 14 + 6)
    };
    let mut frame = Craft::new(source.parse().unwrap(), destination, vec![7; 100]).frame();
    frame[protocol] = 113;
    frame
}
