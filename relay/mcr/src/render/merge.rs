//! The merged inputs of a rule: how copies are recognised, and what each leg received.

use api::reply::{InputStats, LineStats, MergeStats, RuleStats, Seconds};
use bpf::merge_layout::{Merge as Words, MergeFormat};
use comfy_table::Cell;
use rules::document::RuleDocument;
use rules::duration;
use rules::merge::{By, Merge};

use super::{Column, count, number, times};

/// What each leg received.
const LEGS: &[Column<InputStats>] = &[
    ("LINE", |input| Cell::new(&input.at)),
    ("FIRST", |input| counted(input, |leg| leg.first)),
    ("DUPLICATE", |input| counted(input, |leg| leg.duplicate)),
    ("REPEATED", |input| counted(input, |leg| leg.repeated)),
    ("LATE", |input| counted(input, |leg| leg.late)),
    ("STRAY", |input| counted(input, |leg| leg.stray)),
    ("MISSED", |input| counted(input, |leg| leg.missed)),
    ("SKEW", |input| timed(input, |leg| leg.skew_seconds)),
    ("AT MOST", |input| timed(input, |leg| leg.skew_max_seconds)),
    ("STATE", |input| {
        Cell::new(input.trouble.as_deref().unwrap_or("well"))
    }),
];

fn counted(input: &InputStats, of: fn(&LineStats) -> u64) -> Cell {
    Cell::new(count(of(&input.line.unwrap_or_default())))
}

fn timed(input: &InputStats, of: fn(&LineStats) -> Seconds) -> Cell {
    let seconds = of(&input.line.unwrap_or_default());
    Cell::new(times::time(seconds.as_f64()))
}

/// The lines about a rule's merge; none if its inputs are not merged.
pub(crate) fn merge(rule: &RuleDocument, stats: &RuleStats) -> Vec<(&'static str, String)> {
    let merge = rule.merge.as_ref().map(|merge| merge.to_merge());
    let Some(Ok(Some(merge))) = merge else {
        return Vec::new();
    };
    let mut lines = vec![("merge", description(&merge))];
    if let Some(total) = &stats.merge {
        lines.push(("", number::all(MergeStats::COUNTERS, total)));
        let mut table = super::table(LEGS, &stats.inputs);
        super::widen(&mut table);
        super::align_right(&mut table, 1..LEGS.len() - 1);
        let text = super::table_text(&table);
        lines.extend(text.lines().map(|line| ("", line.to_owned())));
    }
    lines
}

/// What identifies copies, and how far apart in time they may be.
fn description(merge: &Merge) -> String {
    let by = match &merge.by {
        By::Rtp => "RTP's sequence number, of each SSRC".to_owned(),
        By::MoldUdp64 => "MoldUDP64's session and number".to_owned(),
        By::Mdp3 => "MDP 3.0's number".to_owned(),
        By::Payload | By::Once | By::OnceFromEach => "payload".to_owned(),
        By::Sequence(sequence) => {
            let (at, bytes) = (sequence.number.offset, sequence.number.bytes);
            format!("a number of {bytes} bytes at {at}")
        }
    };
    format!(
        "by {by}; up to {} apart, {} remembered{}: up to {}",
        duration::text(merge.window),
        number::things(merge.packets.into(), "packet"),
        if MergeFormat::of(merge).has_keys() {
            format!(
                " of each of {}",
                number::things(merge.streams.into(), "stream")
            )
        } else {
            String::new()
        },
        super::bytes(Words::memory(merge)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(merge: &str) -> RuleDocument {
        let text = format!(
            r#"{{"name": "cam1", "inputs": ["239.1.1.1%red:5001", "239.2.1.1%blue:5001"],
                "outputs": ["239.10.1.1%eth1:6001"], "merge": {merge}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn stats() -> RuleStats {
        let text = r#"{"name":"cam1","state":"degraded","path":"kernel","path_reason":"",
            "state_reason":"input 239.2.1.1%blue:5001 loses packets",
            "inputs":[{"at":"239.1.1.1%red:5001","joined":true,"first":12000,"duplicate":0,
              "repeated":0,"late":0,"stray":0,"missed":3,"skew_seconds":0.0,
              "skew_max_seconds":0.0},
             {"at":"239.2.1.1%blue:5001","joined":true,"first":3,"duplicate":11000,"repeated":1,
              "late":2,"stray":4,"missed":1000,"skew_seconds":0.0125,"skew_max_seconds":0.0402,
              "trouble":"loses packets"}],
            "merge":{"lost":5,"streams":1},
            "received":{"packets":24000,"bytes":7},"dropped":{"duplicate":11000},"outputs":[]}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn each_line_has_a_row() {
        let lines = merge(&rule("\"rtp\""), &stats());
        let words = |text: &str| -> Vec<String> {
            text.split("  ")
                .map(|word| word.trim().to_owned())
                .filter(|word| !word.is_empty())
                .collect()
        };
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert_eq!(
            lines[0],
            (
                "merge",
                "by RTP's sequence number, of each SSRC; up to 50ms apart, 2 048 packets remembered of each of 256 streams: up to 1.0 MB"
                    .to_owned()
            )
        );
        assert_eq!(
            lines[1].1,
            "5 lost on all legs, 1 stream begun, 0 not remembered"
        );
        let titles: Vec<&str> = LEGS.iter().map(|(title, _)| *title).collect();
        assert_eq!(words(&lines[2].1), titles);
        assert_eq!(
            words(&lines[3].1),
            [
                "239.1.1.1%red:5001",
                "12 000",
                "0",
                "0",
                "0",
                "0",
                "3",
                "0.00 ms",
                "0.00 ms",
                "well"
            ]
        );
        assert_eq!(
            words(&lines[4].1),
            [
                "239.2.1.1%blue:5001",
                "3",
                "11 000",
                "1",
                "2",
                "4",
                "1 000",
                "12.50 ms",
                "40.20 ms",
                "loses packets"
            ]
        );
    }

    #[test]
    fn the_merge_is_described_before_anything_was_counted() {
        let uncounted = RuleStats {
            merge: None,
            ..stats()
        };
        let sequence = r#"{"by": "sequence", "offset": 8, "bytes": 4, "window": "5ms"}"#;
        let lines = merge(&rule(sequence), &uncounted);
        let description =
            "by a number of 4 bytes at 8; up to 5ms apart, 2 048 packets remembered: up to 4.0 kB";
        assert_eq!(lines, [("merge", description.to_owned())]);
        assert_eq!(merge(&rule("\"none\""), &uncounted), []);
    }
}
