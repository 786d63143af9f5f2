//! Where a result was measured: hardware, kernel, revision, settings that matter.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::process::Command;

use procfs::{CpuInfo, Current, Meminfo};
use serde::{Deserialize, Serialize};

use super::number::number;
use crate::binary;

const SETTINGS: [&str; 6] = [
    "net/core/netdev_max_backlog",
    "net/core/netdev_budget",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/ipv4/igmp_max_memberships",
    "net/core/bpf_jit_enable",
];

/// A machine and what ran on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Cores in use.
    pub cores: u32,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// `mcr --version`.
    pub version: String,
    /// Revision of the source tree the bench was started in, if it was started in one.
    pub revision: Option<String>,
    /// Day of the run, YYYY-MM-DD.
    pub date: String,
    /// Sysctls that matter.
    pub settings: BTreeMap<String, String>,
    /// Versions of the peers.
    pub peers: BTreeMap<String, String>,
}

impl Machine {
    /// Names the differences that make figures of two machines incomparable: hardware, kernel, revision.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let pairs = [
            ("processor", self.cpu == other.cpu),
            ("number of cores", self.cores == other.cores),
            ("memory", self.memory_mib == other.memory_mib),
            ("kernel", self.kernel == other.kernel),
            ("revision", self.revision == other.revision),
            ("version", self.version == other.version),
            ("settings", self.settings == other.settings),
            ("peers", self.peers == other.peers),
        ];
        let different = pairs.iter().filter(|(_, same)| !same);
        different.map(|(name, _)| *name).collect()
    }

    /// Describes this machine.
    pub fn describe() -> Self {
        let cpus = CpuInfo::current().ok();
        let model = cpus.as_ref().and_then(|cpus| cpus.model_name(0));
        Self {
            cpu: model.unwrap_or("unknown").to_owned(),
            cores: cpus.as_ref().map_or(0, CpuInfo::num_cores) as u32,
            memory_mib: Meminfo::current().map_or(0, |memory| memory.mem_total >> 20),
            kernel: read("/proc/sys/kernel/osrelease"),
            version: version(),
            revision: revision(),
            date: output("date", &["+%Y-%m-%d"]).unwrap_or_default(),
            settings: settings(),
            peers: peers(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |map: &BTreeMap<String, String>| {
            let pairs = map.iter().map(|(name, value)| format!("{name} {value}"));
            pairs.collect::<Vec<_>>().join(", ")
        };
        write!(
            f,
            "{}, {} cores, {} MiB of memory, Linux {}. {} ({}), {}. {}.",
            self.cpu,
            self.cores,
            number(self.memory_mib as f64),
            self.kernel,
            self.version,
            self.revision.as_deref().unwrap_or("unknown revision"),
            list(&self.peers),
            list(&self.settings),
        )
    }
}

fn read(file: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().to_owned()
}

fn version() -> String {
    let program = binary::mcr().ok();
    let shown = program.and_then(|mcr| output(&mcr.to_string_lossy(), &["--version"]));
    shown.unwrap_or_else(|| "unknown".into())
}

/// Reads the revision of the source tree that this process was started in, if it was in one.
pub fn revision() -> Option<String> {
    let revision = output("git", &["rev-parse", "--short=12", "HEAD"])?;
    // A report of an earlier part of the run does not affect measurements.
    let relevant = ["--", ":/", ":/!BENCHMARKS.md", ":/!docs/bench"];
    let status = ["status", "--porcelain", "--untracked-files=no"];
    let changed = output("git", &[&status[..], &relevant].concat())?;
    Some(if changed.is_empty() {
        revision
    } else {
        format!("{revision} with local changes")
    })
}

fn settings() -> BTreeMap<String, String> {
    let values = SETTINGS.map(|key| (key.replace('/', "."), read(&format!("/proc/sys/{key}"))));
    values.into_iter().collect()
}

fn peers() -> BTreeMap<String, String> {
    let mut peers = BTreeMap::new();
    let socat = output("socat", &["-V"]).unwrap_or_default();
    if let Some(line) = socat.lines().find(|line| line.starts_with("socat version")) {
        let version = line.split_whitespace().nth(2).unwrap_or_default();
        peers.insert("socat".into(), version.to_owned());
    }
    let smcroute = output("smcrouted", &["-v"]).unwrap_or_default();
    // "SMCRoute v2.5.6", then where to report bugs.
    let version = smcroute
        .lines()
        .next()
        .and_then(|line| line.split(" v").nth(1));
    if let Some(version) = version {
        peers.insert("smcroute".into(), version.to_owned());
    }
    peers
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
