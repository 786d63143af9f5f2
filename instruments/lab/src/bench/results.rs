//! The results of a run: every trial of every case, with the machine it ran on. JSON.

pub mod machine;
pub mod number;
pub mod reliability;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use traffic::latency::Summary;
use traffic::search::{Probe, SearchResult};
use traffic::trial::{Outcome, Volume};

use machine::Machine;

/// One run of the bench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Where and with what it ran.
    pub machine: Machine,
    /// The command line.
    pub command: String,
    /// Every measured case, in the order they ran.
    pub cases: Vec<CaseResult>,
}

/// One relay in one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaseResult {
    /// Number of the scenario, 1 to 11.
    pub scenario: u8,
    /// What is varied, such as `streams` = `20`.
    pub parameters: BTreeMap<String, String>,
    /// Name of the relay.
    pub relay: String,
    /// Why the relay was not measured here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Every trial, in the order they ran.
    #[serde(default)]
    pub trials: Vec<Trial>,
}

/// One trial.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Trial {
    /// What was offered, and what was delivered.
    #[serde(flatten)]
    pub volume: Volume,
    /// Where missing copies were dropped, as far as any counter shows.
    pub drops: Vec<Drops>,
    /// What the relay itself counted, if it counts.
    pub relay: Option<RelayCount>,
    /// What it cost.
    pub cost: Cost,
    /// Load average of the machine as the trial began; well above 0 it means that something else was
    /// running.
    #[serde(default)]
    pub load_average: f64,
    /// One-way latency in microseconds, from the intended send time.
    pub latency_us: Option<Summary>,
    /// Microseconds between the first and the last copy of one datagram.
    pub skew_us: Option<Summary>,
    /// The highest offered rate without loss by a search, datagrams per second.
    pub zero_loss_pps: Option<f64>,
    /// The highest offered rate that lost at most half a percent, datagrams per second.
    pub partial_drop_pps: Option<f64>,
    /// Offered rate and loss of every step of that search.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Probe>,
    /// What the sequence numbers showed, where the receiver read them.
    pub sequence: Option<Sequence>,
}

/// Copies dropped at one location.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// The location.
    pub at: String,
    /// Copies that are missing at the sinks because of it.
    pub copies: u64,
}

/// What the relay counted, over all its rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayCount {
    /// Datagrams received.
    pub received: u64,
    /// Copies sent.
    pub sent: u64,
    /// Copies dropped under some reason.
    pub dropped: u64,
    /// Datagrams dropped at its full receive rings, which no rule can count.
    #[serde(default)]
    pub ring_full: u64,
}

/// What a trial cost.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Seconds from the first command to the last stream relayed; only in the first trial after
    /// the relay was started.
    pub configure_seconds: Option<f64>,
    /// Of those, seconds the relay took to start, before it had any rule, where the two are apart.
    pub start_seconds: Option<f64>,
    /// Seconds the relay took to accept its whole rule set, where that is one command; in the same
    /// trials.
    pub apply_seconds: Option<f64>,
    /// Busy seconds of each core during the trial.
    pub busy_seconds: Vec<f64>,
    /// Seconds in which each core had work and the hypervisor ran something else.
    #[serde(default)]
    pub stolen_seconds: Vec<f64>,
    /// CPU seconds of the relay's processes during the trial; the kernel's work for them in
    /// softirq is in `busy_seconds` alone.
    pub process_seconds: f64,
    /// Proportional memory of the relay's processes and its BPF maps, KiB.
    pub memory_kib: u64,
    /// Processes of the relay.
    pub processes: u32,
}

/// What the receiver's sequence numbers show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequence {
    /// Numbers missing between the first and the last seen.
    pub lost: u64,
    /// Numbers seen again.
    pub duplicated: u64,
    /// Datagrams that arrived after a higher number.
    pub reordered: u64,
    /// Datagrams with a changed byte.
    pub corrupt: u64,
}

impl Outcome for Trial {
    fn volume(&self) -> Volume {
        self.volume
    }
}

impl Trial {
    /// The trial of a search, with the search's other results.
    pub fn of_search(search: SearchResult<Self>) -> Self {
        Self {
            zero_loss_pps: Some(search.zero_loss_pps),
            partial_drop_pps: Some(search.partial_drop_pps),
            probes: search.probes,
            ..search.trial
        }
    }

    /// Missing copies that no counter explains; negative when more drops were counted than are missing.
    pub fn unexplained(&self) -> i64 {
        let counted: u64 = self.drops.iter().map(|drops| drops.copies).sum();
        self.missing() - counted as i64
    }

    /// Copies delivered per second.
    pub fn delivered_pps(&self) -> f64 {
        self.volume.delivered as f64 / self.volume.seconds.max(1e-9)
    }

    /// Busy time of the relay's own core, number `core`, in microseconds per delivered copy.
    pub fn core_us_per_copy(&self, core: usize) -> f64 {
        let busy = self.cost.busy_seconds.get(core).copied().unwrap_or(0.0);
        1e6 * busy / self.volume.delivered.max(1) as f64
    }

    /// Busy time of all cores, microseconds per delivered copy.
    pub fn cpu_us_per_copy(&self) -> f64 {
        let busy: f64 = self.cost.busy_seconds.iter().sum();
        1e6 * busy / self.volume.delivered.max(1) as f64
    }
}

impl CaseResult {
    /// Summarises a figure over the trials; `None` without trials.
    pub fn spread(&self, figure: impl Fn(&Trial) -> f64) -> Option<Spread> {
        Spread::of(self.trials.iter().map(figure))
    }

    /// Returns whether another run measured the same case of the same relay.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.scenario, &self.parameters, &self.relay)
            == (other.scenario, &other.parameters, &other.relay)
    }

    /// Returns whether it is of a scenario and has at least these parameters: `streams=20,pps=2000`.
    pub fn is_of(&self, scenario: u8, parameters: &str) -> bool {
        let has = |parameter: &str| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            self.parameters.get(name).is_some_and(|own| own == value)
        };
        let mut parameters = parameters.split(',').filter(|text| !text.is_empty());
        self.scenario == scenario && parameters.all(has)
    }

    /// The parameters as text, in a fixed order.
    pub fn parameters_text(&self) -> String {
        let pairs: Vec<String> = self
            .parameters
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        pairs.join(", ")
    }
}

/// Median and extremes of a figure over several trials.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Lowest.
    pub min: f64,
    /// Middle; the mean of the two middle ones when their number is even.
    pub median: f64,
    /// Highest.
    pub max: f64,
}

impl Spread {
    /// Summarises figures; `None` if there are none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => return None,
            odd if odd % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Some(Self {
            min: sorted[0],
            median,
            max: sorted[sorted.len() - 1],
        })
    }

    /// The same in another unit.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            min: self.min * factor,
            median: self.median * factor,
            max: self.max * factor,
        }
    }
}

impl Results {
    /// Reads results that [`Results::write`] wrote.
    ///
    /// # Errors
    /// When the file does not exist or has another format.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let file = file.display();
        serde_json::from_str(&text).with_context(|| format!("{file}: not results of mcr bench run"))
    }

    /// Writes the results atomically, making the directory if need be.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn write(&self, file: &Path) -> Result<()> {
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        }
        let text = serde_json::to_string_pretty(self)?;
        let unfinished = file.with_extension("unfinished");
        fs::write(&unfinished, text + "\n").with_context(|| unfinished.display().to_string())?;
        fs::rename(&unfinished, file).with_context(|| file.display().to_string())
    }

    /// The measured cases of one scenario.
    pub fn of_scenario(&self, scenario: u8) -> impl Iterator<Item = &CaseResult> {
        self.cases
            .iter()
            .filter(move |case| case.scenario == scenario)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_ones() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.5, 4.0));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn missing_copies_without_a_counter_are_unexplained() {
        let trial = Trial {
            volume: Volume {
                expected: 100,
                delivered: 90,
                ..Volume::default()
            },
            drops: vec![Drops {
                at: "veth1 ring".into(),
                copies: 7,
            }],
            ..Trial::default()
        };
        assert_eq!(trial.missing(), 10);
        assert_eq!(trial.unexplained(), 3);
    }
}
