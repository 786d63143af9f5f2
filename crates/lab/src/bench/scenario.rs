//! The ten scenarios: which cases, on which bed, under which load.

mod cases;

use super::bed::BedKind;
use super::plan::Plan;
use super::relay::{Relay, Tools};
use super::trial::{Load, Measure};

/// What a run of the bench is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of the scenarios.
    pub scenarios: Vec<u8>,
    /// Trials of each case.
    pub trials: u32,
    /// Seconds of a trial whose length is not part of the scenario.
    pub seconds: f64,
    /// A subset for a few minutes: fewer points, shorter trials.
    pub quick: bool,
    /// The relays to compare.
    pub relays: Vec<Relay>,
    /// Numbers of streams in scenario 3 instead of its own.
    pub streams: Vec<u16>,
    /// Rate of each stream in scenarios 3 and 5 instead of their own.
    pub rate_pps: Option<f64>,
    /// Packets of each stream in scenarios 3 and 5 instead of their own.
    pub packets: Option<u64>,
    /// Bytes of payload instead of 1024, where the size is not part of the scenario.
    pub size: Option<usize>,
    /// What relays need.
    pub tools: Tools,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scenarios: SCENARIOS.iter().map(|scenario| scenario.number).collect(),
            trials: 5,
            seconds: 3.0,
            quick: false,
            relays: Relay::ALL.to_vec(),
            streams: Vec::new(),
            rate_pps: None,
            packets: None,
            size: None,
            tools: Tools::default(),
        }
    }
}

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// 1 to 10.
    pub number: u8,
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows, one line for people.
    pub title: &'static str,
    cases: fn(&Options) -> Vec<Case>,
}

impl Scenario {
    /// Lists its cases.
    #[must_use]
    pub fn cases(&self, options: &Options) -> Vec<Case> {
        (self.cases)(options)
    }

    /// Finds a scenario by number or name.
    #[must_use]
    pub fn find(text: &str) -> Option<&'static Self> {
        let mut all = SCENARIOS.iter();
        all.find(|scenario| scenario.name == text || scenario.number.to_string() == text)
    }
}

/// All scenarios, by number.
pub const SCENARIOS: [Scenario; 10] = [
    Scenario {
        number: 1,
        name: "one-stream",
        title: "One stream at 50,000, 200,000 and 400,000 packets per second",
        cases: cases::one_stream,
    },
    Scenario {
        number: 2,
        name: "long-run",
        title: "9,000,000 packets at 150,000 packets per second",
        cases: cases::long_run,
    },
    Scenario {
        number: 3,
        name: "streams",
        title: "1 to 150 streams at 2,000 and 5,000 packets per second each",
        cases: cases::streams,
    },
    Scenario {
        number: 4,
        name: "density",
        title: "50 streams of 3,000 packets per second over two bridges",
        cases: cases::density,
    },
    Scenario {
        number: 5,
        name: "fan-out",
        title: "One stream to 3, 10, 31, 50 and 200 outputs",
        cases: cases::fan_out,
    },
    Scenario {
        number: 6,
        name: "pipeline",
        title: "Three relays in a row, 1400 bytes",
        cases: cases::pipeline,
    },
    Scenario {
        number: 7,
        name: "capacity",
        title: "Capacity of one core, one stream to one output",
        cases: cases::capacity,
    },
    Scenario {
        number: 8,
        name: "latency",
        title: "Latency at fixed rates and shares of capacity; replication skew",
        cases: cases::latency,
    },
    Scenario {
        number: 9,
        name: "scale",
        title: "1 to 10,000 rules: time to add, memory, capacity",
        cases: cases::scale,
    },
    Scenario {
        number: 10,
        name: "foreign-source",
        title: "Two bridges and a source that no route leads back to",
        cases: cases::foreign_source,
    },
];

/// One point of a scenario, measured with each relay in turn.
#[derive(Clone, Debug)]
pub struct Case {
    /// Number of its scenario.
    pub scenario: u8,
    /// What is varied, for the report.
    pub parameters: Vec<(&'static str, String)>,
    /// Where.
    pub bed: BedKind,
    /// Streams and copies.
    pub plan: Plan,
    /// The offered load; for [`Offer::Share`] without its rate, for [`Offer::ZeroLoss`] with the
    /// highest one.
    pub load: Load,
    /// How it is offered.
    pub offer: Offer,
    /// What is looked at.
    pub measure: Measure,
    /// Which relays.
    pub relays: Vec<Relay>,
}

/// How a load is offered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offer {
    /// As it is.
    Once,
    /// At many rates, to find the highest without loss; later cases may use it as the capacity.
    ZeroLoss,
    /// At this share of the capacity that a search found for the same relay.
    Share(f64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_cases_and_is_found_by_name_and_number() {
        let options = Options::default();
        for scenario in &SCENARIOS {
            assert!(!scenario.cases(&options).is_empty(), "{}", scenario.name);
            let number = scenario.number.to_string();
            assert_eq!(
                Scenario::find(scenario.name).map(|s| s.number),
                Some(scenario.number)
            );
            assert_eq!(Scenario::find(&number).map(|s| s.name), Some(scenario.name));
        }
    }

    #[test]
    fn a_quick_run_has_fewer_cases() {
        let all = Options::default();
        let quick = Options {
            quick: true,
            ..Options::default()
        };
        let count = |options: &Options| -> usize {
            let cases = SCENARIOS
                .iter()
                .map(|scenario| scenario.cases(options).len());
            cases.sum()
        };
        assert!(count(&quick) < count(&all));
    }
}
