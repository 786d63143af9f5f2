//! A kernel path in namespaces of its own, whose maps the fuzzer corrupts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use compile::diff::TableDiff;
use compile::table::Table;
use dataplane::corrupt::{Harm, harm};
use dataplane::{Action, ActivityScan, Capacity, Dataplane, Input, Options, Seen};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::rules::{FAILOVER, INTERFACE, MERGED, numbered, packet_of, packets, tables};
use crate::bytes::Bytes;

/// Where this thread's own bpffs hides the host's.
const BPFFS: &str = "/sys/fs/bpf";
/// Small, so that nonsense can fill it.
const CAPACITY: Capacity = Capacity {
    routes: 16,
    outputs: 20,
};
/// Several times as long as merged legs may lag behind each other.
const SILENCE: Duration = Duration::from_millis(20);
/// Numbers that both legs carry.
const NUMBERS: u16 = 20;
/// How long an active leg may wait for the other's silence, which lasts some microseconds.
const TAKE_OVER: Duration = Duration::from_secs(5);

/// The outcome of a packet.
type Fate = (Action, Vec<u8>);

/// A test run's packet has a socket, so all outputs get clones: the packet itself is consumed, rewritten.
fn is_relayed((action, packet): &Fate, sent: &[u8]) -> bool {
    *action == Action::Consume && packet != sent
}

/// The relay.
pub(super) struct Relay {
    dataplane: Dataplane,
    /// Each map's pin.
    pins: Vec<PathBuf>,
    tables: [Table; 2],
    /// The fate of each packet under each table.
    fates: [Vec<Fate>; 2],
}

impl Relay {
    /// Opens it; the calling thread leaves its namespaces for good.
    pub(super) fn open() -> Result<Self, String> {
        leave_namespaces().map_err(|error| format!("no namespaces of their own: {error}"))?;
        let options = Options {
            bpffs: BPFFS.into(),
            capacity: CAPACITY,
            ..Options::default()
        };
        let dataplane = Dataplane::open(options).map_err(|error| error.to_string())?;
        dataplane.support().kernel.clone()?;
        let instance = Path::new(BPFFS).join("mcr/default");
        let mut relay = Self {
            dataplane,
            pins: pins(&instance).map_err(|error| error.to_string())?,
            tables: tables(),
            fates: Default::default(),
        };
        for number in [0, 1] {
            relay.sync(number);
            relay.fates[number] = relay.fates();
            let sent = packets();
            let fates = relay.fates[number].iter().zip(&sent);
            let relayed = fates.filter(|(fate, sent)| is_relayed(fate, sent));
            assert_eq!(relayed.count(), 4, "table {number} without nonsense");
        }
        relay.sync(0);
        Ok(relay)
    }

    /// Corrupts the maps as `input` specifies, and checks that the relay recovers.
    ///
    /// # Panics
    /// If it does not.
    pub(super) fn survive(&mut self, input: &[u8]) {
        self.corrupt(input);
        // Whatever the program makes of it. Legs last: they would repair each other.
        self.fates();
        self.dataplane
            .adopt_again()
            .expect("what is pinned is taken over");
        self.sync(0);
        self.relays_and_counts(0);
        self.apply(0, 1);
        self.relays_and_counts(1);
        self.fails_over();
        self.merges();
        self.dataplane.flows("range").expect("flows are read");
        self.dataplane.tick().expect("links stand");
        let nothing = Table::default();
        self.dataplane.sync(&nothing).expect("everything goes");
        self.sync(0);
        self.relays_and_counts(0);
    }

    fn corrupt(&self, input: &[u8]) {
        let mut input = Bytes::new(input);
        while !input.is_empty() {
            let pin = &self.pins[usize::from(input.byte()) % self.pins.len()];
            let choice = input.byte();
            let kind = match choice % 4 {
                0 | 1 => Harm::Change,
                2 => Harm::Copy,
                _ => Harm::Remove,
            };
            let (low, offset, length) = (input.byte(), input.byte(), input.byte() % 32);
            let bytes: Vec<u8> = (0..length).map(|_| input.byte()).collect();
            let element = usize::from(low) | usize::from(choice >> 2) << 8;
            harm(pin, kind, element, (offset.into(), &bytes)).expect("maps are there");
        }
    }

    fn sync(&mut self, table: usize) {
        let synced = self.dataplane.sync(&self.tables[table]);
        synced.unwrap_or_else(|error| panic!("table {table}: {error}"));
    }

    fn apply(&mut self, from: usize, to: usize) {
        let diff = TableDiff::between(&self.tables[from], &self.tables[to]);
        let applied = self.dataplane.apply(&diff);
        applied.unwrap_or_else(|error| panic!("table {from} to {to}: {error}"));
    }

    fn relays_and_counts(&self, table: usize) {
        let before = self.received();
        let fates = self.fates();
        for (number, (fate, expected)) in fates.iter().zip(&self.fates[table]).enumerate() {
            assert_eq!(fate, expected, "table {table}, packet {number}");
        }
        // Its own address's packet is received as well, and dropped.
        let own = u64::from(table == 0);
        let received = self.received() - before;
        assert_eq!(received, 4 + own, "table {table}: packets counted");
    }

    /// Packets of all rules, equal in both kinds of reading.
    fn received(&self) -> u64 {
        let counters = self.dataplane.counters().expect("counters are read");
        let rules = counters
            .rules
            .keys()
            .map(|rule| Arc::from(&**rule))
            .collect();
        let mut scan = ActivityScan::new(Seen::default(), rules);
        while scan.go_on(&self.dataplane).expect("arrivals are read") {}
        let (arrived, _) = scan.finish();
        let counted = counters.rules.values().map(|rule| rule.received.packets);
        let scanned = arrived.values().map(|rule| rule.traffic.packets);
        let total: u64 = counted.sum();
        assert_eq!(total, scanned.sum::<u64>(), "both readings");
        total
    }

    fn fates(&self) -> Vec<Fate> {
        packets().iter().map(|packet| self.fate(packet)).collect()
    }

    fn fate(&self, packet: &[u8]) -> Fate {
        let run = self.dataplane.test_run(Input {
            frame: packet,
            ifindex: INTERFACE.0,
            gso_size: 0,
            gso_segments: 1,
            received_ns: 0,
            repeat: 1,
        });
        let outcome = run.expect("the program runs");
        (outcome.action, outcome.packet)
    }

    fn relays(&self, packet: &[u8]) -> bool {
        is_relayed(&self.fate(packet), packet)
    }

    /// After a silence legs pass each number once again, whatever was remembered of them.
    fn merges(&self) {
        let end = Instant::now() + TAKE_OVER;
        for start in (0..u16::MAX).step_by(4_999).cycle() {
            assert!(Instant::now() < end, "lines are merged as from nothing");
            std::thread::sleep(SILENCE);
            let passed = |number: u16, line: &str| {
                u32::from(self.relays(&numbered(line, start.wrapping_add(number))))
            };
            let copies =
                (0..NUMBERS).map(|number| MERGED.map(|line| passed(number, line)).iter().sum());
            if copies.into_iter().all(|copies: u32| copies == 1) {
                return;
            }
        }
    }

    /// Each leg takes over from the other, also by hand.
    fn fails_over(&mut self) {
        let (rule, lines) = FAILOVER;
        for line in lines.into_iter().cycle().take(3) {
            let (packet, end) = (packet_of(line), Instant::now() + TAKE_OVER);
            while !self.relays(&packet) {
                assert!(Instant::now() < end, "{line} takes over from a silent one");
            }
        }
        for line in lines {
            assert!(self.dataplane.switch(rule, line), "{line} is a line");
            assert!(self.relays(&packet_of(line)), "{line}");
        }
    }
}

fn leave_namespaces() -> nix::Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), none)?;
    // Packets of the loopback interface may have one of this host's addresses.
    let status = Command::new("ip")
        .args(["link", "add", "in0", "index", &INTERFACE.0.to_string()])
        .args(["type", "veth", "peer", "name", "out0"])
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => Err(nix::Error::ENODEV),
    }
}

/// The pins of an instance's maps, in the order of their names.
fn pins(instance: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut pins = Vec::new();
    for entry in fs::read_dir(instance)? {
        let directory = entry?.path();
        if directory.is_dir() {
            let maps = fs::read_dir(directory)?.map(|map| Ok(map?.path()));
            pins.extend(maps.collect::<std::io::Result<Vec<_>>>()?);
        }
    }
    pins.sort();
    Ok(pins)
}
