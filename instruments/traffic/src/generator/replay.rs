//! Sends the datagrams of a capture with the capture's timing.

use super::option::Options;
use super::outbox::Outbox;
use crate::capture::Capture;

/// Time between the last datagram of one round and the first of the next, in nanoseconds, where
/// the capture has only one datagram to take it from.
const LONE_GAP_NS: u64 = 1_000_000;

/// A replay in progress; packet numbers continue across rounds.
pub(super) struct Player<'a> {
    capture: &'a Capture,
    speed: f64,
    rounds: u64,
    destinations: usize,
    /// From the start of one round to the start of the next: the capture's length and one mean gap.
    round_ns: u64,
}

impl<'a> Player<'a> {
    pub(super) fn new(capture: &'a Capture, options: &Options) -> Self {
        let gaps = capture.datagrams().saturating_sub(1) as u64;
        let gap = capture.length_ns().checked_div(gaps).unwrap_or(LONE_GAP_NS);
        Self {
            capture,
            speed: options.speed,
            rounds: options.count.unwrap_or(1),
            destinations: options.destinations.len(),
            round_ns: capture.length_ns().saturating_add(gap.max(1)),
        }
    }

    pub(super) fn last(&self) -> u64 {
        self.rounds.saturating_mul(self.capture.datagrams() as u64)
    }

    pub(super) fn due_ns(&self, number: u64) -> u64 {
        let (round, index) = self.position(number);
        let after = self.capture.datagrams[index].after_ns;
        // Very many rounds, or a file with absurd times, exceed 64 bits.
        let captured = u128::from(round) * u128::from(self.round_ns) + u128::from(after);
        (captured as f64 / self.speed) as u64
    }

    /// Flow i goes to destination i, starting over at the first when there are more flows.
    pub(super) fn queue(&self, number: u64, outbox: &mut Outbox) -> bool {
        let (_, index) = self.position(number);
        let flow = self.capture.datagrams[index].flow;
        self.queue_to(flow % self.destinations, number, outbox)
    }

    /// Puts a packet into the outbox for a destination, or returns `false` when that is too full.
    pub(super) fn queue_to(&self, to: usize, number: u64, outbox: &mut Outbox) -> bool {
        let (_, index) = self.position(number);
        let payload = self.capture.payload(&self.capture.datagrams[index]);
        let Some(slot) = outbox.reserve(to, payload.len()) else {
            return false;
        };
        slot.copy_from_slice(payload);
        true
    }

    fn position(&self, number: u64) -> (u64, usize) {
        let datagrams = self.capture.datagrams() as u64;
        (number / datagrams, (number % datagrams) as usize)
    }
}
