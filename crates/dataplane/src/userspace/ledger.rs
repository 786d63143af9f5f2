//! A batch's bookkeeping: nothing is counted before the sends it belongs to have completed.
//!
//! A worker that is killed in the middle of a batch has then counted all of it or nothing, so the
//! accounting law holds over its death; what it had taken but not counted shows as lost.

use packet::verdict::DropReason;

use super::shared::{OutputSlot, RuleSlot, SharedCounters, WorkerWord};

/// What is to be counted once the messages under way have completed.
#[derive(Debug)]
pub(super) struct Ledger {
    received: Vec<(RuleSlot, u32, u32)>,
    dropped: Vec<(OutputSlot, DropReason, u32)>,
    pending: Vec<(OutputSlot, u32, u32)>,
}

impl Ledger {
    /// Makes room for the messages of one submission.
    pub(super) fn new(messages: usize) -> Self {
        Self {
            received: Vec::with_capacity(messages),
            // Grows to the largest fan-out of outputs that are down, and no further.
            dropped: Vec::with_capacity(messages),
            pending: Vec::with_capacity(messages),
        }
    }

    /// Notes datagrams that a rule received, and their payload bytes.
    #[inline]
    pub(super) fn received(&mut self, rule: RuleSlot, packets: u32, bytes: u32) {
        self.received.push((rule, packets, bytes));
    }

    /// Notes copies that an output drops.
    #[inline]
    pub(super) fn dropped(&mut self, output: OutputSlot, reason: DropReason, packets: u32) {
        self.dropped.push((output, reason, packets));
    }

    /// Notes copies that are in the next message, and their payload bytes.
    #[inline]
    pub(super) fn pending(&mut self, output: OutputSlot, packets: u32, bytes: u32) {
        self.pending.push((output, packets, bytes));
    }

    /// Counts everything noted; `results` are those of the messages, in their order.
    #[inline]
    pub(super) fn commit(&mut self, results: &[i32], counters: &SharedCounters) {
        let (mut sent, mut failed) = (0, 0);
        for (rule, packets, bytes) in self.received.drain(..) {
            counters.rule_received(rule, packets.into(), bytes.into());
        }
        for (output, reason, packets) in self.dropped.drain(..) {
            counters.output_dropped(output, reason, packets.into());
        }
        for (result, (output, packets, bytes)) in results.iter().zip(self.pending.drain(..)) {
            let packets = u64::from(packets);
            if *result >= 0 {
                counters.output_sent(output, packets, bytes.into());
                sent += packets;
            } else {
                counters.output_dropped(output, drop_reason(-result), packets);
                failed += packets;
            }
        }
        counters.add(WorkerWord::Forwarded, sent);
        counters.add(WorkerWord::TransmitErrors, failed);
    }
}

fn drop_reason(error: i32) -> DropReason {
    match error {
        libc::ENOBUFS | libc::EAGAIN | libc::ENOMEM => DropReason::EgressFull,
        libc::ENETDOWN => DropReason::InterfaceDown,
        libc::ENXIO | libc::ENODEV => DropReason::InterfaceMissing,
        libc::EMSGSIZE => DropReason::TooBig,
        _ => DropReason::EgressError,
    }
}
