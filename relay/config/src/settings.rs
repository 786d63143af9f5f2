//! Settings, everything in a configuration beyond rules: in files, over the API, and as stored.

use std::collections::BTreeMap;

use rules::endpoint::{check_interface_name, is_wildcard};
use rules::limit::RateLimit;
use rules::limit::{self, LimitProblem};
use rules::path::{PathChoice, PathChoices};
use rules::ruleset::Policy;
use rules::setting::{Form, Table, differences, settings, words};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::tunnel::{self, End, MTU_MAX, MTU_MIN, Tunnel};
use super::{DaemonSettings, FleetSettings, Notify, StaticJoin};

/// What a configuration says beyond rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Whether 224.0.0.0/24 and ff02::/16 may be inputs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allow_link_local: bool,
    /// Cap on what all unicast outputs send together.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_budget"
    )]
    #[schema(value_type = Option<BudgetTable>)]
    pub budget: Option<Budget>,
    /// How a daemon is started.
    #[serde(default, skip_serializing_if = "is_default")]
    pub daemon: DaemonSettings,
    /// Which fleet the relay belongs to; without it it is in none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::fleet::some_fleet"
    )]
    pub fleet: Option<FleetSettings>,
    /// Settings of interfaces, by name.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "of_interfaces"
    )]
    #[schema(value_type = BTreeMap<String, InterfaceTable>)]
    pub interface: BTreeMap<String, InterfaceSettings>,
    /// Groups that are joined whatever the rules say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub join: Vec<StaticJoin>,
    /// Where events are posted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub notify: Notify,
}

/// Cap on what all unicast outputs send together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BudgetTable", into = "BudgetTable")]
pub struct Budget(pub RateLimit);

settings! {
    /// What all unicast outputs may send together, as it is written.
    pub struct BudgetTable {
        /// Rate of all unicast outputs together, of packets as in `5000pps`, or of UDP payload as in
        /// `1Gbit`.
        required unicast: String, form: Form::Text(&limit::LIMIT);
        /// What may go at once: packets, or bits as in `5Mbit`.
        optional burst: String, form: Form::Text(&limit::BURST), otherwise: "a tenth of a second's";
    }
}

/// Settings of one interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "InterfaceTable", into = "InterfaceTable")]
pub struct InterfaceSettings {
    /// Whether the interface merges packets before they are relayed; `None`: the daemon decides.
    pub gro: Option<Gro>,
    /// Path of the rules whose inputs are on it.
    pub path: PathChoice,
    /// Whether packets that arrive by it are taken at XDP; `None`: as the daemon was started.
    pub xdp: Option<Xdp>,
    /// The tunnel that the daemon creates under its name, if it is one.
    pub tunnel: Option<Tunnel>,
}

settings! {
    /// Settings of one interface, as they are written.
    pub struct InterfaceTable {
        /// Whether the interface merges packets before they are relayed (`rx-udp-gro-forwarding`).
        optional gro: Gro, otherwise: "`gro` of `[daemon]` says whether the daemon decides";
        /// Path of the rules whose inputs are on it.
        optional path: PathChoice, default: "auto";
        /// Whether the kernel path takes packets that come by it at XDP, before the kernel makes an skb of
        /// each.
        optional xdp: Xdp, otherwise: "`xdp` of `[daemon]` says whether";
        /// What makes it a tunnel: a VXLAN interface of this name that the daemon makes, whose packets
        /// go whole, with their groups, ports and sources, to `remote`.
        optional over: Over;
        /// Own address that the tunnel sends from.
        optional local: End, otherwise: "the one that the route to `remote` gives";
        /// Address of the tunnel's other end.
        optional remote: End;
        /// UDP port of both ends.
        optional port: u16, form: Form::number(1, 65_535), default: "4789",
            remedy: "give a number from 1 to 65535";
        /// Network identifier (VNI) of the tunnel, the same at both ends: 24 bits (RFC 7348 section 5).
        optional id: u32, form: Form::number(0, 16_777_215), default: "1",
            remedy: "give a number from 0 to 16777215";
        /// MTU of the tunnel in bytes. With a larger one than by default the tunnel's own packets are
        /// sent in fragments.
        optional mtu: u32, form: Form::number(MTU_MIN as u64, MTU_MAX as u64),
            otherwise: "what the route to `remote` leaves room for",
            remedy: "give a number from 576 to 65535";
    }
}

words! {
    /// Whether an interface merges packets before they are relayed.
    pub enum Gro = Auto {
        /// Turned on where all that is relayed from the interface gains by it.
        Auto = "auto",
        /// Turned on, and back on exit.
        On = "on" | "yes",
        /// The interface is left as it is.
        Off = "off" | "no",
    }
}

words! {
    /// Whether the kernel path takes packets of an interface at XDP.
    pub enum Xdp = Auto {
        /// Where tests proved the driver, and nobody else is concerned.
        Auto = "auto",
        /// Where it can, and `mcr show` says why where it cannot.
        On = "on" | "yes",
        /// At tc alone.
        Off = "off" | "no",
    }
}

words! {
    /// What a tunnel's packets go over.
    pub enum Over = Udp {
        /// UDP, as VXLAN (RFC 7348).
        Udp = "udp",
    }
}

impl Settings {
    /// Replaces what only files of the host may configure by `own`; returns a warning for each key that was
    /// to be something else.
    pub fn retain_local(&mut self, own: &Self) -> Vec<String> {
        let asked = Self {
            daemon: self.daemon.over(&own.daemon),
            fleet: self.fleet.take().or_else(|| own.fleet.clone()),
            notify: self.notify.over(&own.notify),
            ..own.clone()
        };
        self.daemon = own.daemon.clone();
        self.fleet.clone_from(&own.fleet);
        self.notify = own.notify.clone();
        let ignored = asked.changes_since(own).into_iter();
        let stays = "stays as it was; only files of the host itself say it";
        ignored.map(|what| format!("{what}: {stays}")).collect()
    }

    /// Adds the settings of another file.
    pub(super) fn add(&mut self, other: Self) {
        self.allow_link_local |= other.allow_link_local;
        self.budget = other.budget.or(self.budget);
        self.daemon = other.daemon.over(&self.daemon);
        self.fleet = other.fleet.or(self.fleet.take());
        self.interface.extend(other.interface);
        self.join.extend(other.join);
        self.notify = other.notify.over(&self.notify);
    }

    /// The policy for rules: that of `process`, or, without one, what either key permits.
    #[must_use]
    pub fn policy(&self, process: Policy) -> Policy {
        let by_keys = self.allow_link_local || self.daemon.allow_link_local == Some(true);
        Policy {
            allow_link_local: process.allow_link_local.or(Some(by_keys)),
        }
    }

    /// The choices of path for `compile`, with the process's own.
    #[must_use]
    pub fn path_choices(&self, process: PathChoice) -> PathChoices {
        PathChoices {
            process,
            interfaces: self
                .interface
                .iter()
                .map(|(name, set)| (name.clone(), set.path))
                .collect(),
        }
    }

    /// The tunnels, by the names of their interfaces.
    pub fn tunnels(&self) -> impl Iterator<Item = (&String, &Tunnel)> {
        let interfaces = self.interface.iter();
        interfaces.filter_map(|(name, set)| Some((name, set.tunnel.as_ref()?)))
    }

    /// The first interface that cannot be a tunnel beside the others, and why.
    pub(super) fn impossible_tunnel(&self) -> Option<(&String, String)> {
        let mut checked: Vec<(&String, &Tunnel)> = Vec::new();
        for (name, tunnel) in self.tunnels() {
            if let Err(problem) = tunnel::check_name(name) {
                return Some((name, problem));
            }
            let mut clashes = checked
                .iter()
                .filter_map(|(other, set)| Some((other, set.clash(tunnel)?)));
            if let Some((other, what)) = clashes.next() {
                return Some((name, format!("has the same as interface {other}: {what}")));
            }
            checked.push((name, tunnel));
        }
        None
    }

    /// The settings that differ from `before`, each in a few words with its previous value.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        let mut compare = |what: String, before: String, now: String| {
            if before != now {
                changes.push(format!("{what}: {now} (was {before})"));
            }
        };
        let allowed = |settings: &Self| settings.allow_link_local.to_string();
        compare("allow_link_local".into(), allowed(before), allowed(self));
        let budget = |settings: &Self| match settings.budget.map(BudgetTable::from) {
            None => "none".to_owned(),
            Some(BudgetTable { unicast, burst }) => {
                let burst = burst.map(|burst| format!(", burst {burst}"));
                format!("{unicast}{}", burst.unwrap_or_default())
            }
        };
        compare("budget".into(), budget(before), budget(self));
        for difference in differences(&self.daemon, &before.daemon) {
            compare(
                format!("daemon {}", difference.key),
                difference.other,
                difference.configured,
            );
        }
        for difference in FleetSettings::differences(self.fleet.as_ref(), before.fleet.as_ref()) {
            let what = match difference.key {
                "" => "member of".to_owned(),
                key => format!("fleet {key}"),
            };
            compare(what, difference.other, difference.configured);
        }
        // Its path may be a secret.
        let webhook = |settings: &Self| match &settings.notify.webhook {
            None => "none".to_owned(),
            Some(webhook) => webhook.0.origin(),
        };
        let (was, mut is) = (webhook(before), webhook(self));
        if was == is && before.notify != self.notify {
            is += ", another path";
        }
        compare("notify webhook".into(), was, is);
        let mut names: Vec<&String> = before.interface.keys().collect();
        names.extend(self.interface.keys());
        names.sort();
        names.dedup();
        for name in names {
            let value = |settings: &Self| match settings.interface.get(name) {
                None => "nothing".to_owned(),
                Some(InterfaceSettings {
                    gro,
                    path,
                    xdp,
                    tunnel,
                }) => {
                    let gro = gro.map_or("as the daemon decides", Gro::as_str);
                    let xdp = xdp.map(|xdp| format!(", xdp {xdp}"));
                    let tunnel = tunnel.map(|tunnel| format!(", {tunnel}"));
                    let (xdp, tunnel) = (xdp.unwrap_or_default(), tunnel.unwrap_or_default());
                    format!("gro {gro}, path {path}{xdp}{tunnel}")
                }
            };
            compare(format!("interface {name}"), value(before), value(self));
        }
        let without = |settings: &Self, other: &Self, verb: &str| {
            let joins = settings.join.iter();
            joins
                .filter(|join| !other.join.contains(join))
                .map(|join| format!("{verb} {join}"))
                .collect::<Vec<_>>()
        };
        changes.extend(without(self, before, "join"));
        changes.extend(without(before, self, "leave"));
        changes
    }
}

impl TryFrom<BudgetTable> for Budget {
    type Error = String;

    fn try_from(table: BudgetTable) -> Result<Self, String> {
        match limit::parse(Some(&table.unicast), table.burst.as_deref()) {
            Ok(Some(limit)) => Ok(Self(limit)),
            Ok(None) => Err("has no rate; give unicast = \"1Gbit\"".to_owned()),
            Err(LimitProblem::Zero(text)) => Err(format!(
                "unicast={text}: a rate of 0 would stop every unicast output; remove them \
                 instead"
            )),
            Err(problem) => Err(problem.to_string().replacen("limit=", "unicast=", 1)),
        }
    }
}

impl From<Budget> for BudgetTable {
    fn from(Budget(limit): Budget) -> Self {
        Self {
            unicast: limit::rate_text(&limit),
            burst: limit::burst_text(&limit),
        }
    }
}

impl TryFrom<InterfaceTable> for InterfaceSettings {
    type Error = String;

    fn try_from(table: InterfaceTable) -> Result<Self, String> {
        Ok(Self {
            gro: table.gro,
            path: table.path.unwrap_or_default(),
            xdp: table.xdp,
            tunnel: Tunnel::read(&table)?,
        })
    }
}

impl From<InterfaceSettings> for InterfaceTable {
    fn from(settings: InterfaceSettings) -> Self {
        let InterfaceSettings {
            gro,
            path,
            xdp,
            tunnel,
        } = settings;
        let mut table = Self {
            gro,
            xdp,
            path: Some(path).filter(|path| *path != PathChoice::Auto),
            ..Self::default()
        };
        if let Some(tunnel) = tunnel {
            tunnel.write(&mut table);
        }
        table
    }
}

/// Deserialises a budget, with its name in errors.
fn some_budget<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Budget>, D::Error> {
    let table = Option::<BudgetTable>::deserialize(deserializer)?;
    let budget = table.map(Budget::try_from).transpose();
    budget.map_err(|problem| D::Error::custom(format!("budget: {problem}")))
}

fn of_interfaces<'de, D>(deserializer: D) -> Result<BTreeMap<String, InterfaceSettings>, D::Error>
where
    D: Deserializer<'de>,
{
    let interfaces = BTreeMap::<String, InterfaceSettings>::deserialize(deserializer)?;
    for name in interfaces.keys() {
        check_one_interface(name)
            .map_err(|problem| D::Error::custom(format!("interface {name:?}: {problem}")))?;
    }
    let settings = Settings {
        interface: interfaces,
        ..Settings::default()
    };
    match settings.impossible_tunnel() {
        None => Ok(settings.interface),
        Some((name, problem)) => Err(D::Error::custom(format!("interface {name}: {problem}"))),
    }
}

/// Checks the name of an interface; what is said of one holds for no other that its name would match.
pub(super) fn check_one_interface(name: &str) -> Result<(), String> {
    check_interface_name(name).map_err(|problem| problem.to_string())?;
    if is_wildcard(name) {
        return Err("stands for several; name one, without * and ?".to_owned());
    }
    Ok(())
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
