//! Interfaces that merge packets before they are relayed (`rx-udp-gro-forwarding`): switched on where
//! the configuration asks for it, and back at the end. What was on before is left alone.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use model::config::{Gro, InterfaceSettings};
use model::host::Host;
use model::net::Ifindex;
use model::table::{self, Egress, OutputState, Route, Table};

/// Merging of received datagrams that are not for a local socket.
const MERGE: &str = "rx-udp-gro-forwarding";

/// Segmentation of what was merged, by the device.
const SEGMENT: &str = "tx-udp-segmentation";

/// One stream to one output on one core, 1024 bytes, veth, Linux 6.18: 1.4 to 1.8 times what a bare
/// redirect of single packets passes, medians of interleaved trials without and with
/// `gro_flush_timeout` = 50 us.
const GAIN: &str = "measured, one core then passes 1.4 to 1.8 times the packets";

/// Interfaces that this daemon switched.
#[derive(Debug)]
pub(crate) struct Offload {
    record: PathBuf,
    switched: BTreeSet<String>,
}

impl Offload {
    /// Takes over what an earlier run that crashed had switched.
    pub(crate) fn open(directory: &Path) -> Self {
        let record = directory.join("offload.json");
        let text = fs::read(&record).unwrap_or_default();
        Self {
            switched: serde_json::from_slice(&text).unwrap_or_default(),
            record,
        }
    }

    /// Switches on what is wanted, and back what is not wanted any more; says of each interface that
    /// the configuration names what it does now, and why.
    pub(crate) fn settle(
        &mut self,
        judged: &BTreeMap<Ifindex, Judgement>,
    ) -> BTreeMap<Ifindex, String> {
        let before = self.switched.clone();
        let mut reasons = BTreeMap::new();
        for (index, judgement) in judged {
            let interface = &judgement.interface;
            // What is on and not ours is the operator's; what is ours may be another device now.
            let mut text = match (judgement.merge, is_active(interface, MERGE)) {
                (true, _) => format!("on: {}", judgement.reason),
                (false, true) if !before.contains(interface) => {
                    format!("on: somebody else switched {MERGE} on")
                }
                (false, _) => format!("off: {}", judgement.reason),
            };
            if judgement.merge && !is_active(interface, MERGE) {
                if switch(interface, true) {
                    self.switched.insert(interface.clone());
                } else {
                    text = format!("off: the device refuses {MERGE}");
                }
            }
            reasons.insert(*index, text);
        }
        let wanted = judged.values().filter(|judgement| judgement.merge);
        let wanted: BTreeSet<&String> = wanted.map(|judgement| &judgement.interface).collect();
        for interface in before.iter().filter(|ours| !wanted.contains(ours)) {
            switch(interface, false);
            self.switched.remove(interface);
        }
        if before != self.switched {
            self.save();
        }
        reasons
    }

    /// Switches everything back.
    pub(crate) fn close(mut self) {
        self.settle(&BTreeMap::new());
        let _ = fs::remove_file(&self.record);
    }

    fn save(&self) {
        let text = serde_json::to_vec(&self.switched).unwrap_or_default();
        if let Err(error) = fs::write(&self.record, text) {
            tracing::warn!(%error, "cannot write down which interfaces were switched");
        }
    }
}

/// Whether an interface should merge, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    interface: String,
    merge: bool,
    reason: String,
}

/// Judges the interfaces that the configuration names: `on` merges whatever follows, `auto` where
/// all that is relayed from there gains by it.
pub(crate) fn judge(
    settings: &BTreeMap<String, InterfaceSettings>,
    host: &Host,
    table: &Table,
) -> BTreeMap<Ifindex, Judgement> {
    let name = |index| host.interfaces.get(&index).map(|link| link.name.as_str());
    let segments = |index| name(index).is_some_and(|name| is_active(name, SEGMENT));
    let asked = settings
        .iter()
        .filter(|(_, settings)| settings.gro != Gro::Off);
    let present = asked.filter_map(|(name, settings)| Some((host.by_name(name)?, settings.gro)));
    let judged = present.map(|(link, gro)| {
        let obstacle = match gro {
            Gro::On => None,
            _ => obstacle(link.index, table, segments),
        };
        let reason = match (gro, &obstacle) {
            (Gro::On, _) => "the configuration says so".to_owned(),
            (_, None) => format!("all that is relayed from here gains by it; {GAIN}"),
            (_, Some(Obstacle::NothingRelayed)) => "no output of its rules is up".to_owned(),
            (_, Some(Obstacle::Device(index))) => format!(
                "{} does not segment ({SEGMENT} is off): the CPU would split what was merged, \
                 once for each copy",
                name(*index).unwrap_or_default()
            ),
            (_, Some(Obstacle::Rule(rule))) => format!(
                "rule {rule:?} judges packets one by one in user space (a limit or fragment=yes)"
            ),
        };
        let judgement = Judgement {
            interface: link.name.clone(),
            merge: obstacle.is_none(),
            reason,
        };
        (link.index, judgement)
    });
    judged.collect()
}

/// What speaks against merging.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Nothing is relayed from there.
    NothingRelayed,
    /// A device that does not segment.
    Device(Ifindex),
    /// A rule that judges packets one by one.
    Rule(String),
}

/// On the kernel path merging gains where the device of every output segments. A worker sends
/// packets of a flow merged anyhow, so on the userspace path it gains always, unless a limit or
/// `fragment` judges packets one by one.
fn obstacle(
    ingress: Ifindex,
    table: &Table,
    segments: impl Fn(Ifindex) -> bool,
) -> Option<Obstacle> {
    let routes = table.routes.iter();
    let mut routes = routes
        .filter(|(key, _)| key.ingress == ingress)
        .map(|(_, route)| route)
        .filter(|route| egresses(route).next().is_some())
        .peekable();
    if routes.peek().is_none() {
        return Some(Obstacle::NothingRelayed);
    }
    // Few devices have many routes between them.
    let mut asked: BTreeMap<Ifindex, bool> = BTreeMap::new();
    routes.find_map(|route| match route.path {
        table::Path::Kernel => egresses(route)
            .map(|egress| egress.interface)
            .find(|index| !*asked.entry(*index).or_insert_with(|| segments(*index)))
            .map(Obstacle::Device),
        table::Path::Userspace => {
            let limits = route.outputs.iter().map(|output| &output.limit);
            let limited = limits.chain([&route.limit]).any(Option::is_some);
            let one_by_one = limited || egresses(route).any(|egress| egress.fragment);
            one_by_one.then(|| Obstacle::Rule(route.rule.clone()))
        }
    })
}

/// Where the outputs that are up send.
fn egresses(route: &Route) -> impl Iterator<Item = &Egress> {
    let states = route.outputs.iter().map(|output| &output.state);
    states.filter_map(|state| match state {
        OutputState::Up(egress) => Some(egress),
        OutputState::Down(_) => None,
    })
}

fn is_active(interface: &str, feature: &str) -> bool {
    let features = sys::ethtool::features(interface).unwrap_or_default();
    features
        .iter()
        .any(|have| have.name == feature && have.active)
}

fn switch(interface: &str, on: bool) -> bool {
    match sys::ethtool::switch(interface, MERGE, on) {
        Ok(()) => {
            let word = if on { "on" } else { "off" };
            tracing::info!(interface, "switched {MERGE} {word}");
            true
        }
        Err(error) => {
            tracing::warn!(interface, %error, "cannot switch {MERGE}");
            false
        }
    }
}
