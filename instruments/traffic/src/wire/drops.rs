//! Where packets of a trial were dropped, as far as any counter shows, every drop once.

use std::collections::BTreeMap;

use rules::named::named;
use serde::{Deserialize, Serialize};

use super::host::Counters;

/// Copies dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    /// Where on the path.
    pub at: Stage,
    /// What dropped them.
    pub what: String,
    /// Copies that did not arrive because of it.
    pub copies: u64,
}

named! {
    /// The stages of the path.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Stage {
        /// The host that sends.
        Generator = "generator",
        /// The network before the relay.
        BeforeRelay = "before the relay",
        /// The relay.
        Relay = "relay",
        /// The host that counts.
        Verifier = "verifier",
    }
}

/// What the hosts counted in a trial. `copies` is how many the relay makes of each packet; with
/// `one_host` both counters are of the same host, whose queues count once.
pub fn of_hosts(
    generator: &Counters,
    verifier: &Counters,
    copies: u64,
    one_host: bool,
) -> Vec<Drop> {
    let mut drops = Vec::new();
    let mut push = |at, what: String, copies| {
        if copies > 0 {
            drops.push(Drop { at, what, copies });
        }
    };
    for (interface, counters) in &generator.interfaces {
        let (what, packets) = most(counters, "tx");
        push(
            Stage::Generator,
            format!("{interface} {what}"),
            packets * copies,
        );
    }
    for (interface, counters) in &verifier.interfaces {
        let (what, packets) = most(counters, "rx");
        push(Stage::Verifier, format!("{interface} {what}"), packets);
    }
    const QUEUE: &str = "queue of a core full (net.core.netdev_max_backlog)";
    push(Stage::Verifier, QUEUE.to_owned(), verifier.softnet_dropped);
    if !one_host {
        let packets = generator.softnet_dropped;
        push(Stage::Generator, QUEUE.to_owned(), packets * copies);
    }
    drops
}

/// The highest counter of one direction. The kernel's and the driver's count the same packets under
/// several names, so they are not added up.
fn most<'a>(counters: &'a BTreeMap<String, u64>, direction: &str) -> (&'a str, u64) {
    let other = if direction == "rx" { "tx" } else { "rx" };
    let of_direction = counters.iter().filter(|(name, _)| {
        let name = name.strip_prefix("driver:").unwrap_or(name);
        !name.contains(other)
    });
    let most = of_direction.max_by_key(|(_, packets)| **packets);
    most.map_or(("", 0), |(name, packets)| (name.as_str(), *packets))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(interface: &str, counted: &[(&str, u64)], softnet_dropped: u64) -> Counters {
        let counted = counted.iter().map(|(name, n)| ((*name).to_owned(), *n));
        Counters {
            softnet_dropped,
            interfaces: [(interface.to_owned(), counted.collect())].into(),
            ..Counters::default()
        }
    }

    #[test]
    fn a_packet_that_kernel_and_driver_counted_is_one() {
        let generator = counters("eth0", &[("rx_dropped", 9)], 4);
        let counted = [
            ("rx_dropped", 7),
            ("driver:rx_no_buffer", 6),
            ("tx_dropped", 99),
        ];
        let verifier = counters("eth1", &counted, 4);
        let drops = of_hosts(&generator, &verifier, 2, true);
        let lost: Vec<_> = drops
            .iter()
            .map(|drop| (drop.at, drop.what.as_str(), drop.copies))
            .collect();
        assert_eq!(lost[0], (Stage::Verifier, "eth1 rx_dropped", 7));
        assert_eq!((lost[1].0, lost[1].2, lost.len()), (Stage::Verifier, 4, 2));
    }

    #[test]
    fn a_packet_that_never_left_costs_every_copy() {
        let generator = counters("eth0", &[("tx_dropped", 3)], 1);
        let drops = of_hosts(&generator, &Counters::default(), 5, false);
        let copies: Vec<_> = drops.iter().map(|drop| (drop.at, drop.copies)).collect();
        assert_eq!(copies, [(Stage::Generator, 15), (Stage::Generator, 5)]);
    }
}
