//! How long packets stay in the relay, from the paths' buckets to what is shown.

use std::collections::BTreeMap;

use api::reply::{ResidenceBucket, ResidenceStats};
use compile::table::Path;
use dataplane::counters::{Latency, bound_ns};

use super::path_name;

/// The latency statistics of a rule.
pub(super) fn stats(counted: &BTreeMap<Path, Latency>) -> Vec<ResidenceStats> {
    counted
        .iter()
        .map(|(path, counted)| one(*path, counted))
        .collect()
}

fn one(path: Path, counted: &Latency) -> ResidenceStats {
    let buckets = (0..)
        .zip(counted.buckets)
        .filter(|(_, packets)| *packets > 0);
    ResidenceStats {
        path: path_name(path).to_owned(),
        samples: counted.samples(),
        stamped: counted.stamped,
        sum_seconds: counted.sum_ns as f64 / 1e9,
        p50_seconds: below(counted, 50),
        p99_seconds: below(counted, 99),
        buckets: buckets
            .map(|(bucket, packets)| ResidenceBucket {
                below_seconds: bound(bucket),
                packets,
            })
            .collect(),
    }
}

/// The bound below which `percent` of the samples lie.
fn below(counted: &Latency, percent: u64) -> Option<f64> {
    let wanted = (counted.samples() * percent).div_ceil(100);
    let cumulative = counted.buckets.iter().scan(0, |sum, packets| {
        *sum += packets;
        Some(*sum)
    });
    let mut sums = (0..).zip(cumulative);
    let (bucket, _) = sums.find(|(_, sum)| *sum >= wanted && wanted > 0)?;
    bound(bucket)
}

fn bound(bucket: usize) -> Option<f64> {
    Some(bound_ns(bucket)? as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_ends_of_the_buckets_they_lie_in() {
        let mut counted = Latency::default();
        assert_eq!(
            stats(&BTreeMap::from([(Path::Kernel, counted)]))[0].p50_seconds,
            None
        );
        counted.buckets[0] = 50;
        counted.buckets[3] = 49;
        counted.buckets[21] = 1;
        counted.sum_ns = 1_500_000_000;
        let shown = &stats(&BTreeMap::from([(Path::Kernel, counted)]))[0];
        assert_eq!((shown.path.as_str(), shown.samples), ("kernel", 100));
        assert_eq!(shown.p50_seconds, Some(1.024e-6));
        assert_eq!(shown.p99_seconds, Some(8.192e-6));
        assert_eq!(shown.sum_seconds, 1.5);
        let bounds: Vec<_> = shown
            .buckets
            .iter()
            .map(|b| (b.below_seconds, b.packets))
            .collect();
        assert_eq!(
            bounds,
            [(Some(1.024e-6), 50), (Some(8.192e-6), 49), (None, 1)]
        );
        counted.buckets[21] = 100;
        assert_eq!(below(&counted, 99), None);
    }
}
