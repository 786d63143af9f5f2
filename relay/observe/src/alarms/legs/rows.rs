//! The alarms of a leg, one row each. To add one, add a row here and the field that it reads.

use rules::health::Silence;
use rules::printable::{count, things};

use crate::alarms::{Alarm, LOSING, Row, SECOND_NS};
use crate::events::kind::{LINE_DEGRADED, LINE_DOWN, LINE_UP, LINES_DIFFER, SKEW_EXCEEDS_WINDOW};

/// The period over which losses are judged.
pub(super) const EPOCH_NS: u64 = 10 * SECOND_NS;

/// The values by which a leg is judged.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::alarms) struct Reading {
    /// How long no packet has arrived, if that is longer than `silence` allows.
    pub(super) silent_ns: Option<u64>,
    pub(super) silence: Silence,
    /// Packets since the previous reading.
    pub(super) late: u64,
    pub(super) stray: u64,
    pub(super) still: u64,
    pub(super) exceeded: u64,
    pub(super) cut: u64,
    /// Repeated packets since the last new one.
    pub(super) repeated: u64,
    /// How many it misses of those that the legs delivered together (`of`).
    pub(super) missed: u64,
    pub(super) of: u64,
    pub(super) skew_ns: u64,
    pub(super) window_ns: u64,
}

/// All of them, the worst first and a cause before its effects: a leg with another stream misses the
/// packets of this one. Their texts follow the leg's name.
pub(in crate::alarms) static ROWS: &[Row<Reading>] = &[
    Row {
        faults: &[
            "an input that stands by falls silent, or the active one does and another takes over",
            "a merged leg falls silent, or all do",
        ],
        metrics: &["mcr_input_last_packet_timestamp_seconds"],
        kind: LINE_DOWN,
        condition: |leg| (leg.silent_ns.unwrap_or_default(), Alarm::above(0)),
        begins: |leg| {
            let seconds = leg.silent_ns.unwrap_or_default() as f64 / 1e9;
            format!("is silent: no packet for {seconds:.1} s")
        },
        remedy: "",
        ends: Some((LINE_UP, |_, _| "delivers again".to_owned())),
        stands: Some(|_, _| "is silent".to_owned()),
    },
    Row {
        faults: LAGS,
        metrics: &["mcr_merge_stray_packets_total"],
        kind: LINES_DIFFER,
        condition: |leg| (leg.stray, Alarm::growth()),
        begins: |leg| format!("brings {} that no other leg does", packets(leg.stray)),
        remedy: ": it is of another sender, or numbers its packets differently",
        ends: None,
        stands: Some(|_, standing| format!("brought {} of another stream", packets(standing.sum))),
    },
    Row {
        faults: &["a merged leg loses what others bring"],
        metrics: &["mcr_merge_missed_packets_total"],
        kind: LINE_DEGRADED,
        condition: |leg| {
            let alarm = Alarm::above(leg.of).held(EPOCH_NS);
            (leg.missed.saturating_mul(LOSING), alarm)
        },
        begins: |leg| {
            let Reading { missed, of, .. } = leg;
            let (missed, of) = (count(*missed), count(*of));
            format!("loses packets: {missed} of {of} came by others alone")
        },
        remedy: "",
        ends: Some((LINE_UP, |_, _| "loses no more packets".to_owned())),
        stands: Some(|_, _| "loses packets".to_owned()),
    },
    Row {
        faults: LAGS,
        metrics: &["mcr_merge_late_packets_total"],
        kind: SKEW_EXCEEDS_WINDOW,
        condition: |leg| (leg.late, Alarm::growth()),
        begins: |leg| {
            let packets = packets(leg.late);
            format!("is too far behind: {packets} came later than merge remembers")
        },
        remedy: "; raise merge.packets, or find what delays the leg",
        ends: None,
        stands: Some(|_, standing| format!("brought {} too late", packets(standing.sum))),
    },
    Row {
        faults: &["the numbers of a merged stream stand still"],
        metrics: &["mcr_merge_still_packets_total"],
        kind: LINE_DEGRADED,
        condition: |leg| (leg.still, Alarm::growth()),
        begins: |leg| format!("brings {} under one number", packets(leg.still)),
        remedy: ": its sender does not count; each payload passes once",
        ends: None,
        stands: Some(|_, standing| format!("brought {} under one number", packets(standing.sum))),
    },
    Row {
        faults: &["a merged leg brings nothing but what it brought before"],
        metrics: &["mcr_merge_repeated_packets_total"],
        kind: LINE_DEGRADED,
        condition: |leg| (leg.repeated, Alarm::above(7)),
        begins: |leg| {
            format!(
                "brings nothing new: {} that it brought before",
                packets(leg.repeated)
            )
        },
        remedy: "; its sender repeats a few packets again and again",
        ends: Some((LINE_UP, |_, _| "brings something new again".to_owned())),
        stands: Some(|_, _| "brings nothing new".to_owned()),
    },
    Row {
        faults: &["merged legs cut the same into packets differently"],
        metrics: &["mcr_merge_differently_cut_packets_total"],
        kind: LINES_DIFFER,
        condition: |leg| (leg.cut, Alarm::growth()),
        begins: |leg| format!("brings {} differently cut", packets(leg.cut)),
        remedy: ": what they hold may leave twice; have all legs send the same packets",
        ends: None,
        stands: Some(|_, standing| format!("brought {} differently cut", packets(standing.sum))),
    },
    Row {
        faults: &["more streams come by a merged leg than are told apart"],
        metrics: &["mcr_merge_exceeded_packets_total"],
        kind: LINE_DEGRADED,
        condition: |leg| (leg.exceeded, Alarm::growth()),
        begins: |leg| {
            let packets = packets(leg.exceeded);
            format!("brings {packets} of more streams than are told apart at a time")
        },
        remedy: ": raise merge.streams, or merge fewer SSRCs or sessions in one rule",
        ends: None,
        stands: Some(|_, standing| {
            format!("brought {} of too many streams", packets(standing.sum))
        }),
    },
    Row {
        faults: LAGS,
        metrics: &["mcr_merge_skew_seconds"],
        kind: SKEW_EXCEEDS_WINDOW,
        // It ends only when the skew is well below half the window again.
        condition: |leg| {
            let ends = leg.window_ns / 8 * 3;
            let alarm = Alarm::above(leg.window_ns / 2);
            (leg.skew_ns, Alarm { ends, ..alarm })
        },
        begins: |leg| {
            let (skew, window) = (leg.skew_ns as f64 / 1e6, leg.window_ns as f64 / 1e6);
            format!("is {skew:.1} ms behind, more than half the window of {window:.0} ms")
        },
        remedy: "; raise merge.window, or find what delays the leg",
        ends: None,
        stands: Some(|leg, _| format!("is {} ms behind", leg.skew_ns / 1_000_000)),
    },
];

const LAGS: &[&str] = &["a merged leg lags, or brings another stream"];

fn packets(count: u64) -> String {
    things(count, "packet")
}
