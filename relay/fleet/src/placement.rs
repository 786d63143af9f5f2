//! Placement of shares on relays: weighted rendezvous hashing with bounded loads.
//!
//! A share's order of relays follows from their names and weights alone, so all hosts and versions agree
//! on it without communication: the arithmetic is on integers, since logarithms of floats differ between
//! machines. Nothing here moves a share that has a holder.

/// Fraction digits (bits) of logarithms.
const FRACTION: u32 = 32;

/// A relay that could hold a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its part, relative to the others; a relay with 0 takes nothing.
    pub weight: u32,
}

/// The indices of `relays` in the order of preference for `share`, the best first.
#[must_use]
pub fn order(share: &str, relays: &[Candidate<'_>]) -> Vec<usize> {
    let takers = relays.iter().enumerate().filter(|(_, r)| r.weight > 0);
    let mut weights = takers.clone().map(|(_, relay)| relay.weight);
    let first = weights.next();
    let is_weighted = weights.any(|weight| Some(weight) != first);
    let share = hash(share);
    let score = |relay: &Candidate<'_>| {
        let hash = combine(hash(relay.name), share);
        // Without weights the greatest hash has the lowest logarithm, so no logarithm is needed.
        if is_weighted {
            score(hash, relay.weight)
        } else {
            !hash
        }
    };
    let mut scored: Vec<_> = takers
        .map(|(index, relay)| (score(relay), relay.name, index))
        .collect();
    scored.sort_unstable();
    scored.into_iter().map(|(_, _, index)| index).collect()
}

/// How many shares each relay has, and how many it may have, by the relays' indices.
#[derive(Clone, Debug)]
pub struct Loads {
    relays: Vec<Load>,
}

#[derive(Clone, Copy, Debug)]
struct Load {
    most: u64,
    has: u64,
}

impl Loads {
    /// Loads of relays with these weights that hold nothing yet, for `total` shares: no relay is to have
    /// more than its fair part, rounded up, so none falls far below it either.
    #[must_use]
    pub fn new(weights: impl Iterator<Item = u32> + Clone, total: usize) -> Self {
        let sum: u64 = weights.clone().map(u64::from).sum();
        let most = |weight: u32| (total as u64 * u64::from(weight)).div_ceil(sum.max(1));
        let load = |weight| Load {
            most: most(weight),
            has: 0,
        };
        Self {
            relays: weights.map(load).collect(),
        }
    }

    /// Counts shares that `relay` holds.
    pub fn hold(&mut self, relay: usize, shares: u64) {
        self.relays[relay].has += shares;
    }

    /// Gives a share to the first in its `order` that may have one more, or to the first of all if
    /// none may.
    pub fn take(&mut self, order: impl Iterator<Item = usize> + Clone) -> Option<usize> {
        let has_room = |relay: &usize| self.relays[*relay].has < self.relays[*relay].most;
        let taker = order.clone().find(has_room).or(order.clone().next())?;
        self.hold(taker, 1);
        Some(taker)
    }
}

/// The relay with the lowest score gets the share: `-log(hash) / weight`, so that parts are proportional
/// to weights (Highest Random Weight, as in draft-ietf-bess-weighted-hrw).
fn score(hash: u64, weight: u32) -> u64 {
    (minus_log2(hash) << 24) / u64::from(weight)
}

/// `-log2((hash + 1) / 2^64)` with [`FRACTION`] bits after the point, digit by digit.
fn minus_log2(hash: u64) -> u64 {
    let Some(hash) = hash.checked_add(1) else {
        return 0;
    };
    let zeros = hash.leading_zeros();
    // In [1, 2), with 31 bits after the point.
    let mut mantissa = (hash << zeros) >> 32;
    let mut log = u64::from(63 - zeros);
    for _ in 0..FRACTION {
        mantissa = (mantissa * mantissa) >> 31;
        log <<= 1;
        if mantissa >> 32 != 0 {
            mantissa >>= 1;
            log |= 1;
        }
    }
    (64 << FRACTION) - log
}

/// FNV-1a with the finalizer of MurmurHash3: small, and never to be changed.
fn hash(name: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    finish(name.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Combines two hashes.
fn combine(relay: u64, share: u64) -> u64 {
    finish(relay.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ share)
}

fn finish(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests;
