//! The figures a report shows.

use rules::named::named;
use traffic::trial::Outcome;

use crate::bench::results::{CaseResult, Spread, Trial};
use crate::bench::run::bed::RELAY_CORE;

named! {
    /// A figure that can be taken from a trial; its name, with its unit, is a heading.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Figure {
        /// Copies delivered per second.
        Delivered = "delivered, copies/s",
        /// Loss in percent.
        Loss = "lost, %",
        /// Busy time of all cores per delivered copy.
        Cpu = "CPU, µs per copy",
        /// Busy time of the relay's own core per delivered copy, on the one-core bed.
        RelayCore = "the relay's core, µs per copy",
        /// Memory.
        Memory = "memory, MiB",
        /// Processes.
        Processes = "processes",
        /// Time until every stream passed.
        Configure = "until every stream passes, s",
        /// Time to start, before any rule.
        Start = "of that: to start, before any rule, s",
        /// Time to accept the whole rule set.
        Apply = "to accept all rules, s",
        /// Median latency.
        LatencyP50 = "latency p50, µs",
        /// 99th percentile of latency.
        LatencyP99 = "latency p99, µs",
        /// 99.9th percentile of latency.
        LatencyP99_9 = "latency p99.9, µs",
        /// 99th percentile of the time between first and last copy.
        Skew = "skew p99, µs",
        /// Highest rate without loss.
        ZeroLoss = "zero-loss rate (NDR), packets/s",
        /// Highest rate with hardly any loss.
        PartialDrop = "rate at a loss of 0.5 % or less (PDR), packets/s",
    }
}

impl Figure {
    fn of(self, trial: &Trial) -> Option<f64> {
        let cost = &trial.cost;
        let latency = trial.latency_us.as_ref();
        match self {
            Self::Delivered => Some(trial.delivered_pps()),
            Self::Loss => Some(trial.loss_percent()),
            Self::Cpu => (trial.volume.delivered > 0).then(|| trial.cpu_us_per_copy()),
            Self::RelayCore => {
                (trial.volume.delivered > 0).then(|| trial.core_us_per_copy(RELAY_CORE))
            }
            Self::Memory => (cost.processes > 0).then(|| cost.memory_kib as f64 / 1024.0),
            Self::Processes => Some(f64::from(cost.processes)),
            Self::Configure => cost.configure_seconds,
            Self::Start => cost.start_seconds,
            Self::Apply => cost.apply_seconds,
            Self::LatencyP50 => latency?.p50,
            Self::LatencyP99 => latency?.p99,
            Self::LatencyP99_9 => latency?.p99_9,
            Self::Skew => trial.skew_us.as_ref()?.p99,
            Self::ZeroLoss => trial.zero_loss_pps,
            Self::PartialDrop => trial.partial_drop_pps,
        }
    }

    /// Whether a ratio between relays is meaningful.
    pub(super) const fn has_ratio(self) -> bool {
        matches!(
            self,
            Self::Delivered
                | Self::ZeroLoss
                | Self::PartialDrop
                | Self::Cpu
                | Self::RelayCore
                | Self::LatencyP50
                | Self::LatencyP99
        )
    }

    pub(super) const fn is_better_high(self) -> bool {
        matches!(self, Self::Delivered | Self::ZeroLoss | Self::PartialDrop)
    }
}

/// Summarises a figure over a case's trials; `None` where no trial has it.
pub(super) fn figure_of(case: &CaseResult, figure: Figure) -> Option<Spread> {
    Spread::of(case.trials.iter().filter_map(|trial| figure.of(trial)))
}
