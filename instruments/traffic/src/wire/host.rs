//! What a measurement depends on at a host: its interfaces with their rings and offloads, and the
//! counters of its own drops.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Offloads that change what a measurement means.
const FEATURES: [&str; 8] = [
    "rx-gro",
    "rx-gro-hw",
    "rx-gro-list",
    "rx-udp-gro-forwarding",
    "rx-lro",
    "tx-udp-segmentation",
    "tx-generic-segmentation",
    "tx-checksum-ip-generic",
];
const SETTINGS: [&str; 3] = ["netdev_max_backlog", "netdev_budget", "netdev_budget_usecs"];
/// Parts of the names of driver counters that count loss.
const LOSS: [&str; 7] = [
    "drop", "miss", "discard", "no_buf", "nobuf", "fifo", "overrun",
];
/// Most driver counters recorded of one interface.
const MOST_COUNTERS: usize = 256;

/// One host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Kernel release.
    pub kernel: String,
    /// The kernel's identity since it was started: the same on both ends means one clock.
    pub boot_id: String,
    /// Cores in use.
    pub cores: usize,
    /// `net.core` settings that matter.
    pub settings: BTreeMap<String, String>,
    /// The interfaces of the measurement.
    pub interfaces: BTreeMap<String, Interface>,
}

/// One interface; what cannot be read is absent.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Interface {
    /// Name of its driver.
    pub driver: Option<String>,
    /// Speed of the link, Mbit/s.
    pub speed_mbit: Option<u32>,
    /// Bytes of the largest packet.
    pub mtu: Option<u32>,
    /// Descriptors of the receive ring, and the most there can be.
    pub receive_ring: Option<(u32, u32)>,
    /// The same of the transmit ring.
    pub transmit_ring: Option<(u32, u32)>,
    /// Queues that receive (RSS).
    pub receive_queues: Option<u32>,
    /// Offloads that are on, by the kernel's names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub offloads: Vec<String>,
    /// Receive queues that RPS spreads, with their masks of CPUs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rps: BTreeMap<String, String>,
}

/// What a host counted; only grows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Packets dropped at a core's full queue (`net.core.netdev_max_backlog`), over all cores.
    pub softnet_dropped: u64,
    /// How often a softirq used up its budget or time with packets still queued.
    pub time_squeeze: u64,
    /// By interface and counter: what was not received or not sent.
    pub interfaces: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Host {
    /// Describes this host with the interfaces named.
    pub fn describe(interfaces: &BTreeSet<String>) -> Self {
        let setting = |name: &str| {
            let value = read(format!("/proc/sys/net/core/{name}"))?;
            Some((format!("net.core.{name}"), value))
        };
        let name = nix::unistd::gethostname().unwrap_or_default();
        Self {
            name: name.to_string_lossy().into_owned(),
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            boot_id: read("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            settings: SETTINGS.into_iter().filter_map(setting).collect(),
            interfaces: interfaces
                .iter()
                .map(|name| (name.clone(), Interface::describe(name)))
                .collect(),
        }
    }

    /// Returns whether both run on the same kernel, and so by the same clock.
    pub fn has_clock_of(&self, other: &Self) -> bool {
        !self.boot_id.is_empty() && self.boot_id == other.boot_id
    }
}

impl Interface {
    fn describe(name: &str) -> Self {
        let device = sys::ethtool::device(name).unwrap_or_default();
        let features = sys::ethtool::features(name).unwrap_or_default();
        let on = features
            .into_iter()
            .filter(|feature| feature.active && FEATURES.contains(&feature.name.as_str()));
        let directory = own_directory(name);
        let mtu = directory
            .as_deref()
            .and_then(|directory| read(directory.join("mtu")))
            // /proc shows this namespace whatever sysfs shows.
            .or_else(|| read(format!("/proc/sys/net/ipv6/conf/{name}/mtu")));
        Self {
            driver: device.driver,
            speed_mbit: device.speed_mbit,
            mtu: mtu.and_then(|mtu| mtu.parse().ok()),
            receive_ring: device.receive_ring,
            transmit_ring: device.transmit_ring,
            receive_queues: device.receive_queues,
            offloads: on.map(|feature| feature.name).collect(),
            rps: directory.as_deref().map(rps).unwrap_or_default(),
        }
    }
}

impl Counters {
    /// Reads them.
    pub fn read(interfaces: &BTreeSet<String>) -> Self {
        let softnet = read("/proc/net/softnet_stat").unwrap_or_default();
        let devices = read("/proc/thread-self/net/dev").unwrap_or_default();
        let of = |name: &String| (name.clone(), of_interface(name, &devices));
        Self {
            softnet_dropped: softnet_column(&softnet, 1),
            time_squeeze: softnet_column(&softnet, 2),
            interfaces: interfaces.iter().map(of).collect(),
        }
    }

    /// What was counted since `before`; unchanged counters are omitted.
    pub fn since(&self, before: &Self) -> Self {
        let interfaces = self.interfaces.iter().map(|(name, counters)| {
            let before = before.interfaces.get(name);
            let then = |counter: &String| before.and_then(|before| before.get(counter));
            let grown = counters.iter().filter_map(|(counter, now)| {
                let more = now.saturating_sub(*then(counter).unwrap_or(now));
                (more > 0).then(|| (counter.clone(), more))
            });
            (name.clone(), grown.collect())
        });
        Self {
            softnet_dropped: self.softnet_dropped.saturating_sub(before.softnet_dropped),
            time_squeeze: self.time_squeeze.saturating_sub(before.time_squeeze),
            interfaces: interfaces.collect(),
        }
    }
}

/// The kernel's counters of an interface, and those of its driver that count loss, under `driver:`:
/// they may count the same packet again.
fn of_interface(name: &str, devices: &str) -> BTreeMap<String, u64> {
    let mut counters = device_columns(name, devices);
    let counts_loss = |counter: &str| {
        let counter = counter.to_ascii_lowercase();
        LOSS.iter().any(|part| counter.contains(part))
    };
    let losses = sys::ethtool::statistics(name)
        .unwrap_or_default()
        .into_iter()
        .filter(|(counter, _)| counts_loss(counter))
        .take(MOST_COUNTERS);
    counters.extend(losses.map(|(counter, value)| (format!("driver:{counter}"), value)));
    counters
}

/// The columns of `/proc/net/dev` that count loss. Its `drop` of received packets includes those that
/// a full ring missed (`rx_missed_errors`).
fn device_columns(name: &str, devices: &str) -> BTreeMap<String, u64> {
    let row = devices.lines().find_map(|line| {
        let (device, row) = line.split_once(':')?;
        (device.trim() == name).then_some(row)
    });
    let columns: Vec<u64> = row
        .unwrap_or_default()
        .split_whitespace()
        .map(|column| column.parse().unwrap_or(0))
        .collect();
    let named = [
        (2, "rx_errors"),
        (3, "rx_dropped"),
        (4, "rx_fifo"),
        (10, "tx_errors"),
        (11, "tx_dropped"),
        (12, "tx_fifo"),
    ];
    named
        .into_iter()
        .filter_map(|(at, counter)| Some((counter.to_owned(), *columns.get(at)?)))
        .collect()
}

/// Adds one column of all cores.
fn softnet_column(text: &str, column: usize) -> u64 {
    let values = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(column))
        .filter_map(|value| u64::from_str_radix(value, 16).ok());
    values.sum()
}

/// The interface's directory in sysfs, if sysfs shows this network namespace.
fn own_directory(name: &str) -> Option<std::path::PathBuf> {
    let own = crate::host::interface(name).ok()??;
    sys::sysfs::interface(Path::new(sys::sysfs::INTERFACES), name, own.index, own.mac)
}

fn rps(directory: &Path) -> BTreeMap<String, String> {
    let queues = fs::read_dir(directory.join("queues"));
    let entries = queues.into_iter().flatten().filter_map(Result::ok);
    let masks = entries.filter_map(|queue| {
        let mask = read(queue.path().join("rps_cpus"))?;
        let is_set = mask.chars().any(|digit| !matches!(digit, '0' | ','));
        is_set.then(|| (queue.file_name().to_string_lossy().into_owned(), mask))
    });
    masks.collect()
}

fn read(file: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_proc_are_parsed() {
        let devices =
            "Inter-|   Receive\n face |bytes\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        let columns = device_columns("eth0", devices);
        assert_eq!(columns["rx_dropped"], 4);
        assert_eq!(columns["tx_dropped"], 12);
        assert!(device_columns("eth", devices).is_empty());
        let softnet = "0000000a 00000002 00000001\n0000000b 00000010 00000000\n";
        assert_eq!(
            (softnet_column(softnet, 1), softnet_column(softnet, 2)),
            (18, 1)
        );
    }

    #[test]
    fn only_counters_that_grew_are_reported() {
        let counters = |dropped| Counters {
            interfaces: [(
                "eth0".to_owned(),
                [("rx_dropped".to_owned(), dropped)].into(),
            )]
            .into(),
            ..Counters::default()
        };
        assert_eq!(
            counters(5).since(&counters(3)).interfaces["eth0"]["rx_dropped"],
            2
        );
        assert!(counters(3).since(&counters(3)).interfaces["eth0"].is_empty());
        // A counter that did not exist before starts at its present value.
        assert!(counters(3).since(&Counters::default()).interfaces["eth0"].is_empty());
    }

    #[test]
    fn this_host_is_described() {
        let lo: BTreeSet<String> = ["lo".to_owned()].into();
        let host = Host::describe(&lo);
        assert!(host.has_clock_of(&host) && host.cores > 0, "{host:?}");
        assert!(Counters::read(&lo).interfaces["lo"].contains_key("rx_dropped"));
        assert_eq!(host.interfaces.len(), 1);
    }
}
