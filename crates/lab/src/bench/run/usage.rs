//! What relays cost: busy time of cores, CPU time, memory and number of their processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Clock ticks per second of `/proc/stat` and `/proc/PID/stat`, `USER_HZ`: 100 on every
/// architecture that matters.
const TICKS: f64 = 100.0;

/// What each core has done since the machine started, seconds.
#[derive(Clone, Debug, Default)]
pub struct CoreSeconds {
    /// At work.
    pub busy: Vec<f64>,
    /// Ready to work while the hypervisor ran something else.
    pub stolen: Vec<f64>,
}

/// Reads what each core has done.
#[must_use]
pub fn core_seconds() -> CoreSeconds {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let cores = text.lines().filter(|line| {
        let name = line.split_whitespace().next().unwrap_or_default();
        name.starts_with("cpu") && name != "cpu"
    });
    // User, nice, system, irq and softirq; idle, iowait and steal are not busy.
    let seconds = cores.map(|line| (sum_of(line, &[0, 1, 2, 5, 6]), sum_of(line, &[7])));
    let (busy, stolen) = seconds.unzip();
    CoreSeconds { busy, stolen }
}

/// Adds columns of one line.
fn sum_of(line: &str, columns: &[usize]) -> f64 {
    let ticks = line.split_whitespace().skip(1);
    let ticks: Vec<f64> = ticks.map(|tick| tick.parse().unwrap_or(0.0)).collect();
    let chosen = columns.iter().filter_map(|at| ticks.get(*at));
    chosen.sum::<f64>() / TICKS
}

/// Reads the load average over one minute.
#[must_use]
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The niceness of this process, -20 to 19.
#[must_use]
pub fn niceness() -> i64 {
    // Field 19 of proc(5); the parent, field 4, comes first here.
    let fields = stat(Path::new("/proc/self"));
    fields
        .and_then(|fields| fields.get(15).copied())
        .unwrap_or(0)
}

/// Lists processes and their descendants.
#[must_use]
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

fn processes() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pairs = entries.flatten().filter_map(|entry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let parent = *stat(&entry.path())?.first()?;
        Some((process, parent as u32))
    });
    pairs.collect()
}

/// Adds the CPU seconds of processes, their dead children not included.
#[must_use]
pub fn process_seconds(processes: &[u32]) -> f64 {
    let ticks = processes.iter().filter_map(|process| {
        let fields = stat(&directory(*process))?;
        // utime and stime are fields 14 and 15 of proc(5), the parent is field 4.
        Some(fields.get(10)? + fields.get(11)?)
    });
    ticks.sum::<i64>() as f64 / TICKS
}

/// Adds the proportional memory of processes and the memory of the BPF maps they hold, KiB.
#[must_use]
pub fn memory_kib(processes: &[u32]) -> u64 {
    let own = processes.iter().map(|process| {
        let file = directory(*process).join("smaps_rollup");
        field(&file, "Pss:").unwrap_or(0)
    });
    own.sum::<u64>() + map_bytes(processes) / 1024
}

/// Adds what BPF maps take; a map that several descriptors name counts once.
fn map_bytes(processes: &[u32]) -> u64 {
    let mut maps = BTreeMap::new();
    for process in processes {
        let Ok(entries) = fs::read_dir(directory(*process).join("fdinfo")) else {
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

fn directory(process: u32) -> PathBuf {
    Path::new("/proc").join(process.to_string())
}

/// The numbers of `/proc/PID/stat` from the parent's id on. The name before them is in brackets
/// and may hold anything.
fn stat(directory: &Path) -> Option<Vec<i64>> {
    let text = fs::read_to_string(directory.join("stat")).ok()?;
    let (_, after) = text.rsplit_once(") ")?;
    let numbers = after.split_whitespace().skip(1);
    Some(numbers.map(|number| number.parse().unwrap_or(0)).collect())
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
    fn this_process_is_found_and_costs_something() {
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
