//! Latencies in an HDR histogram: exact extremes, quantiles within its precision.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency distinguished, in nanoseconds: one minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// Latencies of one endpoint.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
    min_ns: u64,
    max_ns: u64,
}

/// The figures of a distribution, in microseconds; all `None` when nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Shortest.
    pub min: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p99_9: Option<f64>,
    /// Longest.
    pub max: Option<f64>,
}

impl Latency {
    /// Makes an empty distribution whose quantiles are exact to `digits` (1 to 5) digits.
    ///
    /// Memory: about 30 KiB with 2 digits, 220 KiB with 3.
    ///
    /// # Panics
    /// If `digits` is not 1 to 5.
    pub fn new(digits: u8) -> Self {
        Self {
            histogram: Histogram::new_with_bounds(1, LONGEST_NS, digits)
                .expect("callers pass 1 to 5 digits"),
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }

    /// Records one latency; more than a minute counts as a minute in the quantiles.
    pub fn record(&mut self, latency_ns: u64) {
        self.histogram.saturating_record(latency_ns);
        self.widen(latency_ns, latency_ns);
    }

    /// Records `count` latencies that lie near `latency_ns`, counted elsewhere; [`Latency::widen`]
    /// adds their exact extremes.
    pub fn record_many(&mut self, latency_ns: u64, count: u64) {
        self.histogram.saturating_record_n(latency_ns, count);
    }

    /// Extends the range to the exact shortest and longest latency of those recorded with
    /// [`Latency::record_many`].
    pub fn widen(&mut self, min_ns: u64, max_ns: u64) {
        self.min_ns = self.min_ns.min(min_ns);
        self.max_ns = self.max_ns.max(max_ns);
    }

    /// Adds another distribution.
    pub fn add(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("every histogram here has the same bounds");
        self.widen(other.min_ns, other.max_ns);
    }

    /// The figures.
    pub fn summary(&self) -> Summary {
        if self.histogram.is_empty() {
            return Summary::default();
        }
        let quantile = |q| {
            let value = self.histogram.value_at_quantile(q);
            Some(microseconds(value.clamp(self.min_ns, self.max_ns)))
        };
        Summary {
            min: Some(microseconds(self.min_ns)),
            p50: quantile(0.5),
            p99: quantile(0.99),
            p99_9: quantile(0.999),
            max: Some(microseconds(self.max_ns)),
        }
    }
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_match_the_recorded_latencies() {
        let mut latency = Latency::new(3);
        (1..=1000).for_each(|n| latency.record(n * 1000));
        let summary = latency.summary();
        assert_eq!((summary.min, summary.max), (Some(1.0), Some(1000.0)));
        assert!((summary.p50.unwrap() - 500.0).abs() < 1.0, "{summary:?}");
        assert!((summary.p99.unwrap() - 990.0).abs() < 1.0, "{summary:?}");
    }

    #[test]
    fn an_empty_distribution_has_no_figures() {
        assert_eq!(Latency::new(2).summary(), Summary::default());
    }
}
