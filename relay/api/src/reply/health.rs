//! The state of a rule's stream.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::State;
use counters::counters;

/// What a rule receives, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rates {
    /// Datagrams, over the last second.
    pub packets_1s: f64,
    /// Bits of UDP payload, over the last second.
    pub bits_1s: f64,
    /// Datagrams, over the last ten seconds.
    pub packets_10s: f64,
    /// Bits of UDP payload, over the last ten seconds.
    pub bits_10s: f64,
}

/// What is known of a stream that is watched.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HealthStats {
    /// `down`: silent for too long; `degraded`: something went wrong within ten seconds.
    pub state: State,
    /// Why the state is not `up`.
    pub reason: Option<String>,
    /// Seconds since the last packet; none while no packet came.
    pub silent_seconds: Option<f64>,
    /// Longest time between two packets that ended within about the last second.
    pub gap_seconds_1s: f64,
    /// The same within about ten seconds.
    pub gap_seconds_10s: f64,
    /// Datagrams that are not of the form looked for.
    pub unrecognised: u64,
    /// What RTP headers say; none while none came.
    pub rtp: Option<RtpStats>,
    /// What MPEG-TS headers say; none while none came.
    pub ts: Option<TsStats>,
}

/// RTP (RFC 3550).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RtpStats {
    /// Packets, each once.
    pub packets: u64,
    /// Packets that did not come before 64 later ones had.
    pub lost: u64,
    /// Packets that came behind a later one.
    pub reordered: u64,
    /// Packets that came again.
    pub duplicated: u64,
    /// Times the sequence numbers began anew.
    pub restarts: u64,
    /// Times another source took over.
    pub ssrc_changes: u64,
    /// Interarrival jitter, in seconds.
    pub jitter_seconds: f64,
    /// The source that sends.
    pub ssrc: u32,
    /// Its payload type.
    pub payload_type: u8,
}

/// MPEG-TS (ISO/IEC 13818-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TsStats {
    /// Packets of 188 bytes.
    pub packets: u64,
    /// Packets that do not go on from the last one of their PID.
    pub continuity_errors: u64,
    /// Packets that the sender marks as broken.
    pub transport_errors: u64,
    /// Packets that do not begin with the sync byte.
    pub sync_errors: u64,
    /// PIDs seen so far.
    pub pids: u64,
}

counters! { HealthStats {
    silent_seconds: "mcr_stream_silence_seconds", "Time since the rule's last packet.";
    gap_seconds_10s: "mcr_stream_gap_seconds",
        "Longest time between two packets of the rule within about ten seconds.";
    unrecognised: "mcr_stream_unrecognised_packets_total",
        "Datagrams that are not of the form looked for.";
} }

counters! { RtpStats {
    packets: "mcr_rtp_packets_total", "RTP packets of the sources followed, each once.";
    lost: "mcr_rtp_lost_packets_total",
        "RTP packets that did not come before 64 later ones had.", "{} lost";
    reordered: "mcr_rtp_reordered_packets_total",
        "RTP packets that came behind a later one.", "{} reordered";
    duplicated: "mcr_rtp_duplicated_packets_total", "RTP packets that came again.", "{} duplicated";
    restarts: "mcr_rtp_restarts_total", "Times the RTP sequence numbers began anew.";
    ssrc_changes: "mcr_rtp_ssrc_changes_total", "Times another RTP source took over.";
    jitter_seconds: "mcr_rtp_jitter_seconds", "Interarrival jitter after RFC 3550.", "jitter {}";
} }

counters! { TsStats {
    packets: "mcr_ts_packets_total", "MPEG-TS packets of 188 bytes.";
    continuity_errors: "mcr_ts_continuity_errors_total",
        "MPEG-TS packets that do not go on from the last one of their PID.",
        "{} continuity error{s}";
    transport_errors: "mcr_ts_transport_errors_total",
        "MPEG-TS packets that the sender marks as broken.", "{} transport error{s}";
    sync_errors: "mcr_ts_sync_errors_total",
        "MPEG-TS packets that do not begin with the sync byte.", "{} sync error{s}";
    pids: "mcr_ts_pids", "PIDs seen so far.", "{} PID{s}";
} }
