//! What an MCR between generator and verifier counted itself, read from its control socket.

use std::collections::BTreeMap;
use std::path::Path;

use api::reply::Stats;
use traffic::wire::drops::{Drop, Stage};

use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;

/// The relay under test, if a daemon answers there.
pub(super) fn open(socket: &Path) -> Result<Control, Failure> {
    let control = Control::open(&Global {
        socket: Some(socket.to_owned()),
        instance: "default".to_owned(),
        host: None,
        json: false,
    })?;
    control.status()?;
    Ok(control)
}

/// What was dropped between two looks, in copies: by rules and outputs under their reasons, behind
/// them by devices, and ahead of the relay if fewer of the `sent` packets reached its rules.
pub(super) fn drops(before: &Stats, after: &Stats, sent: u64, copies: u64) -> Vec<Drop> {
    let mut drops = Vec::new();
    let mut push = |at, what: String, copies| {
        if copies > 0 {
            drops.push(Drop { at, what, copies });
        }
    };
    let (mut received, mut by_outputs) = (0, 0);
    for rule in &after.rules {
        // A rule that came meanwhile is not of this measurement.
        let then = before.rules.iter().find(|then| then.name == rule.name);
        let Some(then) = then else { continue };
        let name = &rule.name;
        received += rule.received.packets.saturating_sub(then.received.packets);
        for (reason, packets) in grown(&then.dropped, &rule.dropped) {
            let outputs = rule.outputs.len() as u64;
            push(
                Stage::Relay,
                format!("rule {name}: {reason}"),
                packets * outputs,
            );
        }
        for output in &rule.outputs {
            let then = then.outputs.iter().find(|then| then.to == output.to);
            let then = then.map(|then| then.dropped.clone()).unwrap_or_default();
            for (reason, packets) in grown(&then, &output.dropped) {
                by_outputs += packets;
                let to = &output.to;
                push(
                    Stage::Relay,
                    format!("rule {name}: output {to}: {reason}"),
                    packets,
                );
            }
        }
    }
    for device in &after.egress {
        let name = &device.interface;
        let then = before.egress.iter().find(|then| then.interface == *name);
        let of = |now: u64, then: Option<u64>| now.saturating_sub(then.unwrap_or(now));
        let unsent = of(device.device_dropped, then.map(|then| then.device_dropped))
            + of(device.queue_dropped, then.map(|then| then.queue_dropped));
        // A device that refuses a copy counts it, and so does the output.
        let more = unsent.saturating_sub(by_outputs);
        push(Stage::Relay, format!("{name} did not send"), more);
    }
    let ahead = sent.saturating_sub(received);
    const AHEAD: &str = "did not reach a rule of the relay";
    push(Stage::BeforeRelay, AHEAD.to_owned(), ahead * copies);
    drops
}

fn grown(then: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let more = now.iter().map(|(reason, packets)| {
        let before = then.get(reason).copied().unwrap_or(0);
        (reason.clone(), packets.saturating_sub(before))
    });
    more.filter(|(_, packets)| *packets > 0).collect()
}
