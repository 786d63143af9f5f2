//! The cost of relays: busy time of cores, CPU time, memory and number of their processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use procfs::process::{Process, all_processes};
use procfs::{Current, CurrentSI, KernelStats, LoadAverage};

/// Time of each core since the machine started, in seconds.
#[derive(Clone, Debug, Default)]
pub struct CoreSeconds {
    /// At work.
    pub busy: Vec<f64>,
    /// Ready to work while the hypervisor ran something else.
    pub stolen: Vec<f64>,
}

/// Reads the time of each core.
pub fn core_seconds() -> CoreSeconds {
    let cores = KernelStats::current().map_or_else(|_| Vec::new(), |kernel| kernel.cpu_time);
    let seconds = cores.iter().map(|core| {
        // Idle, iowait and steal are not busy.
        let interrupts = core.irq.unwrap_or(0) + core.softirq.unwrap_or(0);
        let busy = core.user + core.nice + core.system + interrupts;
        (in_seconds(busy), in_seconds(core.steal.unwrap_or(0)))
    });
    let (busy, stolen) = seconds.unzip();
    CoreSeconds { busy, stolen }
}

fn in_seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}

/// Reads the load average over one minute.
pub fn load_average() -> f64 {
    // The kernel reports two digits.
    LoadAverage::current().map_or(0.0, |load| f64::from((load.one * 100.0).round()) / 100.0)
}

/// The niceness of this process, -20 to 19.
pub fn niceness() -> i64 {
    let own = Process::myself().and_then(|own| own.stat());
    own.map_or(0, |stat| stat.nice)
}

/// Lists processes and their descendants.
pub fn family(roots: &[u32]) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (process, parent) in processes() {
        children.entry(parent).or_default().push(process);
    }
    let mut family = roots.to_vec();
    let mut next = 0;
    while next < family.len() {
        let more = children.remove(&family[next]).unwrap_or_default();
        family.extend(more);
        next += 1;
    }
    family
}

/// All processes, each with its parent.
fn processes() -> Vec<(u32, u32)> {
    let all = all_processes().into_iter().flatten().flatten();
    let stats = all.filter_map(|process| process.stat().ok());
    stats
        .map(|stat| (stat.pid as u32, stat.ppid as u32))
        .collect()
}

/// Adds the CPU seconds of processes, their dead children not included.
pub fn process_seconds(processes: &[u32]) -> f64 {
    let stats = processes.iter().filter_map(|id| process(*id)?.stat().ok());
    in_seconds(stats.map(|stat| stat.utime + stat.stime).sum())
}

/// Adds the proportional memory of processes and the memory of the BPF maps they hold, KiB.
pub fn memory_kib(processes: &[u32]) -> u64 {
    let own = processes.iter().filter_map(|id| {
        let memory = process(*id)?.smaps_rollup().ok()?.memory_map_rollup;
        memory.0.first()?.extension.map.get("Pss").copied()
    });
    own.sum::<u64>() / 1024 + map_bytes(processes) / 1024
}

fn process(id: u32) -> Option<Process> {
    Process::new(i32::try_from(id).ok()?).ok()
}

/// Adds the memory of BPF maps; a map with several descriptors counts once.
fn map_bytes(processes: &[u32]) -> u64 {
    let mut maps = BTreeMap::new();
    for process in processes {
        let Ok(entries) = fs::read_dir(format!("/proc/{process}/fdinfo")) else {
            continue;
        };
        for entry in entries.flatten() {
            let file = entry.path();
            if let (Some(map), Some(bytes)) = (field(&file, "map_id:"), field(&file, "memlock:")) {
                maps.insert(map, bytes);
            }
        }
    }
    maps.values().sum()
}

fn field(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_listed_and_costs_something() {
        let own = std::process::id();
        assert!(family(&[own]).contains(&own));
        assert!(memory_kib(&[own]) > 100);
        assert!(core_seconds().busy.iter().sum::<f64>() > 0.0);
    }

    #[test]
    fn a_child_belongs_to_the_family() {
        let mut child = std::process::Command::new("sleep")
            .arg("5")
            .spawn()
            .unwrap();
        assert!(family(&[std::process::id()]).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
