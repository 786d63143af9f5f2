//! The growth of counters: as expected of packets, and as read.

use std::collections::BTreeMap;

use dataplane::counters::{Counters, Drops, InputCounters, OutputCounters, RuleCounters, Traffic};
use packet::verdict::{DropReason, Verdict};

use crate::case::{Expected, Outlet};

/// Adds one packet's fate to its rule's counters.
pub(super) fn count(counters: &mut RuleCounters, expected: &Expected) {
    let packets = expected.packets;
    let receive = |traffic: &mut Traffic| {
        traffic.packets += packets;
        traffic.bytes += expected.bytes;
    };
    let drop = |drops: &mut Drops, reason: DropReason| drops.0[reason as usize] += packets;
    receive(&mut counters.received);
    if let Some(at) = &expected.input {
        let input = counters.inputs.entry(at.clone()).or_default();
        receive(&mut input.received);
        if let Verdict::Dropped(reason) = expected.verdict
            && reason.is_of_an_input()
        {
            drop(&mut input.dropped, reason);
        }
    }
    if let Verdict::Dropped(reason) = expected.verdict {
        drop(&mut counters.dropped, reason);
    }
    counters.dropped.0[DropReason::RateLimited as usize] += expected.limited;
    for (index, outlet) in &expected.outputs {
        let output = counters.outputs.entry(*index).or_default();
        match outlet {
            Outlet::Sent { .. } => receive(&mut output.sent),
            Outlet::First {
                packets,
                bytes,
                rest,
                ..
            } => {
                output.sent.packets += packets;
                output.sent.bytes += bytes;
                if let Some(reason) = rest {
                    let passed = expected.packets - expected.limited;
                    output.dropped.0[*reason as usize] += passed - packets;
                }
            }
            Outlet::Dropped(reason) => {
                output.dropped.0[*reason as usize] += packets - expected.limited;
            }
        }
    }
}

/// The growth of packet counters between two readings, without the sentinel's rule, and without health and latency,
/// which a worker writes a moment later.
pub(crate) fn growth(before: &Counters, after: &Counters) -> BTreeMap<String, RuleCounters> {
    let none = RuleCounters::default();
    let rules = after.rules.iter().filter(|(rule, _)| *rule != "sentinel");
    let grown = rules.map(|(rule, after)| {
        let before = before.rules.get(rule).unwrap_or(&none);
        (rule.clone(), rule_growth(before, after))
    });
    grown
        .filter(|(_, grown)| *grown != RuleCounters::default())
        .collect()
}

fn rule_growth(before: &RuleCounters, after: &RuleCounters) -> RuleCounters {
    let none = OutputCounters::default();
    let outputs = after.outputs.iter().map(|(index, after)| {
        let before = before.outputs.get(index).map_or(&none, |before| &**before);
        let grown = OutputCounters {
            sent: traffic_growth(before.sent, after.sent),
            dropped: drops_growth(&before.dropped, &after.dropped),
        };
        (*index, Box::new(grown))
    });
    let inputs = after.inputs.iter().map(|(at, after)| {
        let before = before.inputs.get(at).cloned().unwrap_or_default();
        let grown = InputCounters {
            received: traffic_growth(before.received, after.received),
            dropped: drops_growth(&before.dropped, &after.dropped),
        };
        (at.clone(), grown)
    });
    RuleCounters {
        received: traffic_growth(before.received, after.received),
        inputs: inputs
            .filter(|(_, grown)| *grown != InputCounters::default())
            .collect(),
        dropped: drops_growth(&before.dropped, &after.dropped),
        outputs: outputs
            .filter(|(_, grown)| **grown != OutputCounters::default())
            .collect(),
        failover: None,
        merge: None,
        health: Default::default(),
        latency: Default::default(),
    }
}

fn traffic_growth(before: Traffic, after: Traffic) -> Traffic {
    Traffic {
        answers: after.answers - before.answers,
        ..Traffic::new(after.packets - before.packets, after.bytes - before.bytes)
    }
}

fn drops_growth(before: &Drops, after: &Drops) -> Drops {
    let mut grown = after.clone();
    for (grown, before) in grown.0.iter_mut().zip(before.0) {
        *grown -= before;
    }
    grown
}
