//! The latency of packets, as a histogram of a sample: both paths count it alike.
//!
//! The bound of each bucket is twice that of the one before, from about a microsecond to about a second.

/// Buckets; the last has no upper bound.
pub const BUCKETS: usize = 22;
/// The first bucket holds times below 2 to this power nanoseconds.
pub const FIRST_SHIFT: u32 = 10;
/// The kernel path samples one of this many packets of a rule on a core; a power of two.
pub const KERNEL_EVERY: u64 = 64;

/// The sampled packets, by their latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Packets per bucket.
    pub buckets: [u64; BUCKETS],
    /// The sum of all times, in nanoseconds.
    pub sum_ns: u64,
    /// Packets whose time began with the kernel's receive timestamp, not with the program.
    pub stamped: u64,
}

/// The bucket of a time.
#[inline]
pub const fn bucket(ns: u64) -> usize {
    let bits = u64::BITS - (ns >> FIRST_SHIFT).leading_zeros();
    if bits as usize >= BUCKETS {
        BUCKETS - 1
    } else {
        bits as usize
    }
}

/// Upper bound of a bucket, exclusive, in nanoseconds. `None` for the last.
pub const fn bound_ns(bucket: usize) -> Option<u64> {
    if bucket + 1 < BUCKETS {
        Some(1 << (FIRST_SHIFT + bucket as u32))
    } else {
        None
    }
}

impl Latency {
    /// Packets sampled.
    pub fn samples(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds another sample.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.words_mut().zip(other.words()) {
            *mine = mine.wrapping_add(theirs);
        }
    }

    /// Subtracts what was sampled before, for a slot that had another owner.
    pub fn since(&self, base: &Self) -> Self {
        let mut since = *self;
        for (mine, theirs) in since.words_mut().zip(base.words()) {
            *mine = mine.saturating_sub(theirs);
        }
        since
    }

    /// Everything counted: the buckets, then the sum, then the stamped.
    pub fn words(&self) -> [u64; WORDS] {
        std::array::from_fn(|word| match word.checked_sub(BUCKETS) {
            None => self.buckets[word],
            Some(0) => self.sum_ns,
            Some(_) => self.stamped,
        })
    }

    /// The same, to change.
    pub fn words_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let rest = [&mut self.sum_ns, &mut self.stamped];
        self.buckets.iter_mut().chain(rest)
    }
}

/// Words of a [`Latency`].
pub const WORDS: usize = BUCKETS + 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_below_the_end_of_its_bucket_and_not_below_the_one_before() {
        for ns in (0..40).flat_map(|shift| [(1_u64 << shift) - 1, 1 << shift, (1 << shift) + 1]) {
            let at = bucket(ns);
            assert!(bound_ns(at).is_none_or(|end| ns < end), "{ns}");
            let before = at.checked_sub(1).and_then(bound_ns);
            assert!(before.is_none_or(|end| ns >= end), "{ns}");
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(200_000_000), bucket((1 << 28) - 1));
        assert_eq!((bucket(u64::MAX), bound_ns(BUCKETS - 1)), (21, None));
    }

    #[test]
    fn what_was_seen_before_is_taken_off_word_by_word() {
        let mut first = Latency {
            sum_ns: 5,
            stamped: 1,
            ..Latency::default()
        };
        first.buckets[3] = 2;
        let mut both = first;
        both.add(&first);
        assert_eq!((both.samples(), both.sum_ns, both.stamped), (4, 10, 2));
        assert_eq!(both.since(&first), first);
        assert_eq!(first.since(&both), Latency::default());
    }
}
