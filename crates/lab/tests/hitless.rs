//! What becomes of packets and memberships while processes of MCR die: through a snooping bridge
//! that prunes a port at the first leave, nothing on the kernel path is lost.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fmt::Write;
use std::fs;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lab::capture::Capture;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::process::Process;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;
use nix::sys::signal::Signal;

const PATIENCE: Duration = Duration::from_secs(5);
const INPUT: &str = "239.1.1.1%veth1:5001";
const OUTPUT: &str = "239.10.1.1%veth2:6001";
/// IGMPv2 leave; IGMPv3 records that change to including nothing or block sources.
const LEAVES: &str = "igmp.type == 0x17 || igmp.record_type == 3 || igmp.record_type == 6";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn no_packet_and_no_leave_when_the_daemon_is_killed() {
    let bed = Bed::new(Options::path("kernel"));
    bed.loses_nothing(|daemon| {
        for _ in 0..5 {
            daemon.kill().unwrap();
            daemon.start_again().unwrap();
        }
    });
}

#[test]
fn no_packet_and_no_leave_when_a_daemon_hands_over() {
    let bed = Bed::new(Options {
        arguments: vec!["--keep-forwarding".to_owned()],
        ..Options::path("kernel")
    });
    bed.loses_nothing(|daemon| {
        for _ in 0..3 {
            daemon.stop(Signal::SIGTERM).unwrap();
            daemon.start_again().unwrap();
        }
    });
}

#[test]
fn no_packet_and_no_leave_when_killed_amid_transactions() {
    const MORE: usize = 200;
    let bed = Bed::new(Options::path("kernel"));
    let directory = tempfile::tempdir().unwrap();
    let files = [MORE, 0].map(|more| {
        let file = directory.path().join(format!("{more}.toml"));
        fs::write(&file, rules(more)).unwrap();
        file
    });
    bed.loses_nothing(|daemon| {
        for round in 0..8 {
            let mut apply = std::process::Command::new(lab::binary::mcr().unwrap());
            apply.arg("--socket").arg(daemon.socket());
            apply.arg("apply").arg(&files[round % 2]);
            let apply = Process::start(apply).unwrap();
            // Another moment of the transaction in each round, on purpose.
            thread::sleep(Duration::from_millis(15 * round as u64));
            daemon.kill().unwrap();
            apply.wait(PATIENCE).unwrap();
            daemon.start_again().unwrap();
            let rules = daemon.stats().unwrap().rules.len();
            assert!(
                rules == 1 || rules == 1 + MORE,
                "round {round}: {rules} rules, half a transaction"
            );
        }
    });
}

/// A relay behind a snooping bridge with immediate leave, and a daemon with one rule.
struct Bed {
    // Dropped first: it stops in the chain's namespaces.
    daemon: Daemon,
    chain: Chain,
}

impl Bed {
    fn new(options: Options) -> Self {
        let chain = Chain::snooping().unwrap();
        let switch = chain.switch.as_ref().unwrap();
        switch
            .tool("bridge", "link set dev port1 fastleave on")
            .unwrap();
        let daemon = Daemon::start(&chain.relay, options).unwrap();
        daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
        link::wait_for_member((switch, "br0"), "239.1.1.1").unwrap();
        Self { daemon, chain }
    }

    /// Holds a stream against `faults`: each packet arrives and is counted, no leave is on the
    /// wire. That a leave would have been seen is shown by the clean stop at the end.
    fn loses_nothing(mut self, faults: impl FnOnce(&mut Daemon)) {
        let relay = (&self.chain.relay, "veth1");
        let capture = Capture::start(relay, "igmp").unwrap();
        let sink = Receiver::join((&self.chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
        let sent = stream_while(&self.chain, || faults(&mut self.daemon));
        sink.expect(sent, PATIENCE).unwrap();
        let rule = self.daemon.settled("cam1", sent).unwrap();
        assert_eq!(rule.outputs[0].sent.packets, sent);
        let captured = capture.finish().unwrap();
        let cam1 = format!("({LEAVES}) && igmp.maddr == 239.1.1.1");
        assert_eq!(
            captured.count(&cam1).unwrap(),
            0,
            "leaves in {sent} packets"
        );

        let control = Capture::start(relay, "igmp").unwrap();
        self.daemon.mcr(&["remove", "cam1"]).unwrap();
        lab::wait::until("the bridge has forgotten the group", || {
            let switch = self.chain.switch.as_ref().unwrap();
            let shown = switch.tool("bridge", "mdb show dev br0").unwrap();
            !shown.contains("grp 239.1.1.1 ")
        })
        .unwrap();
        let seen = control.finish().unwrap().count(&cam1).unwrap();
        assert!(seen > 0, "the capture is blind to leaves");
    }
}

fn rules(more: usize) -> String {
    let mut text = "version = 1\n".to_owned();
    let mut rule = |name: &str, input: &str, output: &str| {
        writeln!(
            text,
            "[[rule]]\nname = {name:?}\ninput = {input:?}\noutputs = [{output:?}]"
        )
        .unwrap();
    };
    rule("cam1", INPUT, OUTPUT);
    for number in 0..more {
        let input = format!("239.2.0.{number}%veth1:5001");
        let output = format!("239.20.0.{number}%veth2:6001");
        rule(&format!("more{number}"), &input, &output);
    }
    text
}

/// Sends about 1,000 packets a second for as long as `work` takes and hands back how many.
fn stream_while(chain: &Chain, work: impl FnOnce()) -> u64 {
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let stop = AtomicBool::new(false);
    // Set when `work` panics too, or the scope would wait for the stream for ever.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                let payload = lab::socket::payload(number, 200);
                sender.send(ip("239.1.1.1"), 5001, &payload).unwrap();
                number += 1;
                thread::sleep(Duration::from_millis(1));
            }
            number
        });
        let guard = Stop(&stop);
        work();
        drop(guard);
        stream.join().unwrap()
    })
}
