//! The beds of the bench: where the streams start, pass and end, and who pays on which core.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::plan::Family;
use super::usage;
use crate::link::{self, End};
use crate::namespace::Namespace;
use crate::topology::{Chain, DualBridge, Pipeline};
use crate::{process, wait};

/// The generator's usual address.
const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SOURCE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
/// A documentation address (RFC 5737), routed nowhere.
const FOREIGN_SOURCE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);

/// Features of a link that sends super-packets as the datagrams they consist of.
const SINGLE_PACKETS: &str = "tso off tx-udp-segmentation off";

/// Core of the generator on every bed.
pub const GENERATOR_CORE: usize = 0;
/// Core of the relay on the one-core bed.
pub const RELAY_CORE: usize = 1;

/// Which bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BedKind {
    /// Sender, relay and sink in a row; the machine as it is, the generator's core apart.
    Chain,
    /// The same, with the generator alone on one core and everything else on the other; `gro`
    /// turns on forwarding GRO at the relay's input, `segment` lets its output segment.
    OneCore {
        /// `rx-udp-gro-forwarding` on veth1.
        gro: bool,
        /// Segmentation offload on veth2.
        segment: bool,
    },
    /// The same, with frames as a driver delivers them: whole ones, made by a program, that come to the relay
    /// without an skb.
    Driver {
        /// `rx-udp-gro-forwarding` on veth1, and segmentation offload on veth2.
        gro: bool,
    },
    /// Two snooping bridges that nothing routes between, with this many sinks.
    DualBridge {
        /// Sinks on the second bridge.
        sinks: u8,
    },
    /// Two such bridges with one sink; the sender's address is one that no route of the relay
    /// leads back to, and the relay's host checks that (`rp_filter`).
    ForeignSource,
    /// This many relays in a row.
    Pipeline {
        /// Relays.
        relays: u8,
    },
    /// A chain whose relay has this many links to the sink, for relays that can only copy to
    /// different links.
    ManyLinks {
        /// Links.
        links: u8,
    },
}

/// A bed that stands.
#[derive(Debug)]
pub struct Bed {
    /// Which one.
    pub kind: BedKind,
    /// The generator's namespace; it sends by `veth0`.
    pub sender: Namespace,
    /// The generator's IPv4 address.
    source: Ipv4Addr,
    /// Where relays run, first to last; they receive on `veth1`.
    pub relays: Vec<Namespace>,
    /// Links that relays send by: `veth2`, except on [`BedKind::ManyLinks`].
    pub egresses: Vec<String>,
    /// Where the streams end: namespaces and their links.
    pub sinks: Vec<(Namespace, String)>,
    // Held, not used: bridges between.
    _between: Vec<Namespace>,
}

/// One wire of a bed.
#[derive(Debug)]
pub struct Wire<'a> {
    /// Its ends in the stream's direction; one where the other is a bridge's port.
    pub ends: Vec<End<'a>>,
    /// Whether a relay has made its copies by then.
    pub behind_relay: bool,
}

impl Bed {
    /// Makes a bed.
    ///
    /// # Errors
    /// When a step fails.
    pub fn new(kind: BedKind) -> Result<Self> {
        match kind {
            BedKind::Chain => {
                let bed = chain(kind, Chain::plain()?)?;
                sinks_receive_elsewhere(bed)
            }
            BedKind::OneCore { gro, segment } => one_core(kind, gro, segment),
            BedKind::Driver { gro } => driver(kind, gro),
            BedKind::DualBridge { sinks } => dual_bridge(kind, DualBridge::new(sinks)?),
            BedKind::ForeignSource => foreign_source(kind),
            BedKind::Pipeline { relays } => pipeline(kind, Pipeline::new(relays)?),
            BedKind::ManyLinks { links } => many_links(kind, links),
        }
    }

    /// The generator's address.
    pub fn source(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.source.into(),
            Family::V6 => SOURCE_V6.into(),
        }
    }

    /// The cores that the relay is bound to: all but the generator's, which stands for another
    /// machine; one on the one-core bed. Empty for all.
    pub fn relay_cores(&self) -> Vec<usize> {
        match self.kind {
            BedKind::OneCore { .. } | BedKind::Driver { .. } => vec![RELAY_CORE],
            // Three machines on what is there: they get all of it.
            BedKind::Pipeline { .. } => Vec::new(),
            _ => other_cores(),
        }
    }

    /// The wires a stream passes, in order.
    pub fn wires(&self) -> Vec<Wire<'_>> {
        let mut ends: Vec<(End<'_>, bool)> = vec![((&self.sender, "veth0"), false)];
        for (relay, number) in self.relays.iter().zip(0..) {
            ends.push(((relay, "veth1"), number > 0));
            ends.extend(
                self.egresses
                    .iter()
                    .map(|link| ((relay, link.as_str()), true)),
            );
        }
        let sinks = self.sinks.iter();
        ends.extend(sinks.map(|(sink, link)| ((sink, link.as_str()), true)));
        match self.kind {
            // What is between is a bridge: each end has a wire of its own.
            BedKind::DualBridge { .. } | BedKind::ForeignSource => ends
                .into_iter()
                .map(|(end, behind_relay)| Wire {
                    ends: vec![end],
                    behind_relay,
                })
                .collect(),
            BedKind::ManyLinks { links } => {
                let (out, into) = (2..2 + usize::from(links), 2 + usize::from(links)..);
                let links = ends[out].iter().zip(&ends[into]);
                let first = (&ends[0], &ends[1]);
                std::iter::once(first).chain(links).map(wire).collect()
            }
            _ => ends
                .chunks_exact(2)
                .map(|ends| wire((&ends[0], &ends[1])))
                .collect(),
        }
    }
}

fn wire<'a>((from, to): (&(End<'a>, bool), &(End<'a>, bool))) -> Wire<'a> {
    Wire {
        ends: vec![from.0, to.0],
        behind_relay: to.1,
    }
}

fn chain(kind: BedKind, chain: Chain) -> Result<Bed> {
    // A bench measures what a user has: the defaults of a fresh link.
    link::features((&chain.relay, "veth2"), "tx on")?;
    Ok(Bed {
        kind,
        sender: chain.sender,
        source: SOURCE,
        relays: vec![chain.relay],
        egresses: vec!["veth2".into()],
        sinks: vec![(chain.sink, "veth3".into())],
        _between: chain.switch.into_iter().collect(),
    })
}

/// LAB.md's bed. A veth only has a receive thread of its own, one that can be bound to a core,
/// when its own GRO is on and its peer's TSO off.
fn one_core(kind: BedKind, gro: bool, segment: bool) -> Result<Bed> {
    let cores = std::thread::available_parallelism()?.get();
    ensure!(
        cores >= 2,
        "the one-core bed needs 2 cores, this machine has {cores}"
    );
    let bed = chain(kind, Chain::plain()?)?;
    let relay = &bed.relays[0];
    link::features((&bed.sender, "veth0"), SINGLE_PACKETS)?;
    link::features((relay, "veth1"), "gro on")?;
    if gro {
        link::features((relay, "veth1"), "rx-udp-gro-forwarding on")?;
        relay.write_sysfs("class/net/veth1/gro_flush_timeout", "50000")?;
        relay.write_sysfs("class/net/veth1/napi_defer_hard_irqs", "1")?;
    }
    if !segment {
        link::features((relay, "veth2"), SINGLE_PACKETS)?;
    }
    bind_receive_thread(relay, "veth1", RELAY_CORE)?;
    Ok(bed)
}

/// Nothing of what a card would not do either is left to veth: checksums are whole, and tags in the frames.
fn driver(kind: BedKind, gro: bool) -> Result<Bed> {
    let bed = one_core(kind, gro, gro)?;
    link::features((&bed.sender, "veth0"), "tx off txvlan off")?;
    link::features((&bed.relays[0], "veth1"), "rxvlan off")?;
    Ok(bed)
}

fn sinks_receive_elsewhere(bed: Bed) -> Result<Bed> {
    for (sink, link) in &bed.sinks {
        receive_on((sink, link), &other_cores())?;
    }
    Ok(bed)
}

/// All cores but the generator's; none on a machine with one core, where all share it.
fn other_cores() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (0..cores).filter(|core| *core != GENERATOR_CORE).collect()
}

/// Lets what arrives at a link be received on `cores` (RPS), as what comes from a wire is received on
/// the receiver's: a veth runs its peer's receive side, and all that follows, on the sender's core.
fn receive_on((namespace, name): End<'_>, cores: &[usize]) -> Result<()> {
    let words = cores.iter().map(|core| core / 32 + 1).max().unwrap_or(1);
    let mut mask = vec![0_u32; words];
    for core in cores {
        mask[core / 32] |= 1 << (core % 32);
    }
    let mask: Vec<String> = mask.iter().rev().map(|word| format!("{word:x}")).collect();
    let file = format!("class/net/{name}/queues/rx-0/rps_cpus");
    namespace.write_sysfs(&file, &mask.join(","))
}

fn bind_receive_thread(namespace: &Namespace, interface: &str, core: usize) -> Result<()> {
    // A new thread is known by not having been there: two beds at once would mix theirs up.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _held = ONE_AT_A_TIME.lock();
    let prefix = format!("napi/{interface}-");
    let before = threads(&prefix);
    namespace.write_sysfs(&format!("class/net/{interface}/threaded"), "1")?;
    let mut cores = CpuSet::new();
    cores.set(core)?;
    let thread = wait::some_within(wait::PATIENCE, "the receive thread is there", || {
        threads(&prefix).difference(&before).next().copied()
    })?;
    sched_setaffinity(Pid::from_raw(thread), &cores)
        .with_context(|| format!("binding {prefix}* to core {core}"))?;
    share_own_niceness(thread)
}

/// Kernel threads start with niceness 0; `nice -n -20 mcr bench run` is meant for the whole bed.
fn share_own_niceness(thread: i32) -> Result<()> {
    let own = usage::niceness();
    if own == 0 {
        return Ok(());
    }
    let mut command = Command::new("renice");
    command.args(["--priority", &own.to_string(), "--pid", &thread.to_string()]);
    process::run(command, wait::PATIENCE)?.success().map(drop)
}

fn threads(prefix: &str) -> BTreeSet<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return BTreeSet::new();
    };
    let ids = entries.flatten().filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        name.starts_with(prefix).then_some(id)
    });
    ids.collect()
}

fn dual_bridge(kind: BedKind, bed: DualBridge) -> Result<Bed> {
    link::features((&bed.relay, "veth2"), "tx on")?;
    receive_on((&bed.left, "port0"), &other_cores())?;
    // The second bridge and the sinks are other machines than first bridge and relay, too.
    receive_on((&bed.right, "uplink"), &[GENERATOR_CORE])?;
    Ok(Bed {
        kind,
        sender: bed.sender,
        source: SOURCE,
        relays: vec![bed.relay],
        egresses: vec!["veth2".into()],
        sinks: bed
            .sinks
            .into_iter()
            .map(|sink| (sink, "veth3".into()))
            .collect(),
        _between: vec![bed.left, bed.right],
    })
}

fn foreign_source(kind: BedKind) -> Result<Bed> {
    let bed = dual_bridge(kind, DualBridge::new(1)?)?;
    link::address((&bed.sender, "veth0"), &format!("{FOREIGN_SOURCE}/32"))?;
    for place in ["all", "veth1"] {
        let key = format!("net/ipv4/conf/{place}/rp_filter");
        bed.relays[0].sysctl(&key, "1")?;
    }
    Ok(Bed {
        source: FOREIGN_SOURCE,
        ..bed
    })
}

/// The relays get single packets, as a network brings them, also from a segmenting generator.
fn pipeline(kind: BedKind, bed: Pipeline) -> Result<Bed> {
    link::features((&bed.sender, "veth0"), SINGLE_PACKETS)?;
    // The first relay shares the generator's core, the others the rest: that is half and half.
    if let Some(second) = bed.relays.get(1) {
        receive_on((second, "veth1"), &other_cores())?;
    }
    Ok(Bed {
        kind,
        sender: bed.sender,
        source: SOURCE,
        relays: bed.relays,
        egresses: vec!["veth2".into()],
        sinks: vec![(bed.sink, "veth3".into())],
        _between: Vec::new(),
    })
}

fn many_links(kind: BedKind, links: u8) -> Result<Bed> {
    let mut bed = chain(kind, Chain::plain()?)?;
    let (relay, sink) = (&bed.relays[0], bed.sinks[0].0.clone());
    bed.egresses.clear();
    bed.sinks.clear();
    for number in 0..links {
        let (out, peer) = (format!("out{number}"), format!("in{number}"));
        link::veth((relay, &out), (&sink, &peer))?;
        link::address((relay, &out), &format!("10.1.{number}.1/24"))?;
        link::address((&sink, &peer), &format!("10.1.{number}.2/24"))?;
        bed.egresses.push(out);
        bed.sinks.push((sink.clone(), peer));
    }
    sinks_receive_elsewhere(bed)
}
