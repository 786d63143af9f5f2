//! What `mcr send` and `mcr receive` print at their end; a documented, stable JSON shape.

use serde::{Deserialize, Serialize};

use crate::latency::Summary;

/// Packets and their UDP payload bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Datagrams.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
}

/// The generator's account.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SendReport {
    /// What the kernel took.
    pub sent: Volume,
    /// From the first packet's due time to the end of the run; with a rate, the last packet's
    /// interval counts whole.
    pub seconds: f64,
    /// Packets sent per second.
    pub pps: f64,
    /// Packets the kernel refused.
    pub errors: u64,
    /// The error of the first of them, with its remedy; absent when there were none.
    pub first_error: Option<String>,
    /// Faults injected on purpose; absent when none were asked for.
    pub injected: Option<Injected>,
    /// By leg, where legs carry the same packets; absent elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<LineReport>,
    /// Of all legs together; absent where there are none.
    pub union: Option<UnionReport>,
}

/// What was sent on a leg, in packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineReport {
    /// Where the leg leads.
    pub to: String,
    /// Sent on it, repeats included.
    pub sent: u64,
    /// Of these, left before any other leg's copy.
    pub first: u64,
    /// Left out by chance.
    pub lost: u64,
    /// Left out because the leg was cut.
    pub cut: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Sent after their successor.
    pub reordered: u64,
    /// Sent on other legs only.
    pub missed: u64,
}

/// What was sent on the legs of one run, in sequence numbers: each counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnionReport {
    /// Generated.
    pub numbers: u64,
    /// Sent on at least one leg.
    pub on_any: u64,
    /// Sent on none, between the first and the last that were sent on any.
    pub lost: u64,
    /// First copies that left after that of a higher number.
    pub reordered: u64,
}

/// Faults the generator put in on purpose, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injected {
    /// Left out.
    pub lost: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Sent after their successor.
    pub reordered: u64,
    /// Sent with a changed byte.
    pub corrupt: u64,
}

/// The receiver's account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReceiveReport {
    /// By endpoint, in the order they were given.
    pub endpoints: Vec<EndpointReport>,
    /// All endpoints together.
    pub total: Tally,
}

impl ReceiveReport {
    /// Adds the endpoints up; latency and skew of all of them are measured elsewhere.
    pub fn of(
        endpoints: Vec<EndpointReport>,
        latency_us: Summary,
        skew_us: Option<Summary>,
    ) -> Self {
        let sum = |field: fn(&Tally) -> u64| {
            let figures = endpoints.iter().map(|endpoint| field(&endpoint.tally));
            figures.fold(0, u64::saturating_add)
        };
        let total = Tally {
            packets: sum(|tally| tally.packets),
            bytes: sum(|tally| tally.bytes),
            lost: sum(|tally| tally.lost),
            duplicated: sum(|tally| tally.duplicated),
            reordered: sum(|tally| tally.reordered),
            corrupt: sum(|tally| tally.corrupt),
            continuity_errors: sum(|tally| tally.continuity_errors),
            restarts: sum(|tally| tally.restarts),
            unchecked: sum(|tally| tally.unchecked),
            receiver_dropped: sum(|tally| tally.receiver_dropped),
            latency_us,
            skew_us,
        };
        Self { endpoints, total }
    }
}

/// One endpoint's account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointReport {
    /// The endpoint as it was given.
    pub at: String,
    /// What arrived there.
    #[serde(flatten)]
    pub tally: Tally,
    /// The same compared with what was sent; absent where that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub union: Option<Judgement>,
}

impl EndpointReport {
    /// Compares what arrived with what the sender sent on its legs.
    pub fn judge(&mut self, sent: &UnionReport) {
        let tally = &self.tally;
        let received = tally
            .packets
            .saturating_sub(tally.duplicated)
            .saturating_sub(tally.unchecked);
        self.union = Some(Judgement {
            on_any: sent.on_any,
            received,
            missing: sent.on_any.saturating_sub(received),
            twice: tally.duplicated,
            reordered: tally.reordered.saturating_sub(sent.reordered),
        });
    }
}

/// What arrived of one stream that was sent on several legs, in sequence numbers: each counts
/// once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// Sent on at least one leg.
    pub on_any: u64,
    /// Arrived.
    pub received: u64,
    /// Did not.
    pub missing: u64,
    /// Arrived again, each time.
    pub twice: u64,
    /// Arrived after a higher number, beyond those whose first copy left so.
    pub reordered: u64,
}

impl Judgement {
    /// Returns whether all that was sent on any leg arrived, and each once.
    pub const fn is_exact(&self) -> bool {
        self.missing == 0 && self.twice == 0 && self.received == self.on_any
    }
}

/// What arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Datagrams of any kind.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
    /// Sequence numbers missing between the first and the last seen.
    pub lost: u64,
    /// Sequence numbers seen again.
    pub duplicated: u64,
    /// Packets that arrived after a higher sequence number.
    pub reordered: u64,
    /// Packets with a changed byte.
    pub corrupt: u64,
    /// RTP packets in sequence whose MPEG-TS packets are not: lost before RTP counted them. Absent
    /// when there were none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub continuity_errors: u64,
    /// Times RTP's numbers restarted, so that the loss there is unknown; absent when there were none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u64,
    /// Packets that carry no number to check; absent when there were none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unchecked: u64,
    /// Of the lost packets, those that reached the receiver while its buffer was full; absent when
    /// there were none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub receiver_dropped: u64,
    /// From the intended send time to the kernel's receive timestamp.
    pub latency_us: Summary,
    /// Between the first and the last copy of one packet, where several endpoints receive the
    /// same stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew_us: Option<Summary>,
}

impl Tally {
    /// Returns whether anything is missing or changed.
    pub fn has_loss(&self) -> bool {
        self.lost > 0 || self.corrupt > 0 || self.continuity_errors > 0
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
