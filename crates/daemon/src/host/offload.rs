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

/// Merging of received datagrams into a chain of packets.
const CHAIN: &str = "rx-gro-list";

/// Why the userspace path loses what is merged.
const NOT_TAKEN: &str = "this kernel's packet sockets know no UDP GSO, before Linux 6.2";

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
    takes_merged: bool,
}

impl Offload {
    /// Takes over what an earlier run that crashed had switched. `takes_merged`: whether the
    /// userspace path can receive what was merged.
    pub(crate) fn open(directory: &Path, takes_merged: bool) -> Self {
        let record = directory.join("offload.json");
        let text = fs::read(&record).unwrap_or_default();
        Self {
            switched: serde_json::from_slice(&text).unwrap_or_default(),
            record,
            takes_merged,
        }
    }

    /// Whether the userspace path can receive what was merged.
    pub(crate) const fn takes_merged(&self) -> bool {
        self.takes_merged
    }

    /// Switches on what is wanted, and back what is not wanted any more. Says of each interface that
    /// the configuration names what it does now, and why; of any other only if packets are lost by it.
    pub(crate) fn settle(
        &mut self,
        settings: &BTreeMap<String, InterfaceSettings>,
        host: &Host,
        table: &Table,
    ) -> BTreeMap<Ifindex, String> {
        self.carry_out(&judge(settings, host, table, self.takes_merged))
    }

    fn carry_out(&mut self, judged: &BTreeMap<Ifindex, Judgement>) -> BTreeMap<Ifindex, String> {
        let before = self.switched.clone();
        let mut reasons = BTreeMap::new();
        for (index, judgement) in judged {
            let interface = &judgement.interface;
            let refused = judgement.merge && !is_active(interface, MERGE) && {
                let switched = switch(interface, true);
                if switched {
                    self.switched.insert(interface.clone());
                }
                !switched
            };
            let text = match judgement.merge {
                true if refused => Some(format!("off: the device refuses {MERGE}")),
                true => Some(format!("on: {}", judgement.reason)),
                false => judgement.left_off(before.contains(interface)),
            };
            reasons.extend(text.map(|text| (*index, text)));
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
        self.carry_out(&BTreeMap::new());
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
struct Judgement {
    interface: String,
    merge: bool,
    reason: String,
    /// Whether the configuration asks for merging.
    asked: bool,
    /// A rule that would lose what is merged.
    loser: Option<String>,
}

impl Judgement {
    /// What an interface does that this daemon does not switch on; nothing if nobody wants to know.
    /// What is on and not ours is the operator's; what is ours may be another device now.
    fn left_off(&self, ours: bool) -> Option<String> {
        let interface = &self.interface;
        let merges = !ours && is_active(interface, MERGE);
        if let Some(rule) = &self.loser {
            let chains = is_active(interface, CHAIN).then_some(CHAIN);
            let on: Vec<_> = chains.into_iter().chain(merges.then_some(MERGE)).collect();
            if !on.is_empty() {
                return Some(format!(
                    "on: somebody else switched {} on, and rule {rule:?}, which runs in user space, \
                     loses what is merged: {NOT_TAKEN}; ethtool -K {interface} {} off",
                    on.join(" and "),
                    on.join(" off ")
                ));
            }
        }
        match self.asked {
            true if merges => Some(format!("on: somebody else switched {MERGE} on")),
            true => Some(format!("off: {}", self.reason)),
            false => None,
        }
    }
}

/// Judges the interfaces that the configuration names: `on` merges whatever follows, `auto` where
/// all that is relayed from there gains by it, and neither where a rule would lose what is merged.
fn judge(
    settings: &BTreeMap<String, InterfaceSettings>,
    host: &Host,
    table: &Table,
    takes_merged: bool,
) -> BTreeMap<Ifindex, Judgement> {
    let name = |index| host.interfaces.get(&index).map(|link| link.name.as_str());
    let segments = |index| name(index).is_some_and(|name| is_active(name, SEGMENT));
    let losers = match takes_merged {
        true => BTreeMap::new(),
        false => userspace_rules(table),
    };
    let asked = settings
        .iter()
        .filter(|(_, settings)| settings.gro != Gro::Off);
    let present = asked.filter_map(|(name, settings)| Some((host.by_name(name)?, settings.gro)));
    let asked: BTreeMap<Ifindex, Gro> = present.map(|(link, gro)| (link.index, gro)).collect();
    let all: BTreeSet<Ifindex> = asked.keys().chain(losers.keys()).copied().collect();
    let judged = all.into_iter().filter_map(|index| {
        let loser = losers.get(&index).map(|rule| (*rule).to_owned());
        let gro = asked.get(&index);
        let obstacle = match (&loser, gro) {
            (Some(rule), _) => Some(Obstacle::Loser(rule.clone())),
            (None, Some(Gro::On)) => None,
            (None, _) => obstacle(index, table, segments),
        };
        let reason = match (gro, &obstacle) {
            (_, Some(Obstacle::Loser(rule))) => format!(
                "rule {rule:?}, which runs in user space, would lose what is merged: {NOT_TAKEN}"
            ),
            (Some(Gro::On), _) => "the configuration says so".to_owned(),
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
            interface: name(index)?.to_owned(),
            merge: obstacle.is_none(),
            reason,
            asked: gro.is_some(),
            loser,
        };
        Some((index, judgement))
    });
    judged.collect()
}

/// Interfaces from which the userspace path relays, each with one of the rules.
fn userspace_rules(table: &Table) -> BTreeMap<Ifindex, &str> {
    let routes = table.routes.iter();
    let there = routes.filter(|(_, route)| route.path == table::Path::Userspace);
    there
        .map(|(key, route)| (key.ingress, route.rule.as_str()))
        .collect()
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
    /// A rule that would lose what is merged.
    Loser(String),
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
