//! Standby inputs: which one is relayed, when another takes over, and that it works without any process
//! of MCR.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod gaps;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use api::reply::{RuleStats, State};
use lab::daemon::{Daemon, Options};
use lab::socket::{Receiver, Sender, number, payload};
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::Signal;

const A: &str = "239.1.1.1%veth1:5001";
const B: &str = "239.1.1.2%veth1:5001";
const C: &str = "239.1.1.3%veth1:5001";
const GROUPS: [&str; 3] = ["239.1.1.1", "239.1.1.2", "239.1.1.3"];
const SIZE: usize = 100;
/// Time between two packets of a leg.
const STEP: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(20);

lab::on_both_paths!(
    a_silent_input_is_relieved_and_comes_back_when_it_is_steady,
    the_choice_outlives_the_daemon,
    another_input_is_relayed_on_demand,
    an_input_with_trouble_is_left_for_one_that_is_well,
    inputs_come_and_go_while_one_is_relayed,
    a_failover_that_cannot_be_is_refused_by_name,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn rule(inputs: &[&str], failover: &str) -> String {
    format!(
        "version = 1\n[[rule]]\nname = \"news\"\ninputs = {inputs:?}\n\
         outputs = [\"239.10.1.1%veth2:6001\"]\nfailover = {failover}\n"
    )
}

/// A packet each step on each leg that is on; its number encodes leg and step.
struct Lines<'a> {
    on: [AtomicBool; 3],
    sent: [AtomicU64; 3],
    ended: AtomicBool,
    sender: &'a Sender,
}

impl<'a> Lines<'a> {
    fn new(sender: &'a Sender, on: [bool; 3]) -> Self {
        Self {
            on: on.map(AtomicBool::new),
            sent: Default::default(),
            ended: AtomicBool::new(false),
            sender,
        }
    }

    fn set(&self, line: usize, on: bool) {
        self.on[line].store(on, Ordering::SeqCst);
    }

    /// Sends until it is stopped.
    fn run(&self) {
        let start = Instant::now();
        for step in 0.. {
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            for (line, group) in GROUPS.iter().enumerate() {
                if self.on[line].load(Ordering::SeqCst) {
                    let packet = payload((line as u64) << 32 | u64::from(step), SIZE);
                    self.sender.send(ip(group), 5001, &packet).unwrap();
                    self.sent[line].fetch_add(1, Ordering::SeqCst);
                }
            }
            let next = STEP * (step + 1);
            thread::sleep(next.saturating_sub(start.elapsed()));
        }
    }

    /// Runs while `work` does.
    fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        struct End<'e>(&'e AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        thread::scope(|scope| {
            scope.spawn(|| self.run());
            let _end = End(&self.ended);
            work()
        })
    }
}

/// Waits for packets of one leg and nothing else, after remaining ones of others.
fn follow(sink: &Receiver, line: u64) {
    let deadline = Instant::now() + PATIENCE;
    let mut in_a_row = 0;
    while in_a_row < 50 {
        let datagram = sink.receive(Duration::from_millis(500)).unwrap();
        let from = datagram.map(|datagram| number(&datagram.payload).unwrap() >> 32);
        in_a_row = if from == Some(line) { in_a_row + 1 } else { 0 };
        assert!(Instant::now() < deadline, "line {line} is not relayed");
    }
}

fn active(daemon: &Daemon, line: &str, switches: u64) -> RuleStats {
    let what = format!("{line} active after {switches} switches");
    let is_so =
        |rule: &RuleStats| rule.active.as_deref() == Some(line) && rule.switches == Some(switches);
    daemon.wait_for("news", &what, is_so).unwrap()
}

/// Received packets are those sent and those dropped on standby.
fn assert_law(rule: &RuleStats) {
    let standby: u64 = rule
        .inputs
        .iter()
        .flat_map(|i| i.dropped.get("standby"))
        .sum();
    let dropped: u64 = rule.dropped.values().sum();
    assert_eq!(
        rule.dropped.get("standby").copied().unwrap_or(0),
        standby,
        "{rule:?}"
    );
    let sent = rule.outputs[0].sent.packets;
    assert_eq!(rule.received.packets, sent + dropped, "{rule:?}");
}

fn a_silent_input_is_relieved_and_comes_back_when_it_is_steady(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let failover = r#"{ silence = "300ms", revert = "2s" }"#;
    daemon.apply(&rule(&[A, B], failover)).unwrap();
    let lines = Lines::new(&sender, [true, true, false]);
    lines.during(|| {
        follow(&sink, 0);
        active(&daemon, A, 0);
        lines.set(0, false);
        follow(&sink, 1);
        let is_degraded = |rule: &RuleStats| rule.state == State::Degraded;
        let rule = daemon
            .wait_for("news", "the silent input", is_degraded)
            .unwrap();
        assert_eq!(rule.active.as_deref(), Some(B));
        let reason = rule.state_reason.as_deref();
        assert_eq!(reason, Some("input 239.1.1.1%veth1:5001 is silent"));
        assert_eq!(rule.inputs[1].active, Some(true));
        lines.set(0, true);
        follow(&sink, 0);
        let rule = active(&daemon, A, 2);
        assert!(rule.active_seconds.unwrap() < 20.0);
        daemon
            .wait_for("news", "both inputs", |rule| rule.state == State::Up)
            .unwrap();
        let events = |kind: &str| daemon.log().matches(&format!("event=\"{kind}\"")).count();
        wait::until("both switches are told", || events("input_switched") == 2).unwrap();
        assert_eq!((events("line_down"), events("line_up")), (1, 1));
        assert_eq!(events("drops_began"), 0);
    });
    let sent = lines.sent.each_ref().map(|n| n.load(Ordering::SeqCst));
    let rule = daemon.settled("news", sent.iter().sum()).unwrap();
    assert_law(&rule);
    let shown = daemon.mcr(&["show", "news"]).unwrap();
    assert!(
        shown.contains("joined, active") && shown.contains("joined, stands by"),
        "{shown}"
    );
    assert!(
        shown.contains("option    failover=silence=300ms,revert=2s"),
        "{shown}"
    );
}

fn the_choice_outlives_the_daemon(path: &str) {
    let chain = Chain::plain().unwrap();
    let mut daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    daemon.apply(&rule(&[A, B], "\"300ms\"")).unwrap();
    let lines = Lines::new(&sender, [true, true, false]);
    lines.during(|| {
        follow(&sink, 0);
        daemon.kill().unwrap();
        // No daemon observes this.
        lines.set(0, false);
        follow(&sink, 1);
        lines.set(0, true);
        daemon.start_again().unwrap();
        active(&daemon, B, 1);
        follow(&sink, 1);
        daemon.stop(Signal::SIGTERM).unwrap();
    });
}

fn another_input_is_relayed_on_demand(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let failover = r#"{ silence = "3s", revert = "3s" }"#;
    daemon.apply(&rule(&[A, B], failover)).unwrap();
    let lines = Lines::new(&sender, [true, true, false]);
    lines.during(|| {
        follow(&sink, 0);
        daemon.mcr(&["switch", "news", B]).unwrap();
        follow(&sink, 1);
        active(&daemon, B, 1);
        // The first has been steady all the time; its time counts from the switch.
        follow(&sink, 0);
        active(&daemon, A, 2);
    });
    let refused = daemon.client(&["switch", "news", C]).unwrap();
    let error = &refused.stderr;
    assert!(
        error.contains("no input 239.1.1.3%veth1:5001; it has"),
        "{error}"
    );
    let refused = daemon.client(&["switch", "old", B]).unwrap();
    assert_eq!(refused.status.code(), Some(3));
}

fn inputs_come_and_go_while_one_is_relayed(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    daemon.apply(&rule(&[A, B], "\"300ms\"")).unwrap();
    let lines = Lines::new(&sender, [false, true, true]);
    lines.during(|| {
        follow(&sink, 1);
        active(&daemon, B, 1);
        // Another order, and another input in front, do not change which is relayed.
        daemon.apply(&rule(&[C, A, B], "\"300ms\"")).unwrap();
        follow(&sink, 1);
        active(&daemon, B, 1);
        // The relayed one is removed: another that delivers is relayed at once.
        daemon.apply(&rule(&[A, C], "\"300ms\"")).unwrap();
        follow(&sink, 2);
        assert_eq!(daemon.rule("news").unwrap().active.as_deref(), Some(C));
        // Without failover both are relayed.
        let both = rule(&[A, C], "\"300ms\"").replace("failover = \"300ms\"\n", "");
        daemon.apply(&both).unwrap();
        assert_eq!(daemon.rule("news").unwrap().active, None);
        lines.set(0, true);
        let mut seen = [false; 3];
        let deadline = Instant::now() + PATIENCE;
        while !(seen[0] && seen[2]) {
            let datagram = sink.receive(Duration::from_secs(1)).unwrap().unwrap();
            seen[(number(&datagram.payload).unwrap() >> 32) as usize] = true;
            assert!(Instant::now() < deadline);
        }
    });
}

/// A third of the first leg's packets arrive, without a silence that is long enough.
fn an_input_with_trouble_is_left_for_one_that_is_well(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let failover = r#"{ silence = "2s", on = "degraded" }"#;
    let health = "health = { rate_min = \"600pps\", content = \"none\" }\n";
    daemon.apply(&(rule(&[A, B], failover) + health)).unwrap();
    let lines = Lines::new(&sender, [true, true, false]);
    lines.during(|| {
        follow(&sink, 0);
        let deadline = Instant::now() + PATIENCE;
        while daemon.rule("news").unwrap().active.as_deref() == Some(A) {
            assert!(Instant::now() < deadline, "it is not left");
            for (on, time) in [(false, 100), (true, 50)] {
                lines.set(0, on);
                thread::sleep(Duration::from_millis(time));
            }
        }
        lines.set(0, true);
        follow(&sink, 1);
        active(&daemon, B, 1);
    });
    let why = format!("input {B} is relayed now, {A} was: the rate was ");
    wait::until("it is told why", || daemon.log().contains(&why)).unwrap();
}

fn a_failover_that_cannot_be_is_refused_by_name(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let refused = |arguments: &[&str]| {
        let mut all = vec!["add", A, "239.10.1.1%veth2:6001"];
        all.extend(arguments);
        let refused = daemon.client(&all).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        refused.stderr
    };
    let error = refused(&["--failover", "200ms"]);
    assert!(
        error.contains("has one input; give a second one"),
        "{error}"
    );
    let error = refused(&["--input", B, "--failover", "on=degraded"]);
    assert!(error.contains("goes by the rule's health"), "{error}");
    let range = "239.1.2.0/24%veth1:5001";
    let error = refused(&["--input", range, "--failover", "200ms"]);
    assert!(
        error.contains("239.1.2.0/24%veth1:5001 may be several streams"),
        "{error}"
    );
    let error = refused(&["--input", B, "--failover", "silence=2"]);
    assert!(error.contains("give a time from 1ms to 1m"), "{error}");
    daemon
        .mcr(&[
            "add",
            A,
            "239.10.1.1%veth2:6001",
            "--input",
            B,
            "--failover",
            "silence=200ms,revert=30s",
        ])
        .unwrap();
    let exported = daemon.mcr(&["export"]).unwrap();
    assert!(
        exported.contains("silence = \"200ms\"") && exported.contains("revert = \"30s\""),
        "{exported}"
    );
}
