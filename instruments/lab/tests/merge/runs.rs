//! A run: `mcr send --line`, a rule that merges, `mcr receive --sent`, and the account of each.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::process::Process;
use lab::topology::Chain;
use lab::{binary, process, wait};
use serde_json::Value;
use tempfile::TempDir;

/// The legs' groups.
pub(super) const GROUPS: [&str; 4] = ["239.1.1.1", "239.1.1.2", "239.1.1.3", "239.1.1.4"];
const PATIENCE: Duration = Duration::from_secs(60);
/// The shortest window for which accounts are checked.
const WINDOW: Duration = Duration::from_millis(200);

/// A sender, a relay with one rule, a sink.
pub(super) struct Bed {
    pub(super) daemon: Daemon,
    pub(super) chain: Chain,
    outputs: usize,
    directory: TempDir,
}

/// A running sender and receiver.
pub(super) struct Running {
    receiver: Process,
    sender: Process,
    sent: PathBuf,
    /// How long the workers had waited for a CPU when it began.
    waited: Duration,
}

/// The accounts of sender, receiver and relay.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) sent: Value,
    pub(super) received: Value,
    stats: Value,
    /// Whether the relay reported a leg that was behind by more than half the window, or the machine delayed
    /// the workers for longer than the shortest window.
    was_delayed: bool,
}

/// A leg as the relay's input.
pub(super) fn line(number: usize) -> String {
    format!("{}%veth1:5001", GROUPS[number])
}

/// A configuration that merges the first legs.
pub(super) fn rule(lines: usize, merge: &str) -> String {
    rule_to(1, lines, merge)
}

/// The same with several outputs.
fn rule_to(outputs: usize, lines: usize, merge: &str) -> String {
    let endpoints: Vec<String> = (0..lines).map(line).collect();
    let inputs: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    config(&inputs, outputs, merge)
}

/// A configuration that merges these inputs.
pub(super) fn rule_of(inputs: &[&str], merge: &str) -> String {
    config(inputs, 1, merge)
}

fn config(inputs: &[&str], outputs: usize, merge: &str) -> String {
    let outputs: Vec<String> = (0..outputs).map(|number| output(number, "veth2")).collect();
    format!(
        "version = 1\n[[rule]]\nname = \"cam\"\ninputs = {inputs:?}\n\
         outputs = {outputs:?}\nmerge = {merge}\n"
    )
}

/// An output, as the relay or the receiver writes it.
fn output(number: usize, interface: &str) -> String {
    format!("239.10.1.{}%{interface}:6001", number + 1)
}

impl Bed {
    pub(super) fn new(path: &str, config: &str) -> Self {
        Self::with(Options::path(path), config)
    }

    pub(super) fn with(options: Options, config: &str) -> Self {
        Self::of(1, options, config)
    }

    /// A rule with two legs and several outputs.
    pub(super) fn fan_out(path: &str, outputs: usize, merge: &str) -> Self {
        Self::of(outputs, Options::path(path), &rule_to(outputs, 2, merge))
    }

    fn of(outputs: usize, options: Options, config: &str) -> Self {
        let chain = Chain::plain().unwrap();
        let daemon = Daemon::start(&chain.relay, options).unwrap();
        daemon.apply(config).unwrap();
        Self {
            daemon,
            chain,
            outputs,
            directory: TempDir::new().unwrap(),
        }
    }

    /// Sends for `seconds` with each leg's faults, and waits for the end.
    pub(super) fn run(
        &self,
        framing: &str,
        rate: u32,
        seconds: &str,
        faults: &[&str],
        more: &[&str],
    ) -> Run {
        self.end(self.begin(framing, rate, seconds, faults, more))
    }

    pub(super) fn begin(
        &self,
        framing: &str,
        rate: u32,
        seconds: &str,
        faults: &[&str],
        more: &[&str],
    ) -> Running {
        let sent = self.directory.path().join("sent.json");
        let _ = fs::remove_file(&sent);
        let mut receive = self.chain.sink.command(binary::mcr().unwrap());
        receive.args(["receive", "--json", "--idle", "3", "--sent"]);
        receive.arg(&sent);
        receive.args((0..self.outputs).map(|number| output(number, "veth3")));
        if rate > 5000 {
            receive.args(["--method", "bpf"]);
        }
        let receiver = process::start_receiver(receive).unwrap();
        let mut send = self.chain.sender.command(binary::mcr().unwrap());
        send.args(["send", "--json", "--framing", framing]);
        send.args(["--rate", &rate.to_string(), "--duration", seconds]);
        send.args(more);
        if !more.contains(&"--size") {
            send.args(["--size", "200"]);
        }
        for (group, faults) in GROUPS.iter().zip(faults) {
            let comma = if faults.is_empty() { "" } else { "," };
            send.arg("--line")
                .arg(format!("{group}%veth0:5001{comma}{faults}"));
        }
        let waited = self.waited();
        let sender = Process::start(send).unwrap();
        Running {
            receiver,
            sender,
            sent,
            waited,
        }
    }

    /// How long the workers have waited for a CPU so far.
    fn waited(&self) -> Duration {
        let stats = self.daemon.stats().unwrap();
        let waited = stats.workers.iter().filter_map(|worker| -> Option<u64> {
            let statistics = fs::read_to_string(format!("/proc/{}/schedstat", worker.pid)).ok()?;
            statistics.split_whitespace().nth(1)?.parse().ok()
        });
        Duration::from_nanos(waited.sum())
    }

    pub(super) fn end(&self, running: Running) -> Run {
        let finished = running.sender.wait(PATIENCE).unwrap();
        let sent: Value = serde_json::from_str(&finished.success().unwrap()).unwrap();
        fs::write(&running.sent, sent.to_string()).unwrap();
        let finished = running.receiver.wait(PATIENCE).unwrap();
        let received = serde_json::from_str(&finished.stdout)
            .unwrap_or_else(|_| panic!("{}", finished.stderr));
        let lines = sent["lines"].as_array().unwrap().iter();
        let packets: u64 = lines.map(|line| line["sent"].as_u64().unwrap()).sum();
        // Packets to a group that no leg has joined (any more) are not the rule's.
        let _ = wait::until_within(Duration::from_secs(5), "all is counted", || {
            self.daemon
                .rule("cam")
                .is_ok_and(|rule| rule.received.packets >= packets)
        });
        // After two readings nothing is in flight any more.
        std::thread::sleep(Duration::from_millis(1200));
        let stats = self.daemon.mcr(&["stats", "--json"]).unwrap();
        Run {
            sent,
            received,
            stats: serde_json::from_str(&stats).unwrap(),
            was_delayed: self.daemon.log().contains("skew_exceeds_window")
                || self.waited() > running.waited + WINDOW,
        }
    }
}

impl Run {
    /// The receiver's figure of everything sent on any leg.
    pub(super) fn union(&self, key: &str) -> u64 {
        self.unions(key)[0]
    }

    /// The same of each output.
    pub(super) fn unions(&self, key: &str) -> Vec<u64> {
        let endpoints = self.received["endpoints"].as_array().unwrap().iter();
        let unions: Option<_> = endpoints
            .map(|endpoint| endpoint["union"][key].as_u64())
            .collect();
        unions.unwrap_or_else(|| panic!("{self:?}"))
    }

    /// The relay's statistics of the rule.
    pub(super) fn rule(&self) -> &Value {
        let rules = self.stats["rules"].as_array().unwrap();
        rules.iter().find(|rule| rule["name"] == "cam").unwrap()
    }

    /// The sum of the sender's figure over all legs.
    pub(super) fn sent(&self, key: &str) -> u64 {
        let lines = self.sent["lines"].as_array().unwrap().iter();
        lines.map(|line| line[key].as_u64().unwrap()).sum()
    }

    pub(super) fn assert_once(&self) {
        for key in ["missing", "twice"] {
            let all = self.unions(key);
            assert!(all.iter().all(|count| *count == 0), "{key}: {self:?}");
        }
        let received = self.unions("received");
        assert!(received.iter().all(|count| *count > 100), "{self:?}");
    }

    /// Payloads are remembered for a window: packets that the machine delayed for longer may pass again, and
    /// the receiver saw that delay.
    pub(super) fn assert_once_within(&self, window: Duration) {
        let latency = &self.received["total"]["latency_us"]["max"];
        let is_late = latency.as_f64().unwrap() > window.as_micros() as f64;
        let (missing, twice) = (self.union("missing"), self.union("twice"));
        assert!(missing == 0 && (twice == 0 || is_late), "{self:?}");
        assert!(self.union("received") > 100, "{self:?}");
    }

    /// At a change packets of one window may pass twice, at most `missing` are missing, and no leg missed any.
    pub(super) fn assert_seam(&self, window: Duration, missing: u64) {
        let twice = self.sent("sent") * window.as_millis() as u64 / 4_000;
        let is_little = self.union("twice") <= twice && self.union("missing") <= missing;
        assert!(is_little || self.was_delayed, "{self:?}");
        for input in self.rule()["inputs"].as_array().unwrap() {
            self.assert_early(input["missed"].as_u64().unwrap(), 0);
        }
    }

    /// The relay's counts match the sender's, and received packets are those sent and those dropped.
    pub(super) fn assert_account(&self) {
        let rule = self.rule();
        let count = |value: &Value| value.as_u64().unwrap_or_default();
        let inputs = rule["inputs"].as_array().unwrap();
        for (input, line) in inputs.iter().zip(self.sent["lines"].as_array().unwrap()) {
            let repeats = count(&line["duplicated"]);
            let reported = |key: &str| count(&input[key]);
            let received = count(&input["received"]["packets"]);
            assert_eq!(received, count(&line["sent"]), "{self:?}");
            let verdicts = ["first", "duplicate", "repeated", "late", "stray"];
            let judged: u64 = verdicts.iter().map(|key| reported(key)).sum();
            assert_eq!(judged, received, "{self:?}");
            assert_eq!(reported("repeated"), repeats, "{self:?}");
            assert_eq!(reported("late") + reported("stray"), 0, "{self:?}");
            self.assert_early(reported("missed"), count(&line["missed"]));
        }
        let first: u64 = inputs.iter().map(|input| count(&input["first"])).sum();
        assert_eq!(first, count(&self.sent["union"]["on_any"]), "{self:?}");
        self.assert_early(
            count(&rule["merge"]["lost"]),
            count(&self.sent["union"]["lost"]),
        );
        let dropped: u64 = rule["dropped"]
            .as_object()
            .unwrap()
            .values()
            .map(count)
            .sum();
        for output in rule["outputs"].as_array().unwrap() {
            let sent = count(&output["sent"]["packets"]);
            assert_eq!(
                count(&rule["received"]["packets"]),
                sent + dropped,
                "{self:?}"
            );
        }
    }

    /// Packets that a busy machine delays for longer than the window count as missed before they arrive.
    fn assert_early(&self, reported: u64, actual: u64) {
        assert!(
            reported == actual || self.was_delayed && reported > actual,
            "{self:?}"
        );
    }
}
