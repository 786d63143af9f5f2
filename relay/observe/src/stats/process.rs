//! This process according to `/proc`, as metrics with the names that every exporter uses.

use api::counters;
use procfs::process::LimitValue;
use procfs::{CurrentSI, KernelStats, ProcResult};

/// One reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// Processor time.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Virtual memory.
    pub virtual_bytes: u64,
    /// Open descriptors.
    pub open_fds: u64,
    /// The limit of open descriptors.
    pub max_fds: u64,
    /// Threads.
    pub threads: u64,
    /// When it started, in seconds since the epoch.
    pub started: f64,
}

counters! { Process {
    cpu_seconds: "process_cpu_seconds_total", "User and system CPU time spent in seconds.";
    resident_bytes: "process_resident_memory_bytes", "Resident memory size in bytes.";
    virtual_bytes: "process_virtual_memory_bytes", "Virtual memory size in bytes.";
    open_fds: "process_open_fds", "Number of open file descriptors.";
    max_fds: "process_max_fds", "Maximum number of open file descriptors.";
    threads: "process_threads", "Number of OS threads in the process.";
    started: "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.";
} }

impl Process {
    /// Reads the values; those that cannot be read are zero.
    pub fn read() -> Self {
        Self::read_all().unwrap_or_default()
    }

    fn read_all() -> ProcResult<Self> {
        let process = procfs::process::Process::myself()?;
        let stat = process.stat()?;
        let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
        Ok(Self {
            cpu_seconds: seconds(stat.utime + stat.stime),
            resident_bytes: stat.rss * procfs::page_size(),
            virtual_bytes: stat.vsize,
            open_fds: process.fd_count()? as u64,
            max_fds: match process.limits()?.max_open_files.soft_limit {
                LimitValue::Value(limit) => limit,
                LimitValue::Unlimited => u64::MAX,
            },
            threads: stat.num_threads as u64,
            started: KernelStats::current()?.btime as f64 + seconds(stat.starttime),
        })
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
