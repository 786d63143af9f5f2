//! Counters of every point where packets can be dropped between generator and sink, read before and after a
//! trial.

use std::collections::BTreeSet;

use anyhow::Result;
use traffic::wire::host::Counters;

use super::bed::{Bed, Wire};
use crate::bench::results::Drops;
use crate::link::{self, End, Statistics};

/// Counters of every wire of a bed and of the kernel's per-core queues.
#[derive(Clone, Debug)]
pub struct Hops {
    wires: Vec<Ends>,
    backlog_dropped: u64,
}

/// The counts of one wire's ends.
#[derive(Clone, Debug)]
struct Ends {
    name: String,
    behind_relay: bool,
    statistics: Vec<Statistics>,
}

/// The cost of a drop, and the drops that the relay itself counted.
#[derive(Clone, Copy, Debug)]
pub struct Relayed {
    /// Copies that the relay makes of a datagram.
    pub copies: u64,
    /// Copies that the relay counted as dropped. A device that refuses a copy reports that to the relay and
    /// counts it as well.
    pub refused: u64,
}

impl Hops {
    /// Reads them all.
    ///
    /// # Errors
    /// When a link does not exist.
    pub fn read(bed: &Bed) -> Result<Self> {
        let wires = bed.wires().into_iter().map(|wire| Ends::read(&wire));
        Ok(Self {
            wires: wires.collect::<Result<_>>()?,
            backlog_dropped: Counters::read(&BTreeSet::new()).softnet_dropped,
        })
    }

    /// Lists what was dropped since `before`, every drop once, in copies.
    pub fn drops_since(&self, before: &Self, relayed: Relayed) -> Vec<Drops> {
        let mut drops = Vec::new();
        let mut unattributed = relayed.refused;
        // A full queue between two cores is the machine's, but the wire before it counts it too.
        let mut elsewhere = self.backlog_dropped - before.backlog_dropped;
        for (now, then) in self.wires.iter().zip(&before.wires) {
            let dropped = now.dropped_since(then);
            elsewhere = elsewhere.saturating_sub(dropped);
            let copies = if now.behind_relay {
                let refused = dropped.min(unattributed);
                unattributed -= refused;
                dropped - refused
            } else {
                dropped * relayed.copies
            };
            push(&mut drops, format!("{}: queue full", now.name), copies);
        }
        push(
            &mut drops,
            "other devices, softnet backlog".into(),
            elsewhere,
        );
        drops
    }
}

impl Ends {
    fn read(wire: &Wire<'_>) -> Result<Self> {
        let name = |(namespace, name): &End<'_>| {
            let role = namespace.name().rsplit('-').next().unwrap_or_default();
            format!("{role} {name}")
        };
        let names: Vec<String> = wire.ends.iter().map(name).collect();
        let statistics = wire.ends.iter().map(|end| link::statistics(*end));
        Ok(Self {
            name: names.join(" to "),
            behind_relay: wire.behind_relay,
            statistics: statistics.collect::<Result<_>>()?,
        })
    }

    /// Datagrams that did not pass: one that the receiving end cannot accept is counted by both ends, or
    /// only by the sending one.
    fn dropped_since(&self, before: &Self) -> u64 {
        let ends = self.statistics.iter().zip(&before.statistics);
        let dropped = ends.map(|(now, then)| {
            now.transmit_dropped - then.transmit_dropped + now.receive_dropped
                - then.receive_dropped
        });
        dropped.max().unwrap_or(0)
    }
}

fn push(drops: &mut Vec<Drops>, at: String, copies: u64) {
    if copies > 0 {
        drops.push(Drops { at, copies });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(name: &str, behind_relay: bool, ends: &[(u64, u64)]) -> Ends {
        let statistics = ends.iter().map(|(transmit, receive)| Statistics {
            transmit_dropped: *transmit,
            receive_dropped: *receive,
            ..Statistics::default()
        });
        Ends {
            name: name.to_owned(),
            behind_relay,
            statistics: statistics.collect(),
        }
    }

    fn chain(ahead: [(u64, u64); 2], behind: [(u64, u64); 2], backlog_dropped: u64) -> Hops {
        let wires = vec![wire("in", false, &ahead), wire("out", true, &behind)];
        Hops {
            wires,
            backlog_dropped,
        }
    }

    fn drops(now: &Hops, relayed: Relayed) -> Vec<(String, u64)> {
        let before = chain([(0, 0); 2], [(0, 0); 2], 0);
        let drops = now.drops_since(&before, relayed).into_iter();
        drops.map(|drops| (drops.at, drops.copies)).collect()
    }

    #[test]
    fn a_drop_that_four_counters_saw_is_one() {
        let now = chain([(0, 0); 2], [(50, 0), (0, 50)], 50);
        let relayed = Relayed {
            copies: 50,
            refused: 49,
        };
        assert_eq!(drops(&now, relayed), [("out: queue full".to_owned(), 1)]);
    }

    #[test]
    fn a_drop_ahead_of_the_relay_costs_every_copy() {
        let now = chain([(2, 0), (0, 0)], [(0, 0); 2], 0);
        let relayed = Relayed {
            copies: 50,
            refused: 7,
        };
        assert_eq!(drops(&now, relayed), [("in: queue full".to_owned(), 100)]);
    }

    #[test]
    fn drops_of_the_backlog_alone_are_listed_as_elsewhere() {
        let now = chain([(0, 3), (0, 0)], [(0, 0); 2], 10);
        let relayed = Relayed {
            copies: 1,
            refused: 0,
        };
        let wanted = [
            ("in: queue full".to_owned(), 3),
            ("other devices, softnet backlog".to_owned(), 7),
        ];
        assert_eq!(drops(&now, relayed), wanted);
    }
}
