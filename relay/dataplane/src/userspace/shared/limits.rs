//! The rate limits, whose state is one word each.

use std::sync::atomic::{AtomicU64, Ordering};

use bpf::layout::Limit;
use sys::memory::Field;

use super::state::SharedState;
use crate::limits::{self, Limiter};
use crate::owners::name::Kind;

/// Attempts at a word that other workers change at the same time; then the packet is refused, as others
/// have passed instead.
const TRIES: u32 = 8;

/// What a packet costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Datagrams.
    pub(crate) packets: u32,
    /// UDP payload bytes.
    pub(crate) bytes: u32,
    /// UDP payload bytes of each datagram but the last, which may have fewer.
    pub(crate) size: u32,
}

impl Cost {
    /// What the first datagrams cost.
    pub(crate) fn first(self, packets: u32) -> Self {
        let bytes = self.bytes.min(self.size.saturating_mul(packets));
        Self {
            packets,
            bytes,
            ..self
        }
    }
}

impl SharedState {
    /// Lets a limit start with its whole burst.
    pub(crate) fn fill(&self, limiter: Limiter) {
        if let Some(word) = self.word(limiter) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Books on a limit as many of a packet's datagrams as it lets pass, and returns their number: all, or of
    /// a super-packet as many as the bucket holds.
    #[inline]
    pub(crate) fn admit(&self, limiter: Limiter, limit: &Limit, now_ns: u64, cost: Cost) -> u32 {
        let pass = |packets: u32, bytes: u32| {
            let tokens = match limit.bits {
                0 => u64::from(packets),
                _ => u64::from(bytes) * 8,
            };
            self.pass(limiter, limit, now_ns, tokens)
        };
        if pass(cost.packets, cost.bytes) {
            return cost.packets;
        }
        let mut passed = 0;
        while passed + 1 < cost.packets && pass(1, cost.size) {
            passed += 1;
        }
        passed
    }

    #[inline]
    fn pass(&self, limiter: Limiter, limit: &Limit, now_ns: u64, tokens: u64) -> bool {
        let Some(word) = self.word(limiter) else {
            return true;
        };
        let schedule = limits::schedule(limit);
        for _ in 0..TRIES {
            let before = word.load(Ordering::Relaxed);
            let mut due = before;
            if !schedule.admit(&mut due, now_ns, tokens) {
                return false;
            }
            let order = Ordering::Relaxed;
            if word
                .compare_exchange_weak(before, due, order, order)
                .is_ok()
            {
                return true;
            }
        }
        false
    }

    #[inline]
    fn word(&self, limiter: Limiter) -> Option<&AtomicU64> {
        match limiter {
            Limiter::Slot(Kind::Rule, slot) => self.rule_limits.word(slot, Field::WHOLE),
            Limiter::Slot(Kind::Output, slot) => self.output_limits.word(slot, Field::WHOLE),
            Limiter::Slot(Kind::Input, _) => None,
            Limiter::Budget => self.budget.word(0, Field::WHOLE),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use compile::table::{RateLimit, RateUnit};
    use sys::shared_memory::Region;

    use super::*;

    #[test]
    fn two_workers_share_one_bucket() {
        let (region, one) = SharedState::create().unwrap();
        let other = SharedState::map(region.as_fd()).unwrap();
        let limit = limits::new(RateLimit {
            unit: RateUnit::Bits,
            rate: 8000,
            burst: 1600,
        });
        let cost = Cost {
            packets: 1,
            bytes: 100,
            size: 100,
        };
        let now = 1_000_000_000;
        let limiter = |slot| Limiter::Slot(Kind::Output, slot);
        assert_eq!(one.admit(limiter(7), &limit, now, cost), 1);
        assert_eq!(other.admit(limiter(7), &limit, now, cost), 1);
        assert_eq!(one.admit(limiter(7), &limit, now, cost), 0);
        assert_eq!(other.admit(limiter(8), &limit, now, cost), 1);
        assert_eq!(one.admit(limiter(7), &limit, now + 100_000_000, cost), 1);
    }
}
