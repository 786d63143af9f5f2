//! Sends packets through a real path on a bed and sums up what it did: frames on the wires, frames
//! to the stack, growth of the counters. The same sum is made of what cases and reference expect.

mod counted;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use compile::diff::TableDiff;
use compile::hook::Hooks;
use compile::table::{Path, Table};
use dataplane::counters::{Counters, HealthCounters, RuleCounters};
use dataplane::explain::Asked;
use dataplane::features::Feature;
use dataplane::{Close, Dataplane, Gates, Input, Outcome};
use lab::wait;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use packet::latency::Latency;
use packet::parse::ChecksumState;
use rules::net::Ifindex;

use counted::count;
pub(crate) use counted::growth;

use crate::bed::Bed;
use crate::case::{A, B, C, Expected, INGRESS, OPEN, Outlet, PAST, Packet, trim};
use crate::reference::{Names, expected};
use crate::segments::datagrams;

/// Pause between two polls: polling without a pause takes a worker's core away, for seconds where the kernel
/// schedules by sessions.
pub(crate) const POLL_PAUSE: Duration = Duration::from_micros(100);

/// A dataplane on a bed, with the table it executes.
pub(crate) struct Relay<'a> {
    bed: &'a Bed,
    path: Path,
    dataplane: Dataplane,
    table: Table,
    /// The counters at the last observation, until the table changes.
    counted: Option<Counters>,
    /// Whether packets are injected as drivers hand them over, where possible.
    at_xdp: bool,
}

/// The outcome of a sequence of packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Copies on each egress, in order, with their offload state.
    pub(crate) copies: BTreeMap<Ifindex, Vec<Packet>>,
    /// Frames the relay's stack got.
    pub(crate) passed_up: Vec<Vec<u8>>,
    /// The growth of the counters, without rules, inputs and outputs that did not grow.
    pub(crate) counters: BTreeMap<String, RuleCounters>,
}

/// A stopped process.
struct Stopped(Pid);

impl Stopped {
    /// `None` if it has ended.
    fn new(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok().filter(|pid| *pid > 0)?);
        let this = Self(pid);
        kill(pid, Signal::SIGSTOP).ok()?;
        let all = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED;
        let flags = all | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        let stopped = || match waitid(Id::Pid(pid), flags) {
            Ok(WaitStatus::Stopped(..)) => Ok(true),
            Ok(WaitStatus::StillAlive) => Err(std::fs::read_to_string(format!("/proc/{pid}/stat"))),
            Ok(_) | Err(_) => Ok(false),
        };
        let seen = wait::seen_within(wait::PATIENCE, "a worker stands still", stopped);
        seen.unwrap_or_else(|error| panic!("{error:#}"))
            .then_some(this)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

impl<'a> Relay<'a> {
    /// Puts `dataplane` on `bed`, where it executes every route on `path`.
    pub(crate) fn new(bed: &'a Bed, path: Path, dataplane: Dataplane) -> Self {
        let mut relay = Self {
            bed,
            path,
            dataplane,
            table: Table::default(),
            counted: None,
            at_xdp: false,
        };
        let gates = relay.gates();
        gates.set(OPEN, u64::MAX);
        gates.set(PAST, sys::clock::boottime_ns());
        relay.apply(&Table::default());
        relay
    }

    /// Injects packets as drivers hand them over, where one of their buffers can hold them, so that the hook at XDP
    /// takes those that it takes. Returns why there is none.
    pub(crate) fn take_at_xdp(&mut self) -> Result<(), String> {
        self.bed.receive_from_xdp();
        self.dataplane
            .sync(&Table::default())
            .expect("nothing is there");
        self.table = Table::default();
        let ingress = self.bed.index(INGRESS);
        let outputs = [A, B, C].map(|symbol| (self.bed.index(symbol), Ok(())));
        let hooks = Hooks {
            inputs: [(ingress, Ok(()))].into(),
            outputs: outputs.into(),
            ..Hooks::default()
        };
        self.dataplane.set_hooks(hooks).expect("XDP is prepared");
        self.apply(&Table::default());
        // The bed's MTU is more than a program of veth's may see: attached it is elsewhere.
        let frame = [0; 60];
        let tried = self.dataplane.inject(&frame, ingress.0);
        self.at_xdp = tried.is_ok();
        tried.map_err(|error| error.to_string())
    }

    /// How many packets the hook at XDP has handed to devices.
    pub(crate) fn taken_at_xdp(&self) -> u64 {
        self.dataplane.taken_at_xdp().values().sum()
    }

    /// Returns whether they are injected as drivers hand them over.
    pub(crate) const fn is_at_xdp(&self) -> bool {
        self.at_xdp
    }

    fn send(&self, packet: &Packet) {
        let meta = &packet.meta;
        let is_plain = meta.checksum == ChecksumState::Complete && !meta.vlan;
        if self.at_xdp && is_plain && packet.frame.len() <= 3000 {
            let ingress = self.bed.index(INGRESS);
            let injected = self.dataplane.inject(&packet.frame, ingress.0);
            injected.unwrap_or_else(|error| panic!("injecting {packet:?}: {error}"));
        } else {
            self.bed.send(packet);
        }
    }

    /// The gates of shares.
    pub(crate) fn gates(&self) -> Gates {
        self.dataplane.gates()
    }

    /// Swings the path to `table`.
    pub(crate) fn apply(&mut self, table: &Table) {
        let table = self.bed.table(table, self.path);
        let diff = TableDiff::between(&self.table, &table);
        self.dataplane
            .apply(&diff)
            .unwrap_or_else(|error| panic!("{diff:#?}: {error}"));
        self.table = table;
        self.counted = None;
    }

    /// What would become of a packet by this table, which is the executed one but for the bed's interfaces.
    pub(crate) fn explain(
        &self,
        mut table: Table,
        packet: &Packet,
        socket_bound: bool,
    ) -> Expected {
        for route in table.routes.values_mut() {
            route.path = self.path;
        }
        let input = Asked {
            ingress: INGRESS,
            frame: &packet.frame,
            meta: packet.meta,
            socket_bound,
        };
        let explained = self.dataplane.explain(&table, input);
        let names = explained.route.as_ref().map(|(_, route)| Names::of(route));
        expected(explained.outcome, names.as_ref())
    }

    /// Removes every rule, and ends the counters of `rules`.
    pub(crate) fn end(&mut self, rules: &[&str]) {
        self.apply(&Table::default());
        self.dataplane.forget(rules.iter().copied());
    }

    /// Like [`Relay::forward`] with packets that wait together: worker processes are stopped until all have arrived.
    pub(crate) fn forward_together(&mut self, packets: &[Packet], expected: &Sum) -> Sum {
        let workers = self.counters().workers.into_iter();
        let stopped: Vec<_> = workers
            .filter_map(|worker| Stopped::new(worker.pid))
            .collect();
        let before = self.counted();
        for packet in packets {
            self.send(packet);
        }
        drop(stopped);
        self.observe(&before, expected)
    }

    /// Sends packets one after the other and sums up what became of them. Waits until a deadline for the counters to
    /// grow as expected: a worker writes them when the copies have left.
    pub(crate) fn forward<'p>(
        &mut self,
        packets: impl IntoIterator<Item = &'p Packet>,
        expected: &Sum,
    ) -> Sum {
        let before = self.counted();
        for packet in packets {
            self.send(packet);
        }
        self.observe(&before, expected)
    }

    /// The same for a packet that arrives by one of the egresses.
    pub(crate) fn forward_by(&mut self, symbol: Ifindex, packet: &Packet, expected: &Sum) -> Sum {
        let before = self.counted();
        self.bed.send_by(symbol, packet);
        self.observe(&before, expected)
    }

    fn counted(&mut self) -> Counters {
        self.counted.take().unwrap_or_else(|| self.counters())
    }

    fn observe(&mut self, before: &Counters, expected: &Sum) -> Sum {
        let begun = Instant::now();
        let counters = loop {
            self.dataplane.tick().expect("nothing came loose");
            let after = self.counters();
            let counters = growth(before, &after);
            if counters == expected.counters || !wait::is_within(begun.elapsed(), self.patience()) {
                self.counted = Some(after);
                break counters;
            }
            std::thread::sleep(POLL_PAUSE);
        };
        let mut sum = self.bed.collect();
        sum.passed_up.iter_mut().for_each(trim);
        sum.counters = counters;
        self.level(&mut sum, expected);
        sum
    }

    /// The kernel path has counted before a send returns.
    const fn patience(&self) -> Duration {
        match self.path {
            Path::Kernel => Duration::ZERO,
            Path::Userspace => Duration::from_secs(10),
        }
    }

    /// Removes what a path does not promise: without BPF the userspace path cannot keep packets from the stack, and it
    /// keeps order only within a flow.
    fn level(&self, seen: &mut Sum, expected: &Sum) {
        if self.path == Path::Userspace {
            seen.passed_up.clone_from(&expected.passed_up);
            for (interface, copies) in &mut seen.copies {
                if let Some(expected) = expected.copies.get(interface) {
                    if !self.sends_super_packets() {
                        gather(copies, expected);
                    } else if copies.len() < expected.len() {
                        // Some of a super-packet's datagrams: they may leave as one, too.
                        *copies = copies.iter().flat_map(datagrams).collect();
                    }
                    restore_order(copies, expected);
                }
            }
        }
    }

    /// Returns whether packets of all streams leave in the order of their arrival.
    pub(crate) fn keeps_order(&self) -> bool {
        self.path == Path::Kernel
    }

    /// Returns whether workers relay.
    pub(crate) fn is_in_userspace(&self) -> bool {
        self.path == Path::Userspace
    }

    /// Returns whether super-packets arrive by the bed's wires here.
    pub(crate) fn gets_super_packets(&self) -> bool {
        self.bed.super_packets
    }

    fn sends_super_packets(&self) -> bool {
        self.dataplane.features().found(Feature::SuperPackets) == Some(true)
    }

    /// Runs one packet through the kernel path's program without an interface.
    pub(crate) fn test_run(&self, packet: &Packet) -> Outcome {
        let input = Input {
            frame: &packet.frame,
            ifindex: self.bed.index(INGRESS).0,
            gso_size: packet.meta.gso.map_or(0, |gso| gso.size.into()),
            gso_segments: packet.datagrams() as u32,
            received_ns: 0,
            repeat: 1,
        };
        let outcome = self.dataplane.test_run(input);
        self.bed.collect();
        outcome.unwrap_or_else(|error| panic!("{packet:?}: {error}"))
    }

    /// The same where nothing leaves, so nothing has to be collected.
    pub(crate) fn test_run_alone(&self, packet: &Packet) -> Outcome {
        self.test_run_received(packet, 0)
    }

    /// The same with `repeat` consecutive runs.
    pub(crate) fn test_run_often(&self, packet: &Packet, repeat: u32) -> Outcome {
        self.run(packet, 0, repeat)
    }

    /// The same for a packet with a receive timestamp.
    pub(crate) fn test_run_received(&self, packet: &Packet, received_ns: u64) -> Outcome {
        self.run(packet, received_ns, 1)
    }

    fn run(&self, packet: &Packet, received_ns: u64, repeat: u32) -> Outcome {
        let input = Input {
            frame: &packet.frame,
            ifindex: self.bed.index(INGRESS).0,
            gso_size: 0,
            gso_segments: 1,
            received_ns,
            repeat,
        };
        let outcome = self.dataplane.test_run(input);
        outcome.unwrap_or_else(|error| panic!("{packet:?}: {error}"))
    }

    /// Ends the dataplane.
    pub(crate) fn close(self, how: Close) {
        self.dataplane.close(how).expect("the dataplane ends");
    }

    /// The health of a rule's packets so far.
    pub(crate) fn health(&self, rule: &str) -> HealthCounters {
        let mut rules = self.counters().rules;
        let health = rules.remove(rule).and_then(|rule| rule.health);
        health.map_or_else(HealthCounters::default, |health| *health)
    }

    /// The latency of a rule's packets so far.
    pub(crate) fn latency(&self, rule: &str) -> Latency {
        let rules = self.counters().rules;
        let latency = rules.get(rule).map(|rule| &rule.latency);
        let of_path = latency.and_then(|latency| latency.get(&self.path));
        of_path.copied().unwrap_or_default()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.dataplane.counters().expect("the counters are read")
    }
}

impl Sum {
    /// Adds what is expected of one more packet.
    pub(crate) fn expect(&mut self, packet: &Packet, expected: &Expected) {
        for outlet in expected.outputs.values() {
            let (interface, frame, first) = match outlet {
                Outlet::Dropped(_) => continue,
                Outlet::Sent { interface, frame } => (interface, frame, None),
                Outlet::First {
                    interface,
                    frame,
                    packets,
                    ..
                } => (interface, frame, Some(*packets as usize)),
            };
            let copy = Packet {
                frame: frame.clone(),
                meta: packet.meta,
            };
            let copies = self.copies.entry(*interface).or_default();
            match first {
                None => copies.push(copy),
                Some(first) => copies.extend(datagrams(&copy).into_iter().take(first)),
            }
        }
        if expected.passed_up {
            self.passed_up.extend(as_the_stack_sees(&packet.frame));
        }
        if let Some(rule) = &expected.rule {
            count(self.counters.entry(rule.clone()).or_default(), expected);
        }
    }
}

/// Replaces datagrams by their super-packets if all of them are there and nothing else.
fn gather(seen: &mut Vec<Packet>, expected: &[Packet]) {
    let cut: Vec<_> = expected.iter().flat_map(datagrams).collect();
    restore_order(seen, &cut);
    if *seen == cut {
        *seen = expected.to_vec();
    }
}

/// Moves what is in both sequences to its expected position.
fn restore_order(seen: &mut Vec<Packet>, expected: &[Packet]) {
    let mut rest = std::mem::take(seen);
    for packet in expected {
        if let Some(at) = rest.iter().position(|other| other == packet) {
            seen.push(rest.remove(at));
        }
    }
    seen.append(&mut rest);
}

/// The frame as a tap behind tc ingress shows it: without its VLAN tag; `None` if it is neither
/// IPv4 nor IPv6.
fn as_the_stack_sees(frame: &[u8]) -> Option<Vec<u8>> {
    let mut frame = frame.to_vec();
    if frame.len() >= 18 && matches!(frame[12..14], [0x81, 0x00] | [0x88, 0xa8]) {
        frame.drain(12..16);
    }
    trim(&mut frame);
    matches!(frame[12..14], [0x08, 0x00] | [0x86, 0xdd]).then_some(frame)
}
