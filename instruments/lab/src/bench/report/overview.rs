//! The summary at the start of the report: what is fast, which promises fail and where their packets were
//! lost, and the commands. Derived from the results alone, like the tables after it.

use std::fmt::Write;

use traffic::trial::Outcome;

use super::cases::{Cases, Measured};
use super::figure::{Figure, figure_of};
use super::origin::{Conditions, Letters, joined};
use super::promises::{Promise, SAME};
use super::tables::{markdown, whereabouts};
use crate::bench::results::Trial;
use crate::bench::results::number::number;

const RELAYS: [&str; 5] = [
    "mcr-kernel",
    "mcr-userspace",
    "kernel-routing",
    "socat",
    "floor",
];

const WHY: &str = "\
**Why.** *Queue full* is a queue between two cores of the bed, which overflows when a core stands still, \
as those of virtual machines do. *Receive rings full* is a worker that got no processor for longer than \
its ring holds. *Counted by its rules* are drops that `mcr stats` tells with their reason. Nearly all of \
a worker's time is the kernel's own work for each packet (receive, copy, segment, send), and a packet \
waits until its worker wakes and the batch before it has left: that bounds rate and latency of the \
userspace path.

";

const REPEAT: &str = "\
**To repeat it**, as root on a machine with nothing else to do:

    make bench-promises         # what the promises stand on, then this file
    make bench-full             # all scenarios, then this file
    mcr bench run one-stream    # one scenario

";

/// One line of the table: a figure of each relay.
struct Line {
    title: &'static str,
    figure: fn(Cases<'_>, &str) -> Option<Measured>,
}

const LINES: [Line; 7] = [
    Line {
        title: "packets/s through one core, 1:1, 1024 bytes",
        figure: |cases, relay| cases.best_rate("bytes=1024,gro=off", relay),
    },
    Line {
        title: "latency p50 at half of its own lossless rate, µs",
        figure: |cases, relay| half_load(cases, relay, Figure::LatencyP50),
    },
    Line {
        title: "latency p99 there, µs",
        figure: |cases, relay| half_load(cases, relay, Figure::LatencyP99),
    },
    Line {
        title: "worst trial's loss of one stream at 400,000 packets/s, %",
        figure: |cases, relay| worst_loss(cases, 1, "pps=400000", relay),
    },
    Line {
        title: "the same of 150 streams of 5,000 packets/s, %",
        figure: |cases, relay| worst_loss(cases, 3, "streams=150,pps=5000", relay),
    },
    Line {
        title: "the same of 1:50 at 20,000 packets/s, %",
        figure: |cases, relay| worst_loss(cases, 5, "outputs=50,pps=20000", relay),
    },
    Line {
        title: "until 10,000 rules are accepted, s",
        figure: |cases, relay| cases.figure(9, "rules=10000", relay, Figure::Apply),
    },
];

fn half_load(cases: Cases<'_>, relay: &str, figure: Figure) -> Option<Measured> {
    cases.figure(8, "pps=50 % of zero loss", relay, figure)
}

/// The loss of the worst trial: a median would hide a broken promise.
fn worst_loss(cases: Cases<'_>, scenario: u8, parameters: &str, relay: &str) -> Option<Measured> {
    let shown = cases.find(scenario, parameters, relay)?;
    Some(Measured {
        value: figure_of(shown.case, Figure::Loss)?.max,
        under: Letters::from([shown.under]),
    })
}

/// Writes the summary, Markdown.
pub(super) fn overview(
    cases: Cases<'_>,
    promises: &[Promise<'_>],
    conditions: &[Conditions<'_>],
) -> String {
    let mut text = String::from("## In short\n\n");
    let (table, letters) = figures(cases);
    text.push_str(&measured_under(&letters, conditions));
    text.push_str(&table);
    text.push_str(&failures(promises));
    text.push_str(WHY);
    text.push_str(REPEAT);
    text
}

/// The main figures, relays side by side, and the conditions they were measured under.
fn figures(cases: Cases<'_>) -> (String, Letters) {
    let mut letters = Letters::new();
    let mut rows = Vec::new();
    for Line { title, figure } in LINES {
        let measured = RELAYS.map(|relay| figure(cases, relay));
        if measured.iter().all(Option::is_none) {
            continue;
        }
        letters.extend(measured.iter().flatten().flat_map(|one| &one.under));
        let shown = measured.map(|one| one.map_or("-".into(), |one| number(one.value)));
        rows.push([vec![title.to_owned()], shown.to_vec()].concat());
    }
    if rows.is_empty() {
        return (String::new(), letters);
    }
    let head: Vec<String> = ["medians"]
        .iter()
        .chain(&RELAYS)
        .map(|&title| title.to_owned())
        .collect();
    (format!("{}\n", markdown(&head, &rows)), letters)
}

/// Names the single revision of all these figures, or states that there are several.
fn measured_under(letters: &Letters, conditions: &[Conditions<'_>]) -> String {
    let find = |letter: &char| conditions.iter().find(|one| one.letter() == *letter);
    let mut used = letters.iter().filter_map(find);
    match (used.next(), used.next()) {
        (None, _) => String::new(),
        (Some(one), None) => format!("{}\n\n", one.in_short()),
        (Some(_), Some(_)) => format!(
            "The figures of this table were measured under several conditions ({}), so they do not \
             compare with each other.\n\n",
            joined(letters)
        ),
    }
}

/// How many promises are met, and for each that is not the figure and where packets were lost.
fn failures(promises: &[Promise<'_>]) -> String {
    let measured = promises.iter().filter(|one| one.last.is_some()).count();
    if measured == 0 {
        return String::new();
    }
    let mut what = "";
    let mut lines = String::new();
    let mut failed = 0;
    for promise in promises {
        if promise.what != SAME {
            what = promise.what;
        }
        let Some(last) = promise.last.as_ref().filter(|last| !last.is_met) else {
            continue;
        };
        failed += 1;
        let (must, figure, command) = (promise.must, &last.figure, &promise.command);
        let _ = write!(lines, "- {what}: {must}. **{figure}**");
        let is_lossy = |trial: &Trial| trial.missing() > 0;
        if let Some(case) = last.loss_of.filter(|case| case.trials.iter().any(is_lossy)) {
            let _ = write!(lines, "; where, in all trials: {}", whereabouts(case));
        }
        let _ = writeln!(lines, " (`{command}`).");
    }
    let met = measured - failed;
    let mut text = format!("**{met} of {measured} measured promises are met.**");
    if failed > 0 {
        let _ = write!(text, " These are not:\n\n{lines}");
    } else {
        text.push('\n');
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use traffic::trial::Volume;

    use super::super::origin;
    use super::super::promises;
    use super::*;
    use crate::bench::results::machine::Machine;
    use crate::bench::results::reliability::Reliability;
    use crate::bench::results::{CaseResult, Drops, Results};

    fn run(revision: &str, relay: &str, lost: u64) -> Results {
        let trial = Trial {
            volume: Volume {
                sent: 1_000_000,
                seconds: 2.5,
                expected: 1_000_000,
                delivered: 1_000_000 - lost,
            },
            drops: vec![Drops {
                at: "relay, receive rings full".into(),
                copies: lost,
            }],
            ..Trial::default()
        };
        Results {
            machine: Machine {
                revision: Some(revision.into()),
                ..Machine::default()
            },
            command: "mcr bench run".into(),
            cases: vec![CaseResult {
                scenario: 1,
                parameters: [("pps".to_owned(), "400000".to_owned())].into(),
                relay: relay.into(),
                skipped: None,
                trials: vec![trial],
            }],
        }
    }

    fn overview_of(runs: &[Results]) -> String {
        let conditions = Conditions::of(runs);
        let cases = origin::latest(runs, &conditions);
        let judged = promises::all(Cases(&cases), &Reliability::default());
        overview(Cases(&cases), &judged, &conditions)
    }

    #[test]
    fn a_failed_promise_shows_where_its_packets_were_lost() {
        let text = overview_of(&[run("abc", "mcr-kernel", 0), run("abc", "mcr-userspace", 70)]);
        assert!(text.contains(" (abc) on "), "{text}");
        assert!(text.contains(
            "| worst trial's loss of one stream at 400,000 packets/s, % | 0 | 0.007 | - |"
        ));
        assert!(text.contains("**1 of 2 measured promises are met.** These are not:"));
        assert!(
            text.contains(
                "- 400,000 pps, one stream: 0 lost, userspace path. **1 trial: 70 of 1,000,000 \
                 copies lost**; where, in all trials: relay, receive rings full 70 \
                 (`mcr bench run one-stream`)."
            ),
            "{text}"
        );
    }

    #[test]
    fn figures_of_two_revisions_are_not_shown_as_one() {
        let text = overview_of(&[run("abc", "mcr-kernel", 0), run("def", "mcr-userspace", 0)]);
        assert!(text.contains("several conditions (A, B)"), "{text}");
    }
}
