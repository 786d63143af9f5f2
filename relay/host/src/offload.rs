//! GRO of packets before they are relayed (`rx-udp-gro-forwarding`): switched on for interfaces where the
//! configuration requests it, and where it specifies nothing and nobody else is affected (`gro_policy.rs`);
//! switched back at the end. What was already on is left alone.

mod gro_policy;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use compile::host::{Host, Interface};
use compile::table::{self, Egress, OutputState, Route, Table};
use config::{Automatic, Gro, InterfaceSettings};
use rules::net::Ifindex;

/// GRO of received datagrams that are not for a local socket.
const MERGE: &str = "rx-udp-gro-forwarding";

/// GRO of received datagrams into a chain of packets.
const CHAIN: &str = "rx-gro-list";

/// Why the userspace path loses what GRO merges.
const NOT_TAKEN: &str = "this kernel's packet sockets know no UDP GSO, before Linux 6.2";

/// Segmentation of what was merged, by the device.
const SEGMENT: &str = "tx-udp-segmentation";

/// The receiving core's time for each copy, without and with merging, kernel path, 1024 bytes, a
/// device that segments: docs/measurements/kernel-path.md.
const GAIN: &str = "measured on the kernel path, a core's time then goes 1.5 times as far with one \
                    output, 2.7 times with three, 10 times with fifty";

/// Why GRO is on.
const PAYS: &str = "all that is relayed from here gains by it";

/// The interfaces that this daemon has switched.
#[derive(Debug)]
pub struct Offload {
    record: PathBuf,
    switched: BTreeSet<String>,
    takes_merged: bool,
    default: Automatic,
    /// The decisions for interfaces that the configuration does not name; `None` before the first time.
    default_judgements: Option<BTreeMap<Ifindex, Judgement>>,
    /// Whether rules or host have changed since.
    is_stale: bool,
}

impl Offload {
    /// Takes over what an earlier run that crashed had switched. `takes_merged`: whether the userspace
    /// path can receive merged packets; `default`: the choice for interfaces that the configuration does
    /// not name.
    pub fn open(directory: &Path, takes_merged: bool, default: Automatic) -> Self {
        let record = directory.join("offload.json");
        let text = fs::read(&record).unwrap_or_default();
        Self {
            switched: serde_json::from_slice(&text).unwrap_or_default(),
            record,
            takes_merged,
            default,
            default_judgements: None,
            is_stale: false,
        }
    }

    /// Switches on what is wanted, and back what is no longer wanted. Returns for each interface that
    /// the configuration names what it does now and why; for any other only if it merges, if it could
    /// and does not, or if packets are lost by it. Interfaces that are not named are decided upon by
    /// [`Offload::follow`], except for the first time, because that needs all rules.
    pub fn settle(
        &mut self,
        settings: &BTreeMap<String, InterfaceSettings>,
        host: &Host,
        table: &Table,
    ) -> BTreeMap<Ifindex, String> {
        if self.default_judgements.is_none() {
            self.default_judgements = Some(self.decide(host, table));
        } else {
            self.is_stale = true;
        }
        let mut judged = judge(settings, host, table, self.takes_merged);
        let is_named = |link: &Interface| {
            let named = settings.get(&link.name);
            named.is_some_and(|named| named.gro.is_some())
        };
        for (index, judgement) in self.default_judgements.iter().flatten() {
            let link = host.interfaces.get(index);
            if link.is_some_and(|link| !is_named(link)) && !judged.contains_key(index) {
                judged.insert(*index, judgement.clone());
            }
        }
        self.carry_out(&judged)
    }

    /// Checks again periodically: interfaces that the configuration does not name, if rules or host have
    /// changed or if other users of one have appeared or gone, and features that were switched on by
    /// hand where that costs packets. Returns what [`Offload::settle`] would, if it may have changed.
    pub fn follow(
        &mut self,
        settings: &BTreeMap<String, InterfaceSettings>,
        host: &Host,
        table: &Table,
    ) -> Option<BTreeMap<Ifindex, String>> {
        if !self.takes_merged {
            return Some(self.settle(settings, host, table));
        }
        let mut judgements = self.default_judgements.iter().flatten();
        let has_changed = judgements.any(|(index, judgement)| {
            let link = host.interfaces.get(index);
            let may_merge = link.is_some_and(|link| gro_policy::obstacle(link, host).is_none());
            may_merge != judgement.merge
        });
        if !has_changed && !std::mem::take(&mut self.is_stale) {
            return None;
        }
        let judgements = Some(self.decide(host, table));
        if judgements == self.default_judgements {
            self.is_stale = false;
            return None;
        }
        self.default_judgements = judgements;
        let reasons = self.settle(settings, host, table);
        self.is_stale = false;
        Some(reasons)
    }

    /// Judges all interfaces that something is relayed from, by default: merging must pay, and nobody
    /// else may use what arrives there.
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
                is_shown: true,
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
            let text = if !judgement.merge {
                judgement.unswitched(before.contains(interface))
            } else if is_active(interface, MERGE) {
                Some(format!("on: {}", judgement.reason))
            } else if switch(interface, true) {
                self.switched.insert(interface.clone());
                Some(format!("on: {}", judgement.reason))
            } else {
                Some(format!("off: the device refuses {MERGE}"))
            };
            reasons.extend(text.map(|text| (*index, text)));
        }
        let merging = judged.values().filter(|judgement| judgement.merge);
        let wanted: BTreeSet<&String> = merging.map(|judgement| &judgement.interface).collect();
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
    /// Whether it is shown even if nothing is merged.
    is_shown: bool,
    /// A rule that would lose merged packets.
    loser: Option<String>,
}

impl Judgement {
    /// The state of an interface that this daemon does not switch on; `None` if it is not shown. A
    /// feature that is on and not `ours` was switched by the operator; after a rename, `ours` may be
    /// another device.
    fn unswitched(&self, ours: bool) -> Option<String> {
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
        self.is_shown.then(|| {
            if merges {
                format!("on: somebody else switched {MERGE} on")
            } else {
                format!("off: {}", self.reason)
            }
        })
    }
}

/// Judges the interfaces that the configuration names: `on` merges unconditionally, `auto` if all that is
/// relayed from there gains by it, and neither if a rule would lose merged packets.
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
    let choice = |(name, settings): (&String, &InterfaceSettings)| {
        let gro = settings.gro.filter(|gro| *gro != Gro::Off)?;
        Some((host.by_name(name)?.index, gro))
    };
    let asked: BTreeMap<Ifindex, Gro> = settings.iter().filter_map(choice).collect();
    let is_any_auto = asked.values().any(|gro| *gro == Gro::Auto);
    let relayed = if is_any_auto {
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
            is_shown: gro.is_some(),
            loser,
        };
        Some((index, judgement))
    });
    judged.collect()
}

/// The interfaces from which the userspace path relays, each with one of the rules.
fn userspace_rules(table: &Table) -> BTreeMap<Ifindex, &str> {
    let routes = table.routes.iter();
    let userspace = routes.filter(|(_, route)| route.path == table::Path::Userspace);
    userspace
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
    /// A rule that would lose merged packets.
    Loser(String),
}

/// What is relayed from one interface, as far as merging concerns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Relayed<'a> {
    /// The devices that the kernel path sends it to.
    devices: BTreeSet<Ifindex>,
    /// A rule of the userspace path that judges packets one by one, because of a limit or `fragment`.
    one_by_one: Option<&'a str>,
    /// A rule of either path that limits or merges its inputs packet by packet.
    judged_singly: Option<&'a str>,
}

/// Collects what is relayed from each interface in one pass over the routes; interfaces without a working
/// output are omitted.
fn relayed(table: &Table) -> BTreeMap<Ifindex, Relayed<'_>> {
    let mut relayed: BTreeMap<Ifindex, Relayed<'_>> = BTreeMap::new();
    for (key, route) in &table.routes {
        if egresses(route).next().is_none() {
            continue;
        }
        let of_ingress = relayed.entry(key.ingress).or_default();
        let limits = route.outputs.iter().map(|output| &output.limit);
        let is_limited = limits.chain([&route.limit]).any(Option::is_some);
        if is_limited || route.merge.is_some() {
            of_ingress.judged_singly.get_or_insert(&route.rule);
        }
        match route.path {
            table::Path::Kernel => {
                let devices = egresses(route).map(|egress| egress.interface);
                of_ingress.devices.extend(devices);
            }
            table::Path::Userspace => {
                if is_limited || egresses(route).any(|egress| egress.fragment) {
                    of_ingress.one_by_one.get_or_insert(&route.rule);
                }
            }
        }
    }
    relayed
}

/// What speaks against merging. On the kernel path merging gains if the device of every output segments. A
/// worker sends packets of a flow merged anyway, so on the userspace path it always gains, unless a limit or
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

/// Whether a device segments merged packets.
fn segments(host: &Host) -> impl Fn(Ifindex) -> bool {
    |index| {
        let link = host.interfaces.get(&index);
        link.is_some_and(|link| is_active(&link.name, SEGMENT))
    }
}

/// The egresses of the outputs that are up.
fn egresses(route: &Route) -> impl Iterator<Item = &Egress> {
    let states = route.outputs.iter().map(|output| &output.state);
    states.filter_map(|state| match state {
        OutputState::Up(egress) => Some(egress),
        OutputState::Down(_) => None,
    })
}

/// Whether a feature of an interface is on.
pub(crate) fn is_active(interface: &str, feature: &str) -> bool {
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
