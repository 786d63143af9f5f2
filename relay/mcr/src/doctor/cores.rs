//! Inputs whose packets a single CPU receives although there are others. The kernel path relays a packet on
//! the CPU that received it, and a worker is woken there too, so that CPU is the limit.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use compile::host::Interface;
use rules::endpoint::Endpoint;
use rules::net::Ifindex;
use rules::rule::Rule;

use super::finding::{Finding, Severity};
use super::repair::Repair;
use super::snapshot::{Link, Snapshot};
use crate::render::number;

/// Packets in and out per second from which a single CPU is reported: a quarter of what one CPU relays on
/// the kernel path (docs/measurements/cores.md).
const BUSY: f64 = 300_000.0;
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// What the daemon relays from an interface at present.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Load {
    /// Packets in and copies out per second.
    packets: f64,
    /// At least this many: a rule with a range counts as two.
    streams: usize,
}

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let cpus = fs::read_to_string(ONLINE).unwrap_or_default();
    let root = Path::new(sys::sysfs::INTERFACES);
    let findings = loads(snapshot).into_iter().filter_map(|(index, load)| {
        let link = snapshot.host.interfaces.get(&Ifindex(index))?;
        judge(link, load, &masks(root, link), cpus.trim())
    });
    findings.collect()
}

/// Attributes a rule with inputs on several interfaces to the first one: the share of each is not
/// reported.
fn loads(snapshot: &Snapshot) -> BTreeMap<u32, Load> {
    let mut firsts: BTreeMap<&str, (&Rule, &Link)> = BTreeMap::new();
    for (rule, _, link) in snapshot.inputs() {
        firsts.entry(&rule.name).or_insert((rule, link));
    }
    let mut loads: BTreeMap<u32, Load> = BTreeMap::new();
    for stats in snapshot.rules.stats.iter().flat_map(|stats| &stats.rules) {
        let Some((rule, link)) = firsts.get(stats.name.as_str()) else {
            continue;
        };
        if stats.rates.packets_10s <= 0.0 {
            continue;
        }
        let load = loads.entry(link.index).or_default();
        load.packets += stats.rates.packets_10s * (1 + stats.outputs.len()) as f64;
        let is_one = rule.inputs.iter().all(Endpoint::is_one_stream);
        load.streams += if is_one { 1 } else { 2 };
    }
    loads
}

/// The RPS CPU mask of each of the interface's receive queues, with its file; none if sysfs shows another
/// network namespace.
fn masks(root: &Path, link: &Interface) -> Vec<(PathBuf, String)> {
    let mac = link.mac.map(|mac| mac.0);
    let Some(directory) = sys::sysfs::interface(root, &link.name, link.index.0, mac) else {
        return Vec::new();
    };
    let entries = fs::read_dir(directory.join("queues")).into_iter().flatten();
    let masks = entries.filter_map(|queue| {
        let file = queue.ok()?.path().join("rps_cpus");
        let mask = fs::read_to_string(&file).ok()?;
        Some((file, mask.trim().to_owned()))
    });
    masks.collect()
}

/// Reports a single queue without RPS that is busy with several streams. Threaded NAPI is no remedy: one
/// queue is one thread.
fn judge(link: &Interface, load: Load, masks: &[(PathBuf, String)], cpus: &str) -> Option<Finding> {
    let [(file, mask)] = masks else { return None };
    let is_spread = mask.chars().any(|digit| !matches!(digit, '0' | ','));
    let (all_cpus, count) = mask_of(cpus)?;
    if is_spread || count < 2 || load.packets < BUSY || load.streams < 2 {
        return None;
    }
    let (streams, packets) = (load.streams, load.packets as u64);
    let evidence = format!(
        "one receive queue without RPS: one CPU of {count} receives and relays all that comes in, at \
         present {streams} streams or more with {} a second in and out",
        number::things(packets, "packet")
    );
    let file_text = file.display();
    let remedy = format!(
        "echo {all_cpus} > {file_text} has the kernel spread streams over CPUs {cpus} (RPS), for all that \
         the interface receives; a stream stays on one CPU and in order. Back: echo 0 > {file_text}"
    );
    let finding = Finding::new(Severity::Note, &link.name, evidence).remedy(remedy);
    Some(finding.repair(Repair::Setting {
        file: file.clone(),
        value: all_cpus,
    }))
}

/// Converts a list of CPUs (`0-3,8`) to a mask for sysfs, in words of 32 bits, and counts them.
fn mask_of(cpus: &str) -> Option<(String, usize)> {
    let mut words: Vec<u32> = Vec::new();
    for range in cpus.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        for cpu in first..=last {
            words.resize(words.len().max(cpu / 32 + 1), 0);
            words[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    let count = words.iter().map(|word| word.count_ones() as usize).sum();
    let mut words = words.into_iter().rev();
    let mut text = format!("{:x}", words.next()?);
    words.for_each(|word| text += &format!(",{word:08x}"));
    Some((text, count))
}

#[cfg(test)]
mod tests {
    use rules::net::Mac;

    use super::*;

    const LOAD: Load = Load {
        packets: 400_000.0,
        streams: 16,
    };

    fn link() -> Interface {
        Interface {
            index: Ifindex(7),
            name: "eth0".to_owned(),
            up: true,
            mtu: 1500,
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            ..Interface::default()
        }
    }

    /// An interface with these masks, one for each queue.
    fn sysfs(masks: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("eth0");
        for (number, mask) in masks.iter().enumerate() {
            let queue = directory.join(format!("queues/rx-{number}"));
            fs::create_dir_all(&queue).unwrap();
            fs::write(queue.join("rps_cpus"), format!("{mask}\n")).unwrap();
        }
        fs::create_dir_all(directory.join("queues/tx-0")).unwrap();
        fs::write(directory.join("ifindex"), "7\n").unwrap();
        fs::write(directory.join("address"), "02:00:00:00:00:01\n").unwrap();
        root
    }

    fn judged(queues: &[&str], load: Load, cpus: &str) -> Option<Finding> {
        let root = sysfs(queues);
        judge(&link(), load, &masks(root.path(), &link()), cpus)
    }

    #[test]
    fn a_busy_queue_on_one_cpu_is_told_and_spread() {
        let root = sysfs(&["0"]);
        let read = || masks(root.path(), &link());
        let mut finding = judge(&link(), LOAD, &read(), "0-1").unwrap();
        for part in ["one CPU of 2", "16 streams", "packets a second"] {
            assert!(finding.evidence.contains(part), "{}", finding.evidence);
        }
        for part in ["echo 3 > ", "Back: echo 0 > ", "in order"] {
            assert!(finding.remedy.contains(part), "{}", finding.remedy);
        }
        finding.mend();
        assert_eq!(finding.fixed, Some(true));
        assert_eq!(read()[0].1, "3");
        assert_eq!(judge(&link(), LOAD, &read(), "0-1"), None);
    }

    #[test]
    fn no_finding_where_spreading_does_not_pay() {
        assert!(judged(&["00000000,00000000"], LOAD, "0-39").is_some());
        assert_eq!(judged(&["0"], LOAD, "0"), None, "one CPU");
        assert_eq!(judged(&["0", "0"], LOAD, "0-1"), None, "several queues");
        assert_eq!(judged(&["2"], LOAD, "0-1"), None, "spread already");
        let quiet = Load {
            packets: 250_000.0,
            ..LOAD
        };
        assert_eq!(judged(&["0"], quiet, "0-1"), None, "quiet");
        let one = Load { streams: 1, ..LOAD };
        assert_eq!(judged(&["0"], one, "0-1"), None, "one stream");
        let other = Interface {
            index: Ifindex(8),
            ..link()
        };
        let root = sysfs(&["0"]);
        let foreign = masks(root.path(), &other);
        assert_eq!(
            judge(&other, LOAD, &foreign, "0-1"),
            None,
            "another namespace's sysfs"
        );
    }

    #[test]
    fn masks_have_a_word_for_32_cpus() {
        let mask = |cpus| mask_of(cpus).unwrap();
        assert_eq!(mask("0-3,8"), ("10f".to_owned(), 5));
        assert_eq!(mask("0-39"), ("ff,ffffffff".to_owned(), 40));
        assert_eq!(mask("32"), ("1,00000000".to_owned(), 1));
        assert_eq!(mask_of(""), None);
    }
}
