//! The streams that are watched. A rule without `health` has no samples here.

use api::reply::{HealthStats, RtpStats, RuleStats, State, TsStats};

use super::Page;

type Family<T> = (&'static str, &'static str, &'static str, fn(&T) -> f64);

/// Writes the families, for which Prometheus needs them all together.
pub(super) fn streams(page: &mut Page, rules: &[RuleStats]) {
    let watched = || {
        rules
            .iter()
            .filter_map(|rule| Some((rule.name.as_str(), rule.health.as_ref()?)))
    };
    if watched().next().is_none() {
        return;
    }
    page.family(
        "mcr_stream_state",
        "gauge",
        "1 for the state that the rule's stream is in, 0 for the others.",
    );
    for (rule, health) in watched() {
        for (word, state) in [
            ("up", State::Up),
            ("degraded", State::Degraded),
            ("down", State::Down),
        ] {
            let labels = [("rule", rule), ("state", word)];
            let is_in = u8::from(health.state == state);
            page.sample("mcr_stream_state", &labels, is_in);
        }
    }
    let families: [Family<HealthStats>; 3] = [
        (
            "mcr_stream_silence_seconds",
            "gauge",
            "Time since the rule's last packet.",
            |health| health.silent_seconds.unwrap_or(f64::NAN),
        ),
        (
            "mcr_stream_gap_seconds",
            "gauge",
            "Longest time between two packets of the rule within about ten seconds.",
            |health| health.gap_seconds_10s,
        ),
        (
            "mcr_stream_unrecognised_packets_total",
            "counter",
            "Datagrams that are not of the form looked for.",
            |health| health.unrecognised as f64,
        ),
    ];
    families_of(page, families, watched);
    families_of(page, RTP, || {
        watched().filter_map(|(rule, health)| Some((rule, health.rtp.as_ref()?)))
    });
    families_of(page, TS, || {
        watched().filter_map(|(rule, health)| Some((rule, health.ts.as_ref()?)))
    });
}

fn families_of<'a, T: 'a, I: Iterator<Item = (&'a str, &'a T)>>(
    page: &mut Page,
    families: impl IntoIterator<Item = Family<T>>,
    samples: impl Fn() -> I,
) {
    for (name, kind, help, value) in families {
        if samples().next().is_none() {
            return;
        }
        page.family(name, kind, help);
        for (rule, of) in samples() {
            let value = value(of);
            if !value.is_nan() {
                page.sample(name, &[("rule", rule)], value);
            }
        }
    }
}

const RTP: [Family<RtpStats>; 7] = [
    (
        "mcr_rtp_packets_total",
        "counter",
        "RTP packets of the sources followed, each once.",
        |rtp| rtp.packets as f64,
    ),
    (
        "mcr_rtp_lost_packets_total",
        "counter",
        "RTP packets that did not come before 64 later ones had.",
        |rtp| rtp.lost as f64,
    ),
    (
        "mcr_rtp_reordered_packets_total",
        "counter",
        "RTP packets that came behind a later one.",
        |rtp| rtp.reordered as f64,
    ),
    (
        "mcr_rtp_duplicated_packets_total",
        "counter",
        "RTP packets that came again.",
        |rtp| rtp.duplicated as f64,
    ),
    (
        "mcr_rtp_restarts_total",
        "counter",
        "Times the RTP sequence numbers began anew.",
        |rtp| rtp.restarts as f64,
    ),
    (
        "mcr_rtp_ssrc_changes_total",
        "counter",
        "Times another RTP source took over.",
        |rtp| rtp.ssrc_changes as f64,
    ),
    (
        "mcr_rtp_jitter_seconds",
        "gauge",
        "Interarrival jitter after RFC 3550.",
        |rtp| rtp.jitter_seconds,
    ),
];

const TS: [Family<TsStats>; 5] = [
    (
        "mcr_ts_packets_total",
        "counter",
        "MPEG-TS packets of 188 bytes.",
        |ts| ts.packets as f64,
    ),
    (
        "mcr_ts_continuity_errors_total",
        "counter",
        "MPEG-TS packets that do not go on from the last one of their PID.",
        |ts| ts.continuity_errors as f64,
    ),
    (
        "mcr_ts_transport_errors_total",
        "counter",
        "MPEG-TS packets that the sender marks as broken.",
        |ts| ts.transport_errors as f64,
    ),
    (
        "mcr_ts_sync_errors_total",
        "counter",
        "MPEG-TS packets that do not begin with the sync byte.",
        |ts| ts.sync_errors as f64,
    ),
    ("mcr_ts_pids", "gauge", "PIDs seen so far.", |ts| {
        ts.pids as f64
    }),
];
