//! The counts of a batch, held back until the sends they belong to have completed.
//!
//! A worker that is killed in the middle of a batch has then counted all of it or nothing, so the
//! accounting law holds over its death; what it had taken but not counted shows as lost.

use packet::verdict::DropReason;

use super::context::Context;
use super::rewrite::Counts;
use crate::userspace::shared::layout::{OutputSlot, WorkerWord};

/// What is to be counted once the pending messages have completed.
#[derive(Debug)]
pub(super) struct Ledger {
    received: Vec<(Counts, u32, u32)>,
    dropped: Vec<(OutputSlot, DropReason, u32)>,
    pending: Vec<Message>,
    /// Error of an earlier piece of the copy whose last piece is still pending.
    failed: Option<i32>,
}

/// A pending message.
#[derive(Clone, Copy, Debug)]
struct Message {
    output: OutputSlot,
    packets: u32,
    bytes: u32,
    /// Only a piece of a copy; the last piece counts for all.
    is_piece: bool,
}

impl Ledger {
    /// Makes room for a batch's runs and the messages of one submission.
    pub(super) fn new(runs: usize, messages: usize) -> Self {
        Self {
            received: Vec::with_capacity(runs),
            // Grows to the largest fan-out of outputs that are down, and no further.
            dropped: Vec::with_capacity(messages),
            pending: Vec::with_capacity(messages),
            failed: None,
        }
    }

    /// Notes datagrams that a rule received, and their payload bytes.
    #[inline]
    pub(super) fn received(&mut self, counts: Counts, packets: u32, bytes: u32) {
        self.received.push((counts, packets, bytes));
    }

    /// Notes copies that an output drops.
    #[inline]
    pub(super) fn dropped(&mut self, output: OutputSlot, reason: DropReason, packets: u32) {
        self.dropped.push((output, reason, packets));
    }

    /// Notes copies that are in the next message, and their payload bytes.
    #[inline]
    pub(super) fn pending(&mut self, output: OutputSlot, packets: u32, bytes: u32) {
        self.pending.push(Message {
            output,
            packets,
            bytes,
            is_piece: false,
        });
    }

    /// Notes that the next message is a piece of a copy, but not its last.
    #[inline]
    pub(super) fn pending_piece(&mut self, output: OutputSlot) {
        self.pending.push(Message {
            output,
            packets: 0,
            bytes: 0,
            is_piece: true,
        });
    }

    /// Counts everything noted; `results` are those of the messages, in their order.
    #[inline]
    pub(super) fn commit(&mut self, results: &[i32], context: Context<'_>) {
        let counters = context.counters;
        let (mut sent, mut failed) = (0, 0);
        for (counts, packets, bytes) in self.received.drain(..) {
            counts.received(counters, context.passed(packets.into(), bytes.into()));
        }
        for (output, reason, packets) in self.dropped.drain(..) {
            counters.output_dropped(output, reason, packets.into());
        }
        for (result, message) in results.iter().zip(self.pending.drain(..)) {
            let error = self.failed.or((*result < 0).then_some(-result));
            if message.is_piece {
                self.failed = error;
                continue;
            }
            self.failed = None;
            let packets = u64::from(message.packets);
            if let Some(error) = error {
                counters.output_dropped(message.output, drop_reason(error), packets);
                failed += packets;
            } else {
                counters.output_sent(
                    message.output,
                    context.passed(packets, message.bytes.into()),
                );
                sent += packets;
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
