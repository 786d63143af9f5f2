//! Reproducible randomness: a pure function of a seed and a packet's number, so that runs with the
//! same seed make the same choices whatever their timing.

/// The subject of a choice; choices of different kinds are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Size,
    Lose,
    Duplicate,
    Reorder,
    Corrupt,
    CorruptOffset,
    Line,
    Jitter,
}

/// 64 random bits for the `number`-th packet (SplitMix64, Steele et al. 2014).
pub(crate) fn bits(seed: u64, choice: Choice, number: u64) -> u64 {
    let stream = seed.wrapping_add((choice as u64 + 1) << 56);
    mix(mix(stream).wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Returns `true` in `percent` of all cases.
pub(crate) fn happens(seed: u64, choice: Choice, number: u64, percent: f64) -> bool {
    percent > 0.0 && unit(bits(seed, choice, number)) * 100.0 < percent
}

/// A number below `limit`, evenly distributed; 0 for a limit of 0.
pub(crate) fn below(bits: u64, limit: u64) -> u64 {
    ((u128::from(bits) * u128::from(limit)) >> 64) as u64
}

fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_happen_as_often_as_requested() {
        let hits = (0..100_000)
            .filter(|&n| happens(7, Choice::Lose, n, 2.5))
            .count();
        assert!((2300..2700).contains(&hits), "{hits} of 100000");
        assert!((0..1000).all(|n| happens(7, Choice::Lose, n, 100.0)));
        assert!(!(0..1000).any(|n| happens(7, Choice::Lose, n, 0.0)));
    }

    #[test]
    fn choices_of_different_kinds_are_independent() {
        let both = (0..100_000)
            .filter(|&n| happens(7, Choice::Lose, n, 10.0) && happens(7, Choice::Corrupt, n, 10.0))
            .count();
        assert!((800..1200).contains(&both), "{both} of 100000");
    }

    #[test]
    fn numbers_stay_below_their_limit() {
        assert_eq!(below(u64::MAX, 10), 9);
        assert_eq!(below(0, 10), 0);
        assert_eq!(below(u64::MAX, 0), 0);
    }
}
