//! Rate limits as packets read them from memory, alike on both paths.

use bpf::layout::Limit;
use compile::table::{RateLimit, RateUnit};

use crate::owners::name::Kind;

/// The owner of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Limiter {
    /// A rule or an output, by its slot.
    Slot(Kind, u32),
    /// The budget of all unicast outputs.
    Budget,
}

/// A limit without bookings; all zero stands for none.
pub(crate) fn new(limit: RateLimit) -> Limit {
    let schedule = packet::limit::Limit::new(limit.rate, limit.burst);
    Limit {
        per_token: schedule.per_token,
        depth_ns: schedule.depth_ns,
        due_ns: 0,
        bits: u64::from(limit.unit == RateUnit::Bits),
    }
}

/// The limit's times, for booking on it.
#[inline]
pub(crate) const fn schedule(limit: &Limit) -> packet::limit::Limit {
    packet::limit::Limit {
        per_token: limit.per_token,
        depth_ns: limit.depth_ns,
    }
}

/// Returns whether two limits differ at most in what is booked.
pub(crate) fn is_same(one: Limit, other: Limit) -> bool {
    let due_ns = 0;
    Limit { due_ns, ..one } == Limit { due_ns, ..other }
}
