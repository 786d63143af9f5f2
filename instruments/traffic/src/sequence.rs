//! Follows one stream's sequence numbers: lost, duplicated, reordered.
//!
//! Exact while a packet is at most [`WINDOW`] numbers late; one that is later still counts as
//! reordered, never as a duplicate. Packets sent before the first one seen are unknown and not
//! counted.

/// How many numbers back a duplicate is recognised.
pub const WINDOW: u64 = 8192;

const WORDS: usize = (WINDOW / 64) as usize;

/// The state of one stream.
#[derive(Clone, Debug)]
pub struct Sequence {
    first: u64,
    highest: u64,
    distinct: u64,
    duplicated: u64,
    reordered: u64,
    seen: Box<[u64; WORDS]>,
}

impl Sequence {
    /// Starts at the first packet seen.
    pub fn starting_at(first: u64) -> Self {
        let mut sequence = Self {
            first,
            highest: first,
            distinct: 1,
            duplicated: 0,
            reordered: 0,
            seen: Box::new([0; WORDS]),
        };
        sequence.mark(first);
        sequence
    }

    /// Records the next packet seen.
    pub fn record(&mut self, number: u64) {
        if number > self.highest {
            self.forget(number);
            self.highest = number;
        } else if self.has(number) {
            self.duplicated += 1;
            return;
        } else {
            self.reordered += 1;
            self.first = self.first.min(number);
        }
        self.distinct += 1;
        self.mark(number);
    }

    /// Returns whether `number` can belong here: not absurdly far from what was seen.
    pub fn is_plausible(&self, number: u64) -> bool {
        self.highest.abs_diff(number) < WINDOW
    }

    /// Returns whether `number` was seen within the window.
    pub fn has(&self, number: u64) -> bool {
        let is_near = self.highest.wrapping_sub(number) < WINDOW;
        is_near && self.seen[word(number)] & bit(number) != 0
    }

    /// The highest number seen.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Packets missing between the first and the highest number seen.
    pub fn lost(&self) -> u64 {
        // The count of all 64-bit numbers would not fit.
        (self.highest - self.first)
            .saturating_add(1)
            .saturating_sub(self.distinct)
    }

    /// Packets seen again.
    pub fn duplicated(&self) -> u64 {
        self.duplicated
    }

    /// Packets seen after one with a higher number (RFC 4737 section 3).
    pub fn reordered(&self) -> u64 {
        self.reordered
    }

    /// Different packets seen.
    pub fn distinct(&self) -> u64 {
        self.distinct
    }

    /// Clears the marks of the numbers that enter the window when `next` becomes the highest.
    fn forget(&mut self, next: u64) {
        if next - self.highest >= WINDOW {
            self.seen.fill(0);
            return;
        }
        for number in self.highest + 1..=next {
            self.seen[word(number)] &= !bit(number);
        }
    }

    fn mark(&mut self, number: u64) {
        if self.highest - number < WINDOW {
            self.seen[word(number)] |= bit(number);
        }
    }
}

fn word(number: u64) -> usize {
    (number / 64) as usize % WORDS
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(numbers: &[u64]) -> (u64, u64, u64) {
        let mut sequence = Sequence::starting_at(numbers[0]);
        numbers[1..]
            .iter()
            .for_each(|&number| sequence.record(number));
        (sequence.lost(), sequence.duplicated(), sequence.reordered())
    }

    #[test]
    fn a_gap_is_loss_until_it_is_filled() {
        assert_eq!(after(&[5, 6, 9]), (2, 0, 0));
        assert_eq!(after(&[5, 6, 9, 7, 8]), (0, 0, 2));
    }

    #[test]
    fn a_repeated_number_is_a_duplicate() {
        assert_eq!(after(&[0, 1, 1, 0, 2]), (0, 2, 0));
    }

    #[test]
    fn a_number_before_the_first_extends_the_stream() {
        assert_eq!(after(&[5, 3, 6]), (1, 0, 1));
    }

    #[test]
    fn a_jump_over_the_window_counts_what_it_skips() {
        assert_eq!(after(&[0, WINDOW * 3]), (WINDOW * 3 - 1, 0, 0));
        assert_eq!(after(&[0, WINDOW * 3, WINDOW]), (WINDOW * 3 - 2, 0, 1));
    }

    proptest! {
        #[test]
        fn losses_and_duplicates_are_exact_within_the_window(
            numbers in prop::collection::vec(0..WINDOW, 1..300)
        ) {
            let (lost, duplicated, _) = after(&numbers);
            let distinct: std::collections::BTreeSet<_> = numbers.iter().copied().collect();
            let span = distinct.last().unwrap() - distinct.first().unwrap() + 1;
            prop_assert_eq!(duplicated, (numbers.len() - distinct.len()) as u64);
            prop_assert_eq!(lost, span - distinct.len() as u64);
        }
    }
}
