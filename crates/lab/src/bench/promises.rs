//! What MCR promises to reach, each with the command that measures it and the last figure.

use std::fmt::Write;

use super::reliability::{Reliability, Row};
use super::report::{Figure, figure_of, number};
use super::results::{CaseResult, Trial};

/// A load was offered if the generator reached this share of it.
const WELL_OFFERED: f64 = 0.97;

/// One promise and what became of it.
struct Promise {
    what: &'static str,
    must: &'static str,
    command: &'static str,
    /// The last figure, and whether it meets the promise; `None` if it was not measured.
    last: Option<(String, bool)>,
}

/// Draws the table of all promises.
#[must_use]
pub fn table(cases: &[&CaseResult], reliability: &Reliability) -> String {
    let mut text = String::from(
        "## Promises\n\n| what | must reach | command | last figure | met |\n|---|---|---|---|---|\n",
    );
    for promise in promises(&Cases(cases), reliability) {
        let (figure, met) = match promise.last {
            Some((figure, true)) => (figure, "yes"),
            Some((figure, false)) => (figure, "**no**"),
            None => ("not measured".to_owned(), "-"),
        };
        let _ = writeln!(
            text,
            "| {} | {} | `{}` | {figure} | {met} |",
            promise.what, promise.must, promise.command
        );
    }
    text.push('\n');
    text
}

fn promises(cases: &Cases<'_>, reliability: &Reliability) -> Vec<Promise> {
    let mut all = capacity(cases);
    all.extend(no_loss(cases));
    all.extend(latency(cases));
    all.extend(scale(cases));
    all.push(killed(reliability));
    all
}

fn killed(reliability: &Reliability) -> Promise {
    let rows = reliability.reliability.iter();
    let kills: Vec<_> = rows
        .filter(|row| row.relay == "mcr-kernel" && row.fault.contains("kill"))
        .collect();
    let sum = |figure: fn(&Row) -> u64| kills.iter().map(|row| figure(row)).sum::<u64>();
    let (rounds, offered, lost) = (
        sum(|row| row.rounds),
        sum(|row| row.offered),
        sum(|row| row.lost),
    );
    Promise {
        what: "any single process killed under load, kernel path",
        must: "0 lost",
        command: "make reliability",
        last: (rounds > 0).then(|| {
            let (offered, text) = (number(offered as f64), number(lost as f64));
            let figure = format!("{text} of {offered} lost in {rounds} kills");
            (figure, lost == 0)
        }),
    }
}

fn capacity(cases: &Cases<'_>) -> Vec<Promise> {
    let command = "mcr bench run capacity";
    let best = |relay| cases.best_rate(7, &[("bytes", "1024"), ("gro", "off")], relay);
    let (kernel, userspace) = (best("mcr-kernel"), best("mcr-userspace"));
    let (routing, socat, floor) = (best("kernel-routing"), best("socat"), best("floor"));
    // Relays that collapse under overload are at their best below it.
    let searched = cases.find(7, &[("pps", "zero loss")], "socat").is_some();
    let ratio = |what, must, own: Option<f64>, other: Option<f64>, least: f64| Promise {
        what,
        must,
        command,
        last: own.zip(other).map(|(own, other)| {
            let ratio = own / other;
            let note = if searched {
                ""
            } else {
                ", under overload only"
            };
            let figure = format!("{ratio:.2} ({} : {}{note})", number(own), number(other));
            (figure, ratio >= least)
        }),
    };
    vec![
        ratio(
            "1:1, one core, kernel path, 1024 bytes",
            "1.6 times kernel multicast routing",
            kernel,
            routing,
            1.6,
        ),
        ratio("the same", "10 times socat", kernel, socat, 10.0),
        ratio("the same", "85 % of the bare redirect", kernel, floor, 0.85),
        ratio(
            "1:1, one core, userspace path, 1024 bytes",
            "4.5 times socat",
            userspace,
            socat,
            4.5,
        ),
        ratio(
            "the same",
            "2.4 times the best known io_uring relay (published: 0.2 Mpps)",
            userspace,
            Some(200_000.0),
            2.4,
        ),
    ]
}

fn no_loss(cases: &Cases<'_>) -> Vec<Promise> {
    type Row = (
        &'static str,
        &'static str,
        u8,
        &'static [(&'static str, &'static str)],
    );
    const ROWS: [Row; 6] = [
        (
            "400,000 pps, one stream",
            "mcr bench run one-stream",
            1,
            &[("pps", "400000")],
        ),
        (
            "9,000,000 packets at 150,000 pps",
            "mcr bench run long-run",
            2,
            &[("packets", "9000000")],
        ),
        (
            "150 streams x 5,000 pps",
            "mcr bench run streams",
            3,
            &[("streams", "150"), ("pps", "5000")],
        ),
        (
            "50 streams x 3,000 pps, two bridges",
            "mcr bench run density",
            4,
            &[("streams", "50"), ("pps", "3000")],
        ),
        (
            "1:50, 20,000 pps in, 1 M pps out",
            "mcr bench run fan-out",
            5,
            &[("outputs", "50"), ("pps", "20000")],
        ),
        (
            "3 hops at 439,000 pps, 1400 bytes",
            "mcr bench run pipeline",
            6,
            &[("pps", "439000")],
        ),
    ];
    let promises = ROWS
        .iter()
        .flat_map(|(what, command, scenario, parameters)| {
            let both = [
                ("0 lost, kernel path", "mcr-kernel"),
                ("0 lost, userspace path", "mcr-userspace"),
            ];
            both.map(|(must, relay)| Promise {
                what,
                must,
                command,
                last: cases.find(*scenario, parameters, relay).and_then(lost),
            })
        });
    promises.collect()
}

/// Met only if no trial lost anything, and the generator offered what the promise says.
fn lost(case: &CaseResult) -> Option<(String, bool)> {
    let offered = case.spread(Trial::offered_pps)?.median;
    let short = wanted_pps(case).filter(|wanted| offered < WELL_OFFERED * wanted);
    let worst = case.trials.iter().map(Trial::missing).max()?;
    let sent: u64 = case.trials.iter().map(|trial| trial.expected).max()?;
    let mut figure = format!(
        "at most {} of {} lost in {} trials",
        number(worst.max(0) as f64),
        number(sent as f64),
        case.trials.len()
    );
    if short.is_some() {
        let _ = write!(figure, ", but only {} packets/s offered", number(offered));
    }
    Some((figure, worst <= 0 && short.is_none()))
}

/// The load that a case's parameters name, over all its streams.
fn wanted_pps(case: &CaseResult) -> Option<f64> {
    let rate: f64 = case.parameters.get("pps")?.parse().ok()?;
    let streams = case.parameters.get("streams");
    let streams: f64 = streams.map_or(Ok(1.0), |streams| streams.parse()).ok()?;
    Some(rate * streams)
}

fn latency(cases: &Cases<'_>) -> Vec<Promise> {
    let command = "mcr bench run latency";
    let at_half = [("pps", "50 % of zero loss")];
    let figure = |relay, figure| {
        let case = cases.find(8, &at_half, relay)?;
        Some(figure_of(case, figure)?.median)
    };
    let below = |what, must, own: Option<f64>, limit: Option<f64>| Promise {
        what,
        must,
        command,
        last: own.zip(limit).map(|(own, limit)| {
            (
                format!("{} µs : {} µs", number(own), number(limit)),
                own < limit,
            )
        }),
    };
    let mut all = Vec::new();
    for (what, own) in [
        ("added latency at half load, kernel path", "mcr-kernel"),
        (
            "added latency at half load, userspace path",
            "mcr-userspace",
        ),
    ] {
        all.push(below(
            what,
            "p50 below kernel routing's p50",
            figure(own, Figure::LatencyP50),
            figure("kernel-routing", Figure::LatencyP50),
        ));
        all.push(below(
            "the same",
            "p99 below a tenth of socat's p99",
            figure(own, Figure::LatencyP99),
            figure("socat", Figure::LatencyP99).map(|limit| limit / 10.0),
        ));
    }
    all
}

fn scale(cases: &Cases<'_>) -> Vec<Promise> {
    let command = "mcr bench run scale";
    let at = |rules, figure| {
        let case = cases.find(9, &[("rules", rules)], "mcr-kernel")?;
        Some(figure_of(case, figure)?.median)
    };
    let (one, many) = (at("1", Figure::Delivered), at("10000", Figure::Delivered));
    vec![
        Promise {
            what: "10,000 rules, kernel path",
            must: "all added in under 2 s",
            command,
            last: at("10000", Figure::Apply).map(|time| (format!("{time:.2} s"), time < 2.0)),
        },
        Promise {
            what: "the same",
            must: "capacity at least 95 % of that with one rule",
            command,
            last: one.zip(many).map(|(one, many)| {
                let share = many / one;
                (format!("{:.1} %", 100.0 * share), share >= 0.95)
            }),
        },
    ]
}

struct Cases<'a>(&'a [&'a CaseResult]);

impl Cases<'_> {
    fn find(&self, scenario: u8, parameters: &[(&str, &str)], relay: &str) -> Option<&CaseResult> {
        let fits = |case: &&&CaseResult| {
            case.scenario == scenario
                && case.relay == relay
                && parameters.iter().all(|(name, value)| {
                    case.parameters.get(*name).is_some_and(|have| have == value)
                })
        };
        self.0.iter().find(fits).copied()
    }

    /// A relay's best: what it delivers under overload, or its zero-loss rate if that is higher, as
    /// it is for relays that collapse.
    fn best_rate(&self, scenario: u8, parameters: &[(&str, &str)], relay: &str) -> Option<f64> {
        let overload = self.find(scenario, parameters, relay);
        let overload = overload.and_then(|case| figure_of(case, Figure::Delivered));
        let search = self.find(scenario, &[("pps", "zero loss")], relay);
        let search = search.and_then(|case| figure_of(case, Figure::ZeroLoss));
        let rates = [overload, search].into_iter().flatten();
        rates.map(|spread| spread.median).reduce(f64::max)
    }
}
