//! MCR's promises, each with the command that measures it and the last figure.

use std::collections::BTreeSet;
use std::fmt::Write;

use traffic::trial::Outcome;

use super::cases::{Cases, Measured};
use super::figure::Figure;
use super::origin::{Letters, Shown, joined};
use crate::bench::results::number::number;
use crate::bench::results::reliability::{Reliability, Row};
use crate::bench::results::{CaseResult, Trial};
use crate::bench::run::scenario::Scenario;

/// A load counts as offered if the generator reached this share of it.
const WELL_OFFERED: f64 = 0.97;

/// The name of a promise about the same case as the one before it.
pub(super) const SAME: &str = "the same";

/// One promise and its result.
pub(super) struct Promise<'a> {
    /// The case.
    pub(super) what: &'static str,
    /// What is promised for it.
    pub(super) must: &'static str,
    /// How to measure it.
    pub(super) command: String,
    /// `None` if it was not measured.
    pub(super) last: Option<Last<'a>>,
}

/// The last figure of a promise.
pub(super) struct Last<'a> {
    /// The figure, as text.
    pub(super) figure: String,
    /// Whether it meets the promise.
    pub(super) is_met: bool,
    /// The case, if the figure is its loss.
    pub(super) loss_of: Option<&'a CaseResult>,
    /// The conditions it was measured under, or the build.
    under: String,
}

const NOTES: &str = "\
The capacity of a relay is what it delivers when offered more, or its zero-loss rate where that is \
higher. Half load is half of each relay's own zero-loss rate, and latency is that from the generator \
to the sink. No loss means that no trial lost anything and that the generator offered at least 97 % \
of the load.
";

/// Draws the table of all promises. With several conditions it shows those of each figure.
pub(super) fn table(promises: &[Promise<'_>], are_several: bool) -> String {
    let (head, rule) = if are_several {
        (" measured under |", "---|")
    } else {
        ("", "")
    };
    let mut text = format!(
        "## Promises\n\n{NOTES}\n| what | must reach | command | last figure | met |{head}\n\
         |---|---|---|---|---|{rule}\n"
    );
    for promise in promises {
        let (figure, met, under) = match &promise.last {
            Some(last) if last.is_met => (last.figure.as_str(), "yes", last.under.as_str()),
            Some(last) => (last.figure.as_str(), "**no**", last.under.as_str()),
            None => ("not measured", "-", "-"),
        };
        let _ = write!(
            text,
            "| {} | {} | `{}` | {figure} | {met} |",
            promise.what, promise.must, promise.command
        );
        if are_several {
            let _ = write!(text, " {under} |");
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

/// Judges every promise by the measured cases.
pub(super) fn all<'a>(cases: Cases<'a>, reliability: &Reliability) -> Vec<Promise<'a>> {
    let mut all = capacity(cases);
    all.extend(no_loss(cases));
    all.extend(latency(cases));
    all.extend(driver(cases));
    all.extend(scale(cases));
    all.push(killed(reliability));
    all
}

fn killed(reliability: &Reliability) -> Promise<'static> {
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
    let builds: BTreeSet<&str> = kills.iter().map(|row| row.build()).collect();
    Promise {
        what: "any single process killed under load, kernel path",
        must: "0 lost",
        command: "make reliability".to_owned(),
        last: (rounds > 0).then(|| {
            let (offered, text) = (number(offered as f64), number(lost as f64));
            Last {
                figure: format!("{text} of {offered} lost in {rounds} kills"),
                is_met: lost == 0,
                loss_of: None,
                under: builds.into_iter().collect::<Vec<_>>().join(", "),
            }
        }),
    }
}

fn capacity(cases: Cases<'_>) -> Vec<Promise<'_>> {
    let best = |relay| cases.best_rate("bytes=1024,gro=off", relay);
    let (kernel, userspace) = (best("mcr-kernel"), best("mcr-userspace"));
    let (routing, socat, floor) = (best("kernel-routing"), best("socat"), best("floor"));
    // Relays that collapse under overload perform best below it.
    let is_searched = cases.find(7, "pps=zero loss", "socat").is_some();
    let note = if is_searched {
        ""
    } else {
        ", under overload only"
    };
    let ratio = |what, must, own: &Option<Measured>, other: &Option<Measured>, least| {
        ratio((what, must, 7), (own, other), least, note)
    };
    let published = Some(Measured {
        value: 200_000.0,
        under: Letters::new(),
    });
    vec![
        ratio(
            "capacity 1:1, one core, 1024 bytes, kernel path",
            "1.6 times kernel multicast routing",
            &kernel,
            &routing,
            1.6,
        ),
        ratio(SAME, "10 times socat", &kernel, &socat, 10.0),
        ratio(
            SAME,
            "75 % of the bare redirect, which leaves frames to their sender's socket",
            &kernel,
            &floor,
            0.75,
        ),
        ratio(
            "capacity 1:1, one core, 1024 bytes, userspace path",
            "4.5 times socat",
            &userspace,
            &socat,
            4.5,
        ),
        ratio(
            SAME,
            "twice the best known io_uring relay (published: 0.2 Mpps)",
            &userspace,
            &published,
            2.0,
        ),
    ]
}

/// What is promised, what it must reach, and the scenario that measures it.
type Subject = (&'static str, &'static str, u8);

/// A promise about figures of its scenario.
fn promise((what, must, scenario): Subject, last: Option<Last<'_>>) -> Promise<'_> {
    Promise {
        what,
        must,
        command: command(scenario),
        last,
    }
}

impl Last<'_> {
    /// A figure that is no loss.
    fn of(figure: String, is_met: bool, under: &Letters) -> Self {
        Self {
            figure,
            is_met,
            loss_of: None,
            under: joined(under),
        }
    }
}

/// The ratio of one figure to another, of which `least` is promised.
fn ratio(
    subject: Subject,
    (own, other): (&Option<Measured>, &Option<Measured>),
    least: f64,
    note: &str,
) -> Promise<'static> {
    let last = own.as_ref().zip(other.as_ref()).map(|(own, other)| {
        let ratio = own.value / other.value;
        let shown = if least < 1.0 {
            format!("{:.0} %", 100.0 * ratio)
        } else {
            format!("{ratio:.2} times")
        };
        let (own_pps, other_pps) = (number(own.value), number(other.value));
        let figure = format!("{shown} ({own_pps} : {other_pps} packets/s{note})");
        Last::of(figure, ratio >= least, &(&own.under | &other.under))
    });
    promise(subject, last)
}

/// A promise for frames as a driver delivers them: case, promise, relay and case of the figure, those of the
/// figure it is compared with, and the least ratio.
type DriverRow = (&'static str, &'static str, DriverCase, DriverCase, f64);
type DriverCase = (&'static str, &'static str);
const ONE: &str = "at XDP, frames as a driver delivers them, 1024 bytes, one stream";
const MANY: &str = "the same with 64 streams that take turns";
/// Many rules, one of which has the stream.
const RULES: &str = "rules=10000";
const DRIVER: [DriverRow; 10] = [
    (
        "at tc, frames as a driver delivers them, 1024 bytes, one stream",
        "85 % of the bare redirect",
        ("mcr-kernel", "bytes=1024,streams=1"),
        ("floor", "bytes=1024,streams=1"),
        0.85,
    ),
    (
        ONE,
        "2.5 times MCR at tc",
        ("mcr-xdp", "bytes=1024,streams=1"),
        ("mcr-kernel", "bytes=1024,streams=1"),
        2.5,
    ),
    (
        SAME,
        "75 % of the bare XDP redirect",
        ("mcr-xdp", "bytes=1024,streams=1"),
        ("xdp-floor", "bytes=1024,streams=1"),
        0.75,
    ),
    (
        MANY,
        "2.5 times MCR at tc",
        ("mcr-xdp", "bytes=1024,streams=64"),
        ("mcr-kernel", "bytes=1024,streams=64"),
        2.5,
    ),
    (
        SAME,
        "65 % of the bare XDP redirect",
        ("mcr-xdp", "bytes=1024,streams=64"),
        ("xdp-floor", "bytes=1024,streams=64"),
        0.65,
    ),
    (
        "the same, one stream of 256 bytes",
        "65 % of the bare XDP redirect",
        ("mcr-xdp", "bytes=256,streams=1"),
        ("xdp-floor", "bytes=256,streams=1"),
        0.65,
    ),
    (
        "the same, one stream of 64 bytes",
        "65 % of the bare XDP redirect",
        ("mcr-xdp", "bytes=64,streams=1"),
        ("xdp-floor", "bytes=64,streams=1"),
        0.65,
    ),
    (
        "the same with 1,000 streams",
        "90 % of that with 64",
        ("mcr-xdp", "bytes=1024,streams=1000"),
        ("mcr-xdp", "bytes=1024,streams=64"),
        0.9,
    ),
    (
        "the same with 10,000 rules, one stream",
        "95 % of that with one rule",
        ("mcr-xdp", RULES),
        ("mcr-xdp", "bytes=1024,streams=1"),
        0.95,
    ),
    (
        "at tc, frames as a driver delivers them, 10,000 rules, one stream",
        "95 % of that with one rule",
        ("mcr-kernel", RULES),
        ("mcr-kernel", "bytes=1024,streams=1"),
        0.95,
    ),
];

/// Frames as a driver delivers them.
fn driver(cases: Cases<'_>) -> Vec<Promise<'_>> {
    let rate = |(relay, case): DriverCase| {
        let at = format!("{case},outputs=1,gro=off,pps=max");
        cases.figure(11, &at, relay, Figure::Delivered)
    };
    let rows = DRIVER.iter().map(|(what, must, own, other, least)| {
        ratio((what, must, 11), (&rate(*own), &rate(*other)), *least, "")
    });
    let mut all: Vec<_> = rows.collect();
    let half = |relay| cases.figure(11, "pps=50 % of zero loss", relay, Figure::LatencyP50);
    let (own, tc) = (half("mcr-xdp"), half("mcr-kernel"));
    all.push(below(
        ("latency at half load, at XDP", "p50 below that at tc", 11),
        (own, tc),
        1.0,
    ));
    all
}

/// Loads without loss, each with its scenario and the parameters of its case.
const NO_LOSS: [(&str, u8, &str); 6] = [
    ("400,000 pps, one stream", 1, "pps=400000"),
    ("9,000,000 packets at 150,000 pps", 2, "packets=9000000"),
    ("150 streams x 5,000 pps", 3, "streams=150,pps=5000"),
    (
        "50 streams x 3,000 pps, two bridges",
        4,
        "streams=50,pps=3000",
    ),
    (
        "1:50, 20,000 pps in, 1 M pps out",
        5,
        "outputs=50,pps=20000",
    ),
    ("3 hops at 439,000 pps, 1400 bytes", 6, "pps=439000"),
];

fn no_loss(cases: Cases<'_>) -> Vec<Promise<'_>> {
    let promises = NO_LOSS.iter().flat_map(|(what, scenario, parameters)| {
        let both = [
            ("0 lost, kernel path", "mcr-kernel"),
            ("0 lost, userspace path", "mcr-userspace"),
        ];
        both.map(|(must, relay)| {
            let last = cases.find(*scenario, parameters, relay).and_then(lost);
            promise((what, must, *scenario), last)
        })
    });
    promises.collect()
}

/// The command that measures a scenario.
fn command(number: u8) -> String {
    let scenario = Scenario::find(&number.to_string());
    format!(
        "mcr bench run {}",
        scenario.map_or("", |scenario| scenario.name)
    )
}

/// Met only if no trial lost anything, and the generator offered the promised load.
fn lost(shown: Shown<'_>) -> Option<Last<'_>> {
    let case = shown.case;
    let offered = case.spread(Trial::offered_pps)?.median;
    let short = wanted_pps(case).filter(|wanted| offered < WELL_OFFERED * wanted);
    let worst = case.trials.iter().max_by_key(|trial| trial.missing())?;
    let trials = match case.trials.len() {
        1 => "1 trial".to_owned(),
        several => format!("worst of {several} trials"),
    };
    let mut figure = format!(
        "{trials}: {} of {} copies lost",
        number(worst.missing().max(0) as f64),
        number(worst.volume.expected as f64)
    );
    if let Some(wanted) = short {
        let (offered, wanted) = (number(offered), number(wanted));
        let _ = write!(figure, ", but only {offered} of {wanted} packets/s offered");
    }
    Some(Last {
        figure,
        is_met: worst.missing() <= 0 && short.is_none(),
        loss_of: Some(case),
        under: joined(&Letters::from([shown.under])),
    })
}

/// The load that a case's parameters name, over all its streams.
fn wanted_pps(case: &CaseResult) -> Option<f64> {
    let rate: f64 = case.parameters.get("pps")?.parse().ok()?;
    let parameter = case.parameters.get("streams");
    let streams: f64 = parameter.map_or(Ok(1.0), |text| text.parse()).ok()?;
    Some(rate * streams)
}

/// Whether one figure is below a share of another.
fn below(
    subject: Subject,
    (own, peer): (Option<Measured>, Option<Measured>),
    share: f64,
) -> Promise<'static> {
    let last = own.zip(peer).map(|(own, peer)| {
        let limit = share * peer.value;
        let part = if share != 1.0 {
            format!(" ({share} of {} µs)", number(peer.value))
        } else {
            String::new()
        };
        let figure = format!("{} µs : {} µs{part}", number(own.value), number(limit));
        Last::of(figure, own.value < limit, &(&own.under | &peer.under))
    });
    promise(subject, last)
}

fn latency(cases: Cases<'_>) -> Vec<Promise<'_>> {
    let figure = |relay, figure| cases.figure(8, "pps=50 % of zero loss", relay, figure);
    let below = |what, must, own, peer, share| below((what, must, 8), (own, peer), share);
    let mut all = Vec::new();
    for (what, own, must, share) in [
        (
            "latency at half load, kernel path",
            "mcr-kernel",
            "p50 below kernel routing's p50",
            1.0,
        ),
        (
            "latency at half load, userspace path",
            "mcr-userspace",
            "p50 below twice kernel routing's p50",
            2.0,
        ),
    ] {
        all.push(below(
            what,
            must,
            figure(own, Figure::LatencyP50),
            figure("kernel-routing", Figure::LatencyP50),
            share,
        ));
        all.push(below(
            SAME,
            "p99 below a tenth of socat's p99",
            figure(own, Figure::LatencyP99),
            figure("socat", Figure::LatencyP99),
            0.1,
        ));
    }
    all
}

fn scale(cases: Cases<'_>) -> Vec<Promise<'_>> {
    let at = |rules, figure| cases.figure(9, rules, "mcr-kernel", figure);
    let one = at("rules=1", Figure::Delivered);
    let many = at("rules=10000", Figure::Delivered);
    let applied = at("rules=10000", Figure::Apply).map(|time| {
        let figure = format!("{:.2} s", time.value);
        Last::of(figure, time.value < 2.0, &time.under)
    });
    let capacity = one.zip(many).map(|(one, many)| {
        let share = many.value / one.value;
        let (many_pps, one_pps) = (number(many.value), number(one.value));
        let figure = format!("{:.1} % ({many_pps} : {one_pps} packets/s)", 100.0 * share);
        Last::of(figure, share >= 0.95, &(&one.under | &many.under))
    });
    let (accepted, kept) = (
        ("10,000 rules, kernel path", "all added in under 2 s", 9),
        (SAME, "capacity at least 95 % of that with one rule", 9),
    );
    vec![promise(accepted, applied), promise(kept, capacity)]
}
