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

/// Copies dropped between two samples: by rules and outputs with their reasons, after them by
/// devices, and before the relay if fewer than the `sent` packets reached its rules.
pub(super) fn drops(before: &Stats, after: &Stats, sent: u64, copies: u64) -> Vec<Drop> {
    let mut drops = Vec::new();
    let mut push = |at, what: String, copies| {
        if copies > 0 {
            drops.push(Drop { at, what, copies });
        }
    };
    let (mut received, mut by_outputs) = (0, 0);
    for rule in &after.rules {
        // A rule that was added meanwhile is not part of this measurement.
        let past = before.rules.iter().find(|past| past.name == rule.name);
        let Some(past) = past else { continue };
        let name = &rule.name;
        received += rule.received.packets.saturating_sub(past.received.packets);
        for (reason, packets) in increases(&past.dropped, &rule.dropped) {
            let outputs = rule.outputs.len() as u64;
            push(
                Stage::Relay,
                format!("rule {name}: {reason}"),
                packets * outputs,
            );
        }
        for output in &rule.outputs {
            let same = past.outputs.iter().find(|same| same.to == output.to);
            let dropped = same.map(|same| same.dropped.clone()).unwrap_or_default();
            for (reason, packets) in increases(&dropped, &output.dropped) {
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
        let same = before.egress.iter().find(|same| same.interface == *name);
        let increase = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(now));
        let unsent = increase(device.device_dropped, same.map(|same| same.device_dropped))
            + increase(device.queue_dropped, same.map(|same| same.queue_dropped));
        // A copy that a device refuses is counted by the device and by the output.
        let by_device = unsent.saturating_sub(by_outputs);
        push(Stage::Relay, format!("{name} did not send"), by_device);
    }
    let ahead = sent.saturating_sub(received);
    const AHEAD: &str = "did not reach a rule of the relay";
    push(Stage::BeforeRelay, AHEAD.to_owned(), ahead * copies);
    drops
}

fn increases(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let differences = now.iter().map(|(reason, packets)| {
        let past = before.get(reason).copied().unwrap_or(0);
        (reason.clone(), packets.saturating_sub(past))
    });
    differences.filter(|(_, packets)| *packets > 0).collect()
}
