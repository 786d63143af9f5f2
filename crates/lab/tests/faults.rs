//! What the tests of faults share: chance with a seed that is printed, and the load on a chain.

pub(crate) mod peers;
pub(crate) mod world;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use lab::load::{Load, Plan};
use lab::topology::Chain;

/// Repeatable chance (xorshift64*). The seed is printed; `MCR_TEST_SEED` sets it.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    pub(crate) fn new() -> Self {
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

    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    /// Chance of its own for somebody else, repeatable likewise.
    pub(crate) fn fork(&mut self) -> Self {
        let state = self.below(u64::MAX >> 11) | 1;
        Self {
            seed: self.seed,
            state,
        }
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % limit.max(1)
    }

    /// One of several.
    pub(crate) fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Starts a load from the sender to the sink of a chain.
pub(crate) fn load(chain: &Chain, plan: Plan) -> Result<Load> {
    let mut links = vec![(&chain.sender, "veth0"), (&chain.relay, "veth2")];
    if let Some(switch) = &chain.switch {
        links.push((switch, "port1"));
    }
    Load::start(
        plan,
        (&chain.sender, "veth0"),
        (&chain.sink, "veth3"),
        &links,
    )
}
