//! Reproducible random numbers: the seed is printed, and `MCR_TEST_SEED` sets it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Reproducible random numbers (xorshift64*). The seed is printed; `MCR_TEST_SEED` sets it.
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    /// Prints the seed: that of `MCR_TEST_SEED`, otherwise one from the clock.
    pub fn new() -> Self {
        let given = std::env::var("MCR_TEST_SEED").ok();
        let seed = given.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.map_or(1, |now| now.as_nanos() as u64)
        });
        println!("MCR_TEST_SEED={seed}");
        Self {
            seed,
            state: seed | 1,
        }
    }

    /// The seed it started with.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// An independent generator for another user, equally reproducible.
    pub fn fork(&mut self) -> Self {
        let state = self.below(u64::MAX >> 11) | 1;
        Self {
            seed: self.seed,
            state,
        }
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % limit.max(1)
    }

    /// One of several.
    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}
