//! Interfaces on which GRO joins packets before they are relayed (`rx-udp-gro-forwarding`): switched on
//! where the configuration asks for it, and where it says nothing and nobody else is concerned
//! (`gro_policy.rs`); back at the end. What was already on is left alone.

mod gro_policy;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use compile::host::Host;
use compile::table::{self, Egress, OutputState, Route, Table};
use config::{Automatic, Gro, InterfaceSettings};
use rules::net::Ifindex;

/// Merging of received datagrams that are not for a local socket.
const MERGE: &str = "rx-udp-gro-forwarding";

/// Merging of received datagrams into a chain of packets.
const CHAIN: &str = "rx-gro-list";

/// Why the userspace path loses what is merged.
const NOT_TAKEN: &str = "this kernel's packet sockets know no UDP GSO, before Linux 6.2";

/// Segmentation of what was merged, by the device.
const SEGMENT: &str = "tx-udp-segmentation";

/// The receiving core's time for each copy, without and with merging, kernel path, 1024 bytes, a
/// device that segments: docs/measurements/kernel-path.md.
const GAIN: &str = "measured on the kernel path, a core's time then goes 1.5 times as far with one \
                    output, 2.7 times with three, 10 times with fifty";

/// Why it is on.
const PAYS: &str = "all that is relayed from here gains by it";

/// Interfaces that this daemon switched.
#[derive(Debug)]
pub struct Offload {
    record: PathBuf,
    switched: BTreeSet<String>,
    takes_merged: bool,
    default: Automatic,
    /// What was decided of interfaces that the configuration does not name; nothing was, before the
    /// first time.
    unasked: Option<BTreeMap<Ifindex, Judgement>>,
    /// Whether rules or host changed since.
    is_stale: bool,
}

impl Offload {
    /// Takes over what an earlier run that crashed had switched. `takes_merged`: whether the
    /// userspace path can receive what was merged; `default`: what becomes of interfaces that the
    /// configuration does not name.
    pub fn open(directory: &Path, takes_merged: bool, default: Automatic) -> Self {
        let record = directory.join("offload.json");
        let text = fs::read(&record).unwrap_or_default();
        Self {
            switched: serde_json::from_slice(&text).unwrap_or_default(),
            record,
            takes_merged,
            default,
            unasked: None,
            is_stale: false,
        }
    }

    /// Switches on what is wanted, and back what is not wanted any more. Says of each interface that
    /// the configuration names what it does now, and why; of any other if it merges, if it could
    /// and does not, or if packets are lost by it. Others than those named are decided upon by
    /// [`Offload::follow`], but for the first time: all rules are looked at for it.
    pub fn settle(
        &mut self,
        settings: &BTreeMap<String, InterfaceSettings>,
        host: &Host,
        table: &Table,
    ) -> BTreeMap<Ifindex, String> {
        if self.unasked.is_none() {
            self.unasked = Some(self.decide(host, table));
        } else {
            self.is_stale = true;
        }
        let mut judged = judge(settings, host, table, self.takes_merged);
        let is_named = |index: &Ifindex| {
            let link = host.interfaces.get(index);
            link.is_some_and(|link| {
                settings
                    .get(&link.name)
                    .is_some_and(|named| named.gro.is_some())
            })
        };
        for (index, judgement) in self.unasked.iter().flatten() {
            let is_there = host.interfaces.contains_key(index);
            if is_there && !is_named(index) && !judged.contains_key(index) {
                judged.insert(*index, judgement.clone());
            }
        }
        self.carry_out(&judged)
    }

    /// Looks again, once in a while: at interfaces that nobody named if rules or host changed, or
    /// if somebody else has to do with one or has not any more, and at what somebody switches on by
    /// hand where that costs
    /// packets. What [`Offload::settle`] would say, if it may have changed.
    pub fn follow(
        &mut self,
        settings: &BTreeMap<String, InterfaceSettings>,
        host: &Host,
        table: &Table,
    ) -> Option<BTreeMap<Ifindex, String>> {
        if !self.takes_merged {
            return Some(self.settle(settings, host, table));
        }
        let mut decided = self.unasked.iter().flatten();
        let is_otherwise = decided.any(|(index, judgement)| {
            let link = host.interfaces.get(index);
            let may = link.is_some_and(|link| gro_policy::obstacle(link, host).is_none());
            may != judgement.merge
        });
        if !is_otherwise && !std::mem::take(&mut self.is_stale) {
            return None;
        }
        let decided = Some(self.decide(host, table));
        if decided == self.unasked {
            self.is_stale = false;
            return None;
        }
        self.unasked = decided;
        let said = self.settle(settings, host, table);
        self.is_stale = false;
        Some(said)
    }

    /// Judges all interfaces that something is relayed from, as nobody asks for it: where it pays,
    /// and nobody else has to do with what comes in there.
    fn decide(&self, host: &Host, table: &Table) -> BTreeMap<Ifindex, Judgement> {
        if self.default == Automatic::Off || !self.takes_merged {
            return BTreeMap::new();
        }
        let decided = relayed(table).into_iter().filter_map(|(index, relayed)| {
            let link = host.interfaces.get(&index)?;
            let is_plain = relayed.judged_singly.is_none();
            if !is_plain || obstacle(Some(&relayed), segments(host)).is_some() {
                return None;
            }
            let interface = link.name.clone();
            let (merge, reason) = match gro_policy::obstacle(link, host) {
                None => (
                    true,
                    format!("{PAYS}; {GAIN}; gro = \"off\" in [daemon] leaves it as it is"),
                ),
                Some(gro_policy::Why::Nothing) => return None,
                Some(gro_policy::Why::Other(why)) => (
                    false,
                    format!("{why}; gro = \"auto\" in [interface.{interface}] merges all the same"),
                ),
            };
            let judgement = Judgement {
                interface,
                merge,
                reason,
                told: true,
                loser: None,
            };
            Some((index, judgement))
        });
        decided.collect()
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
    pub fn close(mut self) {
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
    /// Whether it is shown also where nothing is merged.
    told: bool,
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
        match self.told {
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
    let losers = if takes_merged {
        BTreeMap::new()
    } else {
        userspace_rules(table)
    };
    let asked = settings.iter().filter_map(|(name, settings)| {
        let gro = settings.gro.filter(|gro| *gro != Gro::Off)?;
        Some((host.by_name(name)?.index, gro))
    });
    let asked: BTreeMap<Ifindex, Gro> = asked.collect();
    let auto = asked.values().any(|gro| *gro == Gro::Auto);
    let relayed = if auto {
        relayed(table)
    } else {
        BTreeMap::new()
    };
    let all: BTreeSet<Ifindex> = asked.keys().chain(losers.keys()).copied().collect();
    let judged = all.into_iter().filter_map(|index| {
        let loser = losers.get(&index).map(|rule| (*rule).to_owned());
        let gro = asked.get(&index);
        let obstacle = match (&loser, gro) {
            (Some(rule), _) => Some(Obstacle::Loser(rule.clone())),
            (None, Some(Gro::On)) => None,
            (None, _) => obstacle(relayed.get(&index), segments(host)),
        };
        let reason = match (gro, &obstacle) {
            (_, Some(Obstacle::Loser(rule))) => format!(
                "rule {rule:?}, which runs in user space, would lose what is merged: {NOT_TAKEN}"
            ),
            (Some(Gro::On), _) => "the configuration says so".to_owned(),
            (_, None) => format!("{PAYS}; {GAIN}"),
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
            told: gro.is_some(),
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

/// What is relayed from one interface, as far as merging concerns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Relayed<'a> {
    /// Where the kernel path sends it.
    devices: BTreeSet<Ifindex>,
    /// A rule of the userspace path that a limit or `fragment` has judge packets one by one.
    one_by_one: Option<&'a str>,
    /// A rule of either path that limits or merges its inputs by packet.
    judged_singly: Option<&'a str>,
}

/// Goes through all routes once; interfaces from which nothing can leave are not among them.
fn relayed(table: &Table) -> BTreeMap<Ifindex, Relayed<'_>> {
    let mut relayed: BTreeMap<Ifindex, Relayed<'_>> = BTreeMap::new();
    for (key, route) in &table.routes {
        if egresses(route).next().is_none() {
            continue;
        }
        let here = relayed.entry(key.ingress).or_default();
        let limits = route.outputs.iter().map(|output| &output.limit);
        let is_limited = limits.chain([&route.limit]).any(Option::is_some);
        if is_limited || route.merge.is_some() {
            here.judged_singly.get_or_insert(&route.rule);
        }
        match route.path {
            table::Path::Kernel => {
                let devices = egresses(route).map(|egress| egress.interface);
                here.devices.extend(devices);
            }
            table::Path::Userspace => {
                if is_limited || egresses(route).any(|egress| egress.fragment) {
                    here.one_by_one.get_or_insert(&route.rule);
                }
            }
        }
    }
    relayed
}

/// On the kernel path merging gains where the device of every output segments. A worker sends
/// packets of a flow merged anyhow, so on the userspace path it gains always, unless a limit or
/// `fragment` judges packets one by one.
fn obstacle(relayed: Option<&Relayed<'_>>, segments: impl Fn(Ifindex) -> bool) -> Option<Obstacle> {
    let Some(relayed) = relayed else {
        return Some(Obstacle::NothingRelayed);
    };
    let mut devices = relayed.devices.iter().copied();
    let device = devices
        .find(|index| !segments(*index))
        .map(Obstacle::Device);
    let rule = || {
        relayed
            .one_by_one
            .map(|rule| Obstacle::Rule(rule.to_owned()))
    };
    device.or_else(rule)
}

/// Says of a device whether it segments what was merged.
fn segments(host: &Host) -> impl Fn(Ifindex) -> bool {
    |index| {
        let link = host.interfaces.get(&index);
        link.is_some_and(|link| is_active(&link.name, SEGMENT))
    }
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
