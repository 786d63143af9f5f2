//! The scenarios: which cases, on which bed, under which load.

use std::collections::BTreeMap;

use super::cases;
use super::relay::{Relay, Tools};

pub use super::case::{Case, Offer, Options};

impl Default for Options {
    fn default() -> Self {
        Self {
            scenarios: SCENARIOS.iter().map(|scenario| scenario.number).collect(),
            trials: None,
            seconds: 2.0,
            quick: false,
            promises: false,
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
    /// 1 to 11.
    pub number: u8,
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows, one line for people.
    pub title: &'static str,
    /// What is offered where, and which core does the work, for the report.
    pub about: &'static str,
    cases: fn(&Options) -> Vec<Case>,
}

impl Scenario {
    /// Lists its cases.
    pub fn cases(&self, options: &Options) -> Vec<Case> {
        let mut cases = (self.cases)(options);
        cases.retain(|case| case.promised.is_some() || !options.promises);
        cases
    }

    /// Lists the varied parameters of its cases, in the report's order.
    pub fn listed(&self) -> Vec<BTreeMap<String, String>> {
        let cases = (self.cases)(&Options::default());
        let parameters = cases.into_iter().map(|case| case.parameters);
        parameters.map(named).collect()
    }

    /// The scenario of a number or name.
    pub fn find(text: &str) -> Option<&'static Self> {
        let mut all = SCENARIOS.iter();
        all.find(|scenario| scenario.name == text || scenario.number.to_string() == text)
    }
}

/// The varied parameters of a case, by name.
pub fn named(parameters: Vec<(&'static str, String)>) -> BTreeMap<String, String> {
    let pairs = parameters.into_iter();
    pairs
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// All scenarios, by number.
pub const SCENARIOS: [Scenario; 11] = [
    Scenario {
        number: 1,
        name: "one-stream",
        title: "One stream at 50,000, 200,000 and 400,000 packets per second",
        about: "\
            Bed: sender, relay and sink in a row of veth pairs, the machine as it is; the \
            generator has core 0, relays' processes and the sinks' receive side the others \
            (docs/bench.md, \"Which core pays\"). 1024-byte payloads; 100,000 packets at the \
            lowest rate, 1,000,000 at the others.",
        cases: cases::one_stream,
    },
    Scenario {
        number: 2,
        name: "long-run",
        title: "9,000,000 packets at 150,000 packets per second",
        about: "\
            Bed as in 1; a minute per trial. A relay whose queues slowly fill shows it here.",
        cases: cases::long_run,
    },
    Scenario {
        number: 3,
        name: "streams",
        title: "1 to 150 streams at 2,000 and 5,000 packets per second each",
        about: "Bed as in 1; every stream is a rule of its own with a group and port of its own. 4,000 \
            packets each at 2,000 a second, 10,000 at 5,000.",
        cases: cases::streams,
    },
    Scenario {
        number: 4,
        name: "density",
        title: "50 streams of 3,000 packets per second over two bridges",
        about: "\
            Bed: two bridges with IGMP snooping, nothing routes between them, one sink that \
            joins all groups; the second bridge and the sink share the generator's core, the \
            relay has the others. Every trial starts the relay anew. MCR runs one daemon, socat \
            one process per stream.",
        cases: cases::density,
    },
    Scenario {
        number: 5,
        name: "fan-out",
        title: "One stream to 3, 10, 31, 50 and 200 outputs",
        about: "\
            Loss on the bed of 1; capacity (pps max) on the bed of 7. Kernel routing can copy \
            to different links only and stops at 31: it gets a veth pair for each output, a \
            lighter task than one link for all.",
        cases: cases::fan_out,
    },
    Scenario {
        number: 6,
        name: "pipeline",
        title: "Three relays in a row, 1400 bytes",
        about: "\
            Bed: sender, three relays and a sink in a row, each relay a daemon of its own in a \
            namespace of its own, on the machine as it is: with two cores the three share them \
            with the generator; the second and third receive on the other core.",
        cases: cases::pipeline,
    },
    Scenario {
        number: 7,
        name: "capacity",
        title: "Capacity of one core, one stream to one output",
        about: "\
            Bed: the generator has core 0, and core 1 does all the rest: the relay's receive \
            softirq, the relay, its egress and the counter at the sink. The generator offers \
            more than any relay forwards (pps max), except in the search for the highest rate \
            without loss (zero loss). With GRO off the relay gets and sends single packets; \
            with GRO on its input merges packets of one flow (`rx-udp-gro-forwarding`) and its \
            output may segment. On a virtual machine the rate without loss (NDR) tells how long \
            the machine stood still, and the one with hardly any (PDR) what the relay can do \
            (docs/bench.md).",
        cases: cases::capacity,
    },
    Scenario {
        number: 8,
        name: "latency",
        title: "Latency at fixed rates and shares of capacity; replication skew",
        about: "\
            Bed as in 1, `mcr receive` with ordinary sockets at the sink; from the intended \
            send time of each packet to the kernel's receive timestamp at the sink, so a late \
            generator counts against everybody alike. Shares are of each relay's own zero-loss \
            rate on this bed, searched up to 1,500,000 packets per second.",
        cases: cases::latency,
    },
    Scenario {
        number: 9,
        name: "scale",
        title: "1 to 10,000 rules: time to add, memory, capacity",
        about: "\
            Bed as in 7. Every trial starts the relay anew with this many rules; the load is \
            one stream, the first rule's. MCR accepts all rules in one `mcr apply`.",
        cases: cases::scale,
    },
    Scenario {
        number: 10,
        name: "foreign-source",
        title: "Two bridges and a source that no route leads back to",
        about: "\
            Bed as in 4; the sender's address (192.0.2.77) is one that no route of the relay's \
            host leads back to, and the host checks that (`rp_filter` 1), as routers do. A \
            relay on UDP sockets or kernel routing never sees such a packet.",
        cases: cases::foreign_source,
    },
    Scenario {
        number: 11,
        name: "driver",
        title: "Frames as a driver delivers them: tc and XDP",
        about: "\
            Bed as in 7, but its frames come without an skb, as a driver's: a program on core 0 makes them \
            (`BPF_PROG_TEST_RUN` with live frames), and the relay's NAPI thread takes them on core 1, where \
            programs at the sink count and drop. Streams take turns, packet by packet. `floor` is the bare \
            redirect at tc, `xdp-floor` that at XDP. Latency is from the making of a frame to the sink; paced \
            frames come in batches of at most 8. No card was at hand: nothing is said of any.",
        cases: cases::driver,
    },
];

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
    fn a_run_for_the_promises_has_a_case_for_each_scenario_that_promises() {
        let options = Options {
            promises: true,
            ..Options::default()
        };
        let with_cases = SCENARIOS.iter().filter(|it| !it.cases(&options).is_empty());
        let numbers: Vec<u8> = with_cases.map(|scenario| scenario.number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 11]);
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
