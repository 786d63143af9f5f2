//! Where packets can vanish between generator and sink, read before and after a trial.

use std::collections::BTreeSet;

use anyhow::Result;
use traffic::wire::host::Counters;

use super::bed::{Bed, Wire};
use crate::bench::results::Drops;
use crate::link::{self, Statistics};

/// Counters of every wire of a bed and of the kernel's per-core queues.
#[derive(Clone, Debug)]
pub struct Hops {
    wires: Vec<Ends>,
    backlog_dropped: u64,
}

/// What the ends of one wire counted.
#[derive(Clone, Debug)]
struct Ends {
    name: String,
    behind_relay: bool,
    statistics: Vec<Statistics>,
}

/// What a drop costs, and which drops the relay knows of itself.
#[derive(Clone, Copy, Debug)]
pub struct Relayed {
    /// Copies that the relay makes of a datagram.
    pub copies: u64,
    /// Copies that the relay counted as dropped. A device that refuses a copy says so to the relay
    /// and counts it as well.
    pub refused: u64,
}

impl Hops {
    /// Reads them all.
    ///
    /// # Errors
    /// When a link is gone.
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
        let mut known = relayed.refused;
        // A full queue between two cores is the machine's, but the wire before it counts it too.
        let mut elsewhere = self.backlog_dropped - before.backlog_dropped;
        for (now, then) in self.wires.iter().zip(&before.wires) {
            let dropped = now.dropped_since(then);
            elsewhere = elsewhere.saturating_sub(dropped);
            let copies = if now.behind_relay {
                let refused = dropped.min(known);
                known -= refused;
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
        let names = wire.ends.iter().map(|(namespace, name)| {
            let role = namespace.name().rsplit('-').next().unwrap_or_default();
            format!("{role} {name}")
        });
        let names: Vec<String> = names.collect();
        let statistics = wire.ends.iter().map(|end| link::statistics(*end));
        Ok(Self {
            name: names.join(" to "),
            behind_relay: wire.behind_relay,
            statistics: statistics.collect::<Result<_>>()?,
        })
    }

    /// Datagrams that did not pass: where the receiving end cannot take one, both ends count it, or
    /// the sending one alone.
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
    fn what_only_the_backlog_counted_was_dropped_elsewhere() {
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
