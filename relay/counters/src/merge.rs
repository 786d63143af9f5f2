//! What the merged inputs of a rule brought.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Seconds, counters};

/// What a rule's merged inputs brought together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MergeStats {
    /// Numbers that no input brought, since its streams began; with `payload` always 0.
    pub lost: u64,
    /// Streams begun: each source or session, and each run of its numbers.
    pub streams: u64,
    /// Packets that passed without being compared with others, and payloads forgotten too early: there was
    /// no room for them, and their copies may have left too.
    #[serde(default)]
    pub unsettled: u64,
}

/// What one of them brought. The counts stand in the input itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LineStats {
    /// Packets that came here first, and passed.
    #[schema(required = false)]
    pub first: u64,
    /// Packets that another input had brought.
    #[schema(required = false)]
    pub duplicate: u64,
    /// Packets that it had brought itself.
    #[schema(required = false)]
    pub repeated: u64,
    /// Packets further behind than is remembered.
    #[schema(required = false)]
    pub late: u64,
    /// Packets that are not of the stream that the other inputs bring.
    #[schema(required = false)]
    pub stray: u64,
    /// Of `first`, packets under a number that stands still: each payload passed once.
    #[schema(required = false)]
    #[serde(default)]
    pub still: u64,
    /// Packets of streams for which there was no room: more SSRCs or sessions at a time than are told apart.
    #[schema(required = false)]
    #[serde(default)]
    pub exceeded: u64,
    /// Packets that hold what other inputs brought cut into packets differently: found where packets take up
    /// several numbers, and of one in 32 where its length differs.
    #[schema(required = false)]
    #[serde(default)]
    pub differently_cut: u64,
    /// Numbers that only other inputs brought.
    #[schema(required = false)]
    pub missed: u64,
    /// How much later than the first its copies come by now, in seconds; a mean.
    #[schema(required = false, value_type = f64)]
    pub skew_seconds: Seconds,
    /// The most that was.
    #[schema(required = false, value_type = f64)]
    pub skew_max_seconds: Seconds,
}

impl LineStats {
    /// Packets that it brought.
    #[must_use]
    pub const fn brought(&self) -> u64 {
        self.first + self.duplicate + self.repeated + self.late + self.stray + self.exceeded
    }
}

counters! { MergeStats {
    lost: "mcr_merge_lost_packets_total",
        "Numbers that none of the rule's merged inputs brought.", "{} lost on all legs";
    streams: "mcr_merge_streams_total",
        "Streams begun by the rule's merged inputs: each source or session, and each run of its \
         numbers.", "{} stream{s} begun";
    unsettled: "mcr_merge_unsettled_packets_total",
        "Datagrams of the rule's merged inputs for which there was no room to remember them: their \
         copies may have left too.", "{} not remembered";
} }

counters! { LineStats {
    first: "mcr_merge_first_packets_total",
        "Datagrams that came by this of the merged inputs first, and passed.", "{} first";
    duplicate: "mcr_merge_duplicate_packets_total",
        "Datagrams that another of the merged inputs had brought.", "{} duplicate";
    repeated: "mcr_merge_repeated_packets_total",
        "Datagrams that the same input had brought before.", "{} repeated";
    late: "mcr_merge_late_packets_total",
        "Datagrams further behind the other merged inputs than is remembered.", "{} late";
    stray: "mcr_merge_stray_packets_total",
        "Datagrams that are not of the stream that the other merged inputs bring.", "{} stray";
    still: "mcr_merge_still_packets_total",
        "Datagrams that passed under a number that stands still, each payload once.", "{} under one number";
    exceeded: "mcr_merge_exceeded_packets_total",
        "Datagrams of more SSRCs or sessions at a time than a merge tells apart.", "{} of too many streams";
    differently_cut: "mcr_merge_differently_cut_packets_total",
        "Datagrams with what other merged inputs brought cut into datagrams differently.", "{} differently cut";
    missed: "mcr_merge_missed_packets_total",
        "Numbers that only others of the merged inputs brought.", "{} missed";
    skew_seconds: "mcr_merge_skew_seconds",
        "How much later than the first the input's copies come, a mean.", "skew {}";
    skew_max_seconds: "mcr_merge_skew_max_seconds",
        "The most that the input's copies came later than the first.", "at most {}";
} }
