//! A few seconds of fuzzing without a fuzzer: inputs of a corpus, changed at random. A seed
//! determines the changes, so that a failure can be reproduced.

/// Longest input made.
const LENGTH_MAX: usize = 4096;

/// Numbers that parsers stumble over.
const BYTES: [u8; 12] = [
    0, 1, 2, 0x0a, 0x20, 0x2e, 0x3a, 0x45, 0x7f, 0x80, 0xfe, 0xff,
];

/// A source of changed inputs.
#[derive(Clone, Debug)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// Starts from a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Makes an input from one or two inputs of the corpus.
    pub fn input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.choose(corpus).cloned().unwrap_or_default();
        if self.below(4) == 0
            && let Some(other) = self.choose(corpus)
        {
            let (keep, from) = (self.below(input.len() + 1), self.below(other.len() + 1));
            input.truncate(keep);
            input.extend(&other[from..]);
        }
        for _ in 0..=self.below(4) {
            self.change(&mut input);
        }
        input.truncate(LENGTH_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let length = self.below(input.len() - at + 1).min(16);
        let byte = match self.below(2) {
            0 => BYTES[self.below(BYTES.len())],
            _ => self.next() as u8,
        };
        match self.below(6) {
            0 => drop(input.drain(at..at + length)),
            1 => input.insert(at, byte),
            2 => {
                let again = input[at..at + length].to_vec();
                input.splice(at..at, again);
            }
            3 => input.truncate(at),
            _ if at < input.len() => match self.below(3) {
                0 => input[at] ^= 1 << self.below(8),
                1 => input[at] = input[at].wrapping_add(1),
                _ => input[at] = byte,
            },
            _ => input.push(byte),
        }
    }

    fn choose<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len().max(1)))
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
