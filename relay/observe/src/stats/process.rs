//! What `/proc` says of this process, for the metrics: the names that every exporter uses.

use std::fs;

use nix::unistd::{SysconfVar, sysconf};

/// One reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// Processor time.
    pub cpu_seconds: f64,
    /// Memory that it has.
    pub resident_bytes: u64,
    /// Memory that it could have.
    pub virtual_bytes: u64,
    /// Descriptors that are open.
    pub open_fds: u64,
    /// Descriptors that may be.
    pub max_fds: u64,
    /// Threads.
    pub threads: u64,
    /// Seconds since the epoch.
    pub started: f64,
}

impl Process {
    /// Reads; what cannot be read is zero.
    pub fn read() -> Self {
        let constant = |name| sysconf(name).ok().flatten().unwrap_or(1).max(1) as u64;
        let (ticks, page) = (
            constant(SysconfVar::CLK_TCK),
            constant(SysconfVar::PAGE_SIZE),
        );
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let (stat, limits, boot) = (
            text("/proc/self/stat"),
            text("/proc/self/limits"),
            text("/proc/stat"),
        );
        // The name in parentheses may hold anything: fields are counted from behind it (proc(5)).
        let fields: Vec<u64> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .map(|field| field.parse().unwrap_or(0))
            .collect();
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
        let number = |text: &str, key: &str, word: usize| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            let word = line.and_then(|line| line.split_whitespace().nth(word));
            word.and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        Self {
            cpu_seconds: (field(14) + field(15)) as f64 / ticks as f64,
            resident_bytes: field(24) * page,
            virtual_bytes: field(23),
            open_fds: fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64),
            max_fds: number(&limits, "Max open files", 0),
            threads: field(20),
            started: number(&boot, "btime", 0) as f64 + field(22) as f64 / ticks as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn this_process_has_memory_descriptors_and_a_past() {
        let process = Process::read();
        assert!(process.resident_bytes > 1 << 20, "{process:?}");
        assert!(process.open_fds >= 3 && process.max_fds >= process.open_fds);
        assert!(process.threads >= 1, "{process:?}");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let age = now.unwrap().as_secs_f64() - process.started;
        assert!((-2.0..3600.0).contains(&age), "{process:?}");
    }
}
