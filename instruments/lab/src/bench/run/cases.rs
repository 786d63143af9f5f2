//! The cases of each scenario. Rates, counts and sizes are those of the published figures; numbers of
//! trials are chosen so that the cases of promises are measured often and all scenarios fit into three
//! quarters of an hour. Cases that share a bed are adjacent.

use super::bed::BedKind;
use super::case::{Case, Offer, Options, TRIALS};
use super::plan::{Family, Plan};
use super::relay::Relay;
use super::shape::{Load, Measure, Shape};

const SIZE: usize = 1024;
/// More than any relay here forwards: the generator then sends as fast as it can.
const HIGHEST_PPS: f64 = 1_500_000.0;
/// The same at XDP.
const HIGHEST_AT_XDP_PPS: f64 = 2_000_000.0;
/// Rules of the largest table.
const MANY_RULES: u16 = 10_000;
/// Trials of a long case of a promise.
const FEW_TRIALS: u32 = 3;
/// Trials of a case that no promise depends on, of MCR and of its peers.
const OTHER_TRIALS: (u32, u32) = (2, 1);

/// LAB.md's bed in its usual form: single packets in, single packets out.
const ONE_CORE: BedKind = BedKind::OneCore {
    gro: false,
    segment: false,
};

fn case(options: &Options, scenario: u8, bed: BedKind) -> Case {
    Case {
        scenario,
        parameters: Vec::new(),
        shape: Shape {
            bed,
            plan: Plan {
                streams: 1,
                outputs: 1,
                family: Family::V4,
            },
            streams: 1,
            measure: Measure::Count,
        },
        load: Load {
            rate_pps: None,
            count: None,
            seconds: options.seconds,
            size: options.size.unwrap_or(SIZE),
        },
        offer: Offer::Once,
        fresh: false,
        trials: OTHER_TRIALS,
        promised: None,
        relays: options.relays.clone(),
    }
}

impl Case {
    fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.parameters.push((name, value.to_string()));
        self
    }

    fn streams(mut self, streams: u16) -> Self {
        self.shape.plan.streams = streams;
        self.shape.streams = streams;
        self.with("streams", streams)
    }

    fn outputs(mut self, outputs: u16) -> Self {
        self.shape.plan.outputs = outputs;
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

    /// A promise depends on it, with at least this many trials.
    fn promised(mut self, own: u32, peers: u32) -> Self {
        self.promised = Some((own, peers));
        self
    }

    fn promised_if(self, is_promised: bool, own: u32, peers: u32) -> Self {
        if is_promised {
            self.promised(own, peers)
        } else {
            self
        }
    }

    /// Searches the highest rate without loss instead of offering one.
    fn zero_loss(mut self) -> Self {
        self.load.rate_pps = Some(HIGHEST_PPS);
        self.offer = Offer::ZeroLoss;
        self.with("pps", "zero loss")
    }

    fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }

    fn received(mut self) -> Self {
        self.shape.measure = Measure::Receive;
        self
    }

    fn also(mut self, relay: Relay) -> Self {
        self.relays.push(relay);
        self
    }
}

pub(super) fn one_stream(options: &Options) -> Vec<Case> {
    let points = [
        (50_000.0, 100_000),
        (200_000.0, 1_000_000),
        (400_000.0, 1_000_000),
    ];
    let skipped = if options.quick { 2 } else { 0 };
    let cases = points.iter().skip(skipped).map(|(rate, packets)| {
        case(options, 1, BedKind::Chain)
            .rate(*rate)
            .count(if options.quick { 400_000 } else { *packets })
            .promised_if(*rate >= 400_000.0, TRIALS, TRIALS)
    });
    cases.collect()
}

pub(super) fn long_run(options: &Options) -> Vec<Case> {
    let packets = if options.quick { 150_000 } else { 9_000_000 };
    // A minute each: its peers lose in the first round or never.
    vec![
        case(options, 2, BedKind::Chain)
            .rate(150_000.0)
            .with("packets", packets)
            .count(packets)
            .promised(1, 1),
    ]
}

pub(super) fn streams(options: &Options) -> Vec<Case> {
    let streams: &[u16] = match (&options.streams[..], options.quick) {
        ([], false) => &[1, 2, 5, 10, 20, 50, 100, 150],
        ([], true) => &[150],
        (requested, _) => requested,
    };
    let rates = match (options.rate_pps, options.quick) {
        (Some(rate), _) => vec![rate],
        (None, true) => vec![2000.0],
        (None, false) => vec![2000.0, 5000.0],
    };
    let points = streams
        .iter()
        .flat_map(|streams| rates.iter().map(move |rate| (*streams, *rate)));
    points
        .map(|(streams, rate)| {
            let packets = match (options.quick, rate >= 5000.0) {
                (true, _) => 2000,
                (false, true) => 10_000,
                (false, false) => 4000,
            };
            case(options, 3, BedKind::Chain)
                .streams(streams)
                .rate(rate)
                .count(options.packets.unwrap_or(packets))
                .promised_if(streams >= 150 && rate >= 5000.0, TRIALS, FEW_TRIALS)
        })
        .collect()
}

pub(super) fn density(options: &Options) -> Vec<Case> {
    let packets = if options.quick { 3000 } else { 10_000 };
    vec![
        case(options, 4, BedKind::DualBridge { sinks: 1 })
            .streams(50)
            .rate(3000.0)
            .count(packets)
            .fresh()
            .promised(TRIALS, FEW_TRIALS),
    ]
}

pub(super) fn fan_out(options: &Options) -> Vec<Case> {
    let mut cases = Vec::new();
    let widths: &[u16] = if options.quick {
        &[50]
    } else {
        &[3, 10, 31, 50, 200]
    };
    for outputs in widths {
        let rates: &[(f64, u64)] = match (options.quick, outputs) {
            (true, _) => &[(20_000.0, 20_000)],
            (false, 50) => &[(1000.0, 1000), (20_000.0, 60_000)],
            (false, 200) => &[(1000.0, 1000), (5000.0, 10_000)],
            (false, _) => &[(20_000.0, 20_000)],
        };
        cases.extend(rates.iter().map(|(rate, packets)| {
            case(options, 5, BedKind::Chain)
                .outputs(*outputs)
                .rate(options.rate_pps.unwrap_or(*rate))
                .count(options.packets.unwrap_or(*packets))
                .promised_if(*outputs == 50 && *rate > 1000.0, TRIALS, FEW_TRIALS)
        }));
    }
    // One output at full speed is scenario 7.
    let saturated = widths.iter().filter(|_| !options.quick).map(|outputs| {
        case(options, 5, ONE_CORE)
            .outputs(*outputs)
            .at_full_speed()
            .with("bed", "one core")
    });
    cases.extend(saturated);
    cases
}

pub(super) fn pipeline(options: &Options) -> Vec<Case> {
    let bed = BedKind::Pipeline { relays: 3 };
    let mut cases = vec![
        case(options, 6, bed).at_full_speed(),
        case(options, 6, bed)
            .rate(439_000.0)
            .count(2_000_000)
            .promised(TRIALS, FEW_TRIALS),
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
    let sizes: &[usize] = if options.quick {
        &[1024]
    } else {
        &[64, 512, 1024, 1400]
    };
    let merging = BedKind::OneCore {
        gro: true,
        segment: true,
    };
    let sized = |size: usize, bed, label| {
        let mut case = case(options, 7, bed)
            .at_full_speed()
            .with("bytes", size)
            .with("gro", label)
            .also(Relay::Floor);
        case.load.size = size;
        case.promised_if(size == SIZE && bed == ONE_CORE, TRIALS, TRIALS)
    };
    let mut cases: Vec<_> = sizes
        .iter()
        .map(|size| sized(*size, ONE_CORE, "off"))
        .collect();
    if options.quick {
        return cases;
    }
    let search = case(options, 7, ONE_CORE)
        .zero_loss()
        .promised(1, 1)
        .with("bytes", SIZE)
        .also(Relay::Floor);
    cases.push(search);
    let mut newer = sized(SIZE, ONE_CORE, "off").with("ip", 6);
    newer.shape.plan.family = Family::V6;
    newer.promised = None;
    cases.push(newer);
    cases.extend(
        sizes
            .iter()
            .map(|size| sized(*size, merging, "on, egress segments")),
    );
    cases
}

pub(super) fn latency(options: &Options) -> Vec<Case> {
    let rates: &[f64] = if options.quick {
        &[20_000.0]
    } else {
        &[1000.0, 20_000.0, 100_000.0]
    };
    let received = || case(options, 8, BedKind::Chain).received();
    let mut cases: Vec<_> = rates.iter().map(|rate| received().rate(*rate)).collect();
    if !options.quick {
        // One search: it only determines the shares of capacity.
        cases.push(received().zero_loss().promised(1, 1));
        for percent in [10, 50, 90] {
            let mut share = received().with("pps", format!("{percent} % of zero loss"));
            share.offer = Offer::Share(f64::from(percent) / 100.0);
            let trials = if percent == 50 { TRIALS } else { 1 };
            cases.push(share.promised(trials, trials));
        }
    }
    cases.push(received().outputs(50).rate(1000.0));
    cases
}

pub(super) fn scale(options: &Options) -> Vec<Case> {
    let rules: &[u16] = if options.quick {
        &[1, 1000]
    } else {
        &[1, 100, 1000, MANY_RULES]
    };
    let points = rules.iter().map(|rules| {
        let mut case = case(options, 9, ONE_CORE).with("rules", rules).fresh();
        // The same traffic each time: only the size of the table changes.
        case.shape.plan.streams = *rules;
        // A thousand processes take most of a minute to start.
        case.at_full_speed()
            .promised_if(matches!(*rules, 1 | MANY_RULES), FEW_TRIALS, 1)
    });
    points.collect()
}

pub(super) fn driver(options: &Options) -> Vec<Case> {
    let point = |size: usize, streams: u16, outputs: u16, gro: bool| {
        let mut case = case(options, 11, BedKind::Driver { gro })
            .streams(streams)
            .outputs(outputs)
            .at_full_speed()
            .with("bytes", size)
            .with("gro", if gro { "on" } else { "off" });
        case.load.size = size;
        // An explicit list of relays stays unchanged.
        if case.relays.starts_with(&Relay::ALL) {
            case.relays
                .retain(|relay| !matches!(relay, Relay::Userspace | Relay::Socat));
            case.relays
                .extend([Relay::Floor, Relay::Xdp, Relay::Redirect]);
        }
        case
    };
    let promised = [(SIZE, 1), (SIZE, 64), (64, 1), (256, 1), (SIZE, 1000)];
    let most = if options.quick { 1 } else { promised.len() };
    let mut cases: Vec<_> = promised[..most]
        .iter()
        .map(|(size, streams)| point(*size, *streams, 1, false).promised(TRIALS, TRIALS))
        .collect();
    if options.quick {
        return cases;
    }
    cases.extend([64, 256].map(|size| point(size, 64, 1, false)));
    cases.extend([2, 4, 16].map(|outputs| point(SIZE, 1, outputs, false)));
    let merged = [(1, 1), (64, 1), (1, 4), (1, 16), (64, 4)];
    cases.extend(merged.map(|(streams, outputs)| point(SIZE, streams, outputs, true)));
    let mut search = point(SIZE, 1, 1, false).zero_loss();
    search.load.rate_pps = Some(HIGHEST_AT_XDP_PPS);
    let mut half = point(SIZE, 1, 1, false).with("pps", "50 % of zero loss");
    half.offer = Offer::Share(0.5);
    cases.extend([search.promised(1, 1), half.promised(TRIALS, TRIALS)]);
    // One stream, the first rule's: only the size of the table changes.
    let mut many = point(SIZE, 1, 1, false).with("rules", MANY_RULES);
    many.shape.plan.streams = MANY_RULES;
    many.relays
        .retain(|relay| matches!(relay, Relay::Kernel | Relay::Xdp));
    cases.push(many.promised(TRIALS, TRIALS));
    cases
}

pub(super) fn foreign_source(options: &Options) -> Vec<Case> {
    let packets = if options.quick { 100_000 } else { 1_000_000 };
    vec![
        case(options, 10, BedKind::ForeignSource)
            .rate(150_000.0)
            .with("packets", packets)
            .count(packets),
    ]
}
