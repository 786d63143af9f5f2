//! The cases of each scenario. Rates, counts and sizes are those of the published figures.

use super::{Case, Offer, Options};
use crate::bench::bed::BedKind;
use crate::bench::plan::Plan;
use crate::bench::relay::Relay;
use crate::bench::trial::{Load, Measure};

const SIZE: usize = 1024;
/// Above what any relay here forwards: the generator then goes as fast as it can.
const HIGHEST_PPS: f64 = 1_500_000.0;

fn case(options: &Options, scenario: u8, bed: BedKind) -> Case {
    Case {
        scenario,
        parameters: Vec::new(),
        bed,
        plan: Plan {
            streams: 1,
            outputs: 1,
        },
        load: Load {
            rate_pps: None,
            count: None,
            seconds: options.seconds,
            size: options.size.unwrap_or(SIZE),
            streams: 1,
        },
        offer: Offer::Once,
        measure: Measure::Count,
        relays: options.relays.clone(),
    }
}

impl Case {
    fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.parameters.push((name, value.to_string()));
        self
    }

    fn streams(mut self, streams: u16) -> Self {
        self.plan.streams = streams;
        self.load.streams = streams;
        self.with("streams", streams)
    }

    fn outputs(mut self, outputs: u16) -> Self {
        self.plan.outputs = outputs;
        self.with("outputs", outputs)
    }

    fn rate(mut self, rate_pps: f64) -> Self {
        self.load.rate_pps = Some(rate_pps);
        self.with("pps", rate_pps)
    }

    fn count(mut self, count: u64) -> Self {
        self.load.count = Some(count);
        self
    }

    fn at_full_speed(self) -> Self {
        self.with("pps", "max")
    }

    fn received(mut self) -> Self {
        self.measure = Measure::Receive;
        self
    }

    fn also(mut self, relay: Relay, options: &Options) -> Self {
        if relay != Relay::Floor || options.tools.floor_object.is_some() {
            self.relays.push(relay);
        }
        self
    }
}

pub(super) fn one_stream(options: &Options) -> Vec<Case> {
    let points = [
        (50_000.0, 100_000),
        (200_000.0, 1_000_000),
        (400_000.0, 1_000_000),
    ];
    let points = &points[if options.quick { 2 } else { 0 }..];
    let points = points.iter().map(|(rate, packets)| {
        case(options, 1, BedKind::Chain)
            .rate(*rate)
            .count(if options.quick { 400_000 } else { *packets })
    });
    points.collect()
}

pub(super) fn long_run(options: &Options) -> Vec<Case> {
    let packets = if options.quick { 150_000 } else { 9_000_000 };
    vec![
        case(options, 2, BedKind::Chain)
            .rate(150_000.0)
            .with("packets", packets)
            .count(packets),
    ]
}

pub(super) fn streams(options: &Options) -> Vec<Case> {
    let streams: &[u16] = match (&options.streams[..], options.quick) {
        ([], false) => &[1, 2, 5, 10, 20, 50, 100, 150],
        ([], true) => &[150],
        (asked, _) => asked,
    };
    let rates = match (options.rate_pps, options.quick) {
        (Some(rate), _) => vec![rate],
        (None, true) => vec![2000.0],
        (None, false) => vec![2000.0, 5000.0],
    };
    let packets = { options.packets }.unwrap_or(if options.quick { 2000 } else { 10_000 });
    let points = rates
        .iter()
        .flat_map(|rate| streams.iter().map(move |streams| (*rate, *streams)));
    points
        .map(|(rate, streams)| {
            case(options, 3, BedKind::Chain)
                .streams(streams)
                .rate(rate)
                .count(packets)
        })
        .collect()
}

pub(super) fn density(options: &Options) -> Vec<Case> {
    let packets = if options.quick { 3000 } else { 30_000 };
    vec![
        case(options, 4, BedKind::DualBridge { sinks: 1 })
            .streams(50)
            .rate(3000.0)
            .count(packets),
    ]
}

pub(super) fn fan_out(options: &Options) -> Vec<Case> {
    let outputs: &[u16] = if options.quick {
        &[50]
    } else {
        &[3, 10, 31, 50, 200]
    };
    let mut cases = Vec::new();
    for outputs in outputs {
        let rates: &[(f64, u64)] = match (options.quick, outputs) {
            (false, 200) => &[(1000.0, 1000), (5000.0, 10_000)],
            (false, _) => &[(1000.0, 1000), (20_000.0, 60_000)],
            (true, _) => &[(20_000.0, 20_000)],
        };
        let rates = rates.iter().map(|(rate, packets)| {
            case(options, 5, BedKind::Chain)
                .outputs(*outputs)
                .rate(options.rate_pps.unwrap_or(*rate))
                .count(options.packets.unwrap_or(*packets))
        });
        cases.extend(rates);
    }
    let one_core = BedKind::OneCore {
        gro: false,
        segment: false,
    };
    let widths: &[u16] = if options.quick {
        &[]
    } else {
        &[1, 3, 10, 31, 50, 200]
    };
    cases.extend(widths.iter().map(|outputs| {
        case(options, 5, one_core)
            .outputs(*outputs)
            .at_full_speed()
            .with("bed", "one core")
    }));
    cases
}

pub(super) fn pipeline(options: &Options) -> Vec<Case> {
    let bed = BedKind::Pipeline { relays: 3 };
    let mut cases = vec![
        case(options, 6, bed).at_full_speed(),
        case(options, 6, bed).rate(439_000.0).count(2_000_000),
    ];
    for case in &mut cases {
        case.load.size = 1400;
    }
    if options.quick {
        cases.remove(0);
        cases[0].load.count = Some(439_000);
    }
    cases
}

pub(super) fn capacity(options: &Options) -> Vec<Case> {
    let bed = |gro, segment| BedKind::OneCore { gro, segment };
    let sizes: &[usize] = if options.quick {
        &[1024]
    } else {
        &[64, 512, 1024, 1400]
    };
    let mut cases = Vec::new();
    for size in sizes {
        let sized = |gro, segment, label| {
            let mut case = case(options, 7, bed(gro, segment))
                .at_full_speed()
                .with("bytes", size)
                .with("gro", label)
                .also(Relay::Floor, options);
            case.load.size = *size;
            case
        };
        cases.push(sized(false, false, "off"));
        if !options.quick {
            cases.push(sized(true, true, "on, egress segments"));
        }
    }
    if !options.quick {
        let mut search = case(options, 7, bed(false, false))
            .rate(HIGHEST_PPS)
            .also(Relay::Floor, options);
        search.parameters = vec![
            ("pps", "zero loss".to_owned()),
            ("bytes", "1024".to_owned()),
        ];
        search.offer = Offer::ZeroLoss;
        cases.push(search);
    }
    cases
}

pub(super) fn latency(options: &Options) -> Vec<Case> {
    let rates: &[f64] = if options.quick {
        &[20_000.0]
    } else {
        &[1000.0, 20_000.0, 100_000.0]
    };
    let fixed = rates
        .iter()
        .map(|rate| case(options, 8, BedKind::Chain).rate(*rate).received());
    let mut cases: Vec<_> = fixed.collect();
    if !options.quick {
        let mut search = case(options, 8, BedKind::Chain)
            .rate(HIGHEST_PPS)
            .received();
        search.parameters = vec![("pps", "zero loss".to_owned())];
        search.offer = Offer::ZeroLoss;
        cases.push(search);
        for percent in [10, 50, 90] {
            let mut share = case(options, 8, BedKind::Chain)
                .with("pps", format!("{percent} % of zero loss"))
                .received();
            share.offer = Offer::Share(f64::from(percent) / 100.0);
            cases.push(share);
        }
    }
    let skew = case(options, 8, BedKind::Chain)
        .outputs(50)
        .rate(1000.0)
        .received();
    cases.push(skew);
    cases
}

pub(super) fn scale(options: &Options) -> Vec<Case> {
    let rules: &[u16] = if options.quick {
        &[1, 1000]
    } else {
        &[1, 100, 1000, 10_000]
    };
    let bed = BedKind::OneCore {
        gro: false,
        segment: false,
    };
    let points = rules.iter().map(|rules| {
        let mut case = case(options, 9, bed).streams(*rules).at_full_speed();
        // The same traffic each time: what changes is the size of the table alone.
        case.load.streams = 1;
        case.parameters[0].0 = "rules";
        case
    });
    points.collect()
}

pub(super) fn foreign_source(options: &Options) -> Vec<Case> {
    let packets = if options.quick { 100_000 } else { 1_000_000 };
    vec![
        case(options, 10, BedKind::ForeignSource)
            .rate(100_000.0)
            .with("packets", packets)
            .count(packets),
    ]
}
